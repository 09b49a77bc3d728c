"""The tree and the extreme over slots: against plain arrays, at the edges, and in bad numbers."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from jaxrl_async.replay.sum_tree import Extreme, Tree

# One slot; the largest of one level, the smallest of two, with one slot too many; the largest of
# two, the smallest of three; and one of seven: 40,000 slots under 625 nodes.
CAPACITIES = [1, 2, 1023, 1024, 1025, 2048, 2049, 40_000]
QUIET = {"derandomize": True, "deadline": None, "database": None}


def tree_of(values):
    tree = Tree(len(values))
    tree.set(np.arange(len(values)), np.asarray(values, np.float64))
    return tree


def first_beyond(values, masses):
    """The slow oracle; sums of whole numbers are exact in any order."""
    return np.searchsorted(np.cumsum(values), masses, side="right")


class AgainstAnArray(RuleBasedStateMachine):
    """Whole numbers from 0 to 9, many of them 0, so that sums are exact and slots are empty."""

    @initialize(capacity=st.sampled_from(CAPACITIES))
    def start(self, capacity):
        self.tree, self.values = Tree(capacity), np.zeros(capacity)

    def slots(self, data, most=40):
        """Near the seams of nodes as often as anywhere."""
        last = len(self.values) - 1
        near = [slot for slot in (0, 1, 2, 3, 63, 64, 1023, 1024, 32_768) if slot <= last]
        slot = st.integers(0, last) | st.sampled_from([*near, last])
        return np.array(data.draw(st.lists(slot, max_size=most)), np.int64)

    @rule(data=st.data(), seed=st.integers(0, 2**32 - 1))
    def set_some(self, data, seed):
        slots = self.slots(data)
        values = np.random.default_rng(seed).choice([0, 0, 1, 2, 9], len(slots)).astype(float)
        self.tree.set(slots, values)
        for slot, value in zip(slots, values, strict=True):  # one by one: the last one stays
            self.values[slot] = value

    @rule(data=st.data(), value=st.integers(0, 9))
    def set_one_value(self, data, value):
        slots = self.slots(data)
        self.tree.set(slots, float(value))
        self.values[slots] = value

    @rule(seed=st.integers(0, 2**32 - 1))
    def set_all(self, seed):
        values = np.random.default_rng(seed).integers(0, 10, len(self.values)).astype(float)
        self.tree.set(np.arange(len(values)), values)
        self.values = values

    @rule(seed=st.integers(0, 2**32 - 1))
    def find(self, seed):
        total = float(self.values.sum())
        if not total:
            return
        rng = np.random.default_rng(seed)
        masses = np.append(rng.integers(0, int(total), 20), [0.0, total - 1, total - 0.5])
        masses = np.append(masses, rng.integers(0, int(total), 5) + 0.5)

        found = self.tree.find(masses)

        np.testing.assert_array_equal(found, first_beyond(self.values, masses))
        assert np.all(self.values[found] > 0)

    @invariant()
    def agree(self):
        np.testing.assert_array_equal(self.tree[np.arange(len(self.values))], self.values)
        assert self.tree.total == self.values.sum()
        self.tree.check_valid()


def test_any_script_leaves_the_tree_as_a_plain_array_says():
    run_state_machine_as_test(
        AgainstAnArray, settings=settings(**QUIET, max_examples=60, stateful_step_count=15)
    )


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_a_new_tree_holds_zeros(capacity):
    tree = Tree(capacity)

    assert tree.total == 0.0
    np.testing.assert_array_equal(tree[np.arange(capacity)], 0.0)
    tree.check_valid()


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_each_slot_is_found_at_its_own_mass_and_at_no_other(capacity):
    # Slot i holds 1: the masses i and just below i + 1 are its first and its last.
    tree, slots = tree_of(np.ones(capacity)), np.arange(capacity)

    np.testing.assert_array_equal(tree.find(slots.astype(float)), slots)
    np.testing.assert_array_equal(tree.find(np.nextafter(slots + 1.0, 0.0)), slots)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_masses_at_and_beyond_the_total_find_the_last_slot_that_is_not_empty(capacity):
    # The last half is empty: rounding of a share times the total must not end there.
    last = (capacity - 1) // 2
    tree = tree_of(np.where(np.arange(capacity) <= last, 3.0, 0.0))
    total = 3.0 * (last + 1)

    at = [np.nextafter(total, 0.0), total, np.nextafter(total, np.inf), 1.5 * total]

    assert tree.total == total
    np.testing.assert_array_equal(tree.find(np.array(at)), last)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_mass_zero_finds_the_first_slot_that_is_not_empty(capacity):
    first = capacity // 2
    tree = tree_of(np.where(np.arange(capacity) >= first, 5e-324, 0.0))

    np.testing.assert_array_equal(tree.find(np.zeros(3)), first)


def test_of_a_slot_that_is_set_twice_the_last_value_stays():
    tree = Tree(2000)

    tree.set(np.array([7, 1999, 7, 7, 1999]), np.array([1.0, 2.0, 9.0, 5.0, 8.0]))

    np.testing.assert_array_equal(tree[np.array([7, 1999])], [5.0, 8.0])
    assert tree.total == 13.0
    tree.check_valid()


def test_what_was_read_is_a_copy():
    tree = tree_of([1.0, 2.0])

    tree[np.array([0, 1])][:] = 7.0

    assert tree.total == 3.0


def test_a_million_changes_leave_no_rounding_error():
    # 0.1 is not exact: a tree that added differences would be off by now. Sums are made anew.
    rng = np.random.default_rng(0)
    tree, values = Tree(5_000), np.zeros(5_000)
    for _ in range(200):
        slots = rng.integers(0, 5_000, 5_000)
        new = rng.choice([0.1, 1e9, 1e-9], 5_000)
        tree.set(slots, new)
        values[slots] = new
    tree.set(np.arange(5_000), 0.1)

    fresh = tree_of(np.full(5_000, 0.1))
    tree.check_valid()
    assert tree.total == fresh.total
    assert math.isclose(tree.total, 500.0, rel_tol=1e-12)


@settings(**QUIET, max_examples=100)
@given(
    capacity=st.sampled_from(CAPACITIES),
    seed=st.integers(0, 2**32 - 1),
    filled=st.floats(0.0, 1.0),
    powers=st.tuples(st.floats(-300, 300), st.floats(-300, 300)).map(sorted),
)
def test_an_empty_slot_is_never_found_whatever_the_ratios(capacity, seed, filled, powers):
    # Values from 1e-300 to 1e300: most are lost beside their neighbours in a float64 sum.
    rng = np.random.default_rng(seed)
    values = 10.0 ** rng.uniform(*powers, capacity)
    values[rng.random(capacity) > filled] = 0.0
    values[rng.integers(capacity)] = 10.0 ** powers[0]
    tree = tree_of(values)
    masses = np.append(rng.random(200), [0.0, 0.5, np.nextafter(1.0, 0.0), 1.0]) * tree.total
    seams = np.cumsum(values)[rng.integers(0, capacity, 50)]
    masses = np.concatenate([masses, seams, np.nextafter(seams, 0.0), np.nextafter(seams, np.inf)])

    found = tree.find(masses)

    assert np.all((0 <= found) & (found < capacity))
    assert np.all(values[found] > 0.0)
    tree.check_valid()


def test_real_values_are_found_where_their_running_sum_passes_up_to_rounding():
    # Sums of 40,000 values from 0 to 1 in another order: off by less than 1e-10 of 20,000.
    values = np.random.default_rng(0).random(40_000)
    tree, sums = tree_of(values), np.cumsum(values)
    masses = np.random.default_rng(1).random(10_000) * tree.total

    found = tree.find(masses)

    assert np.all(masses < sums[found] + 1e-7)
    assert np.all(masses >= sums[found] - values[found] - 1e-7)
    assert np.count_nonzero(found != first_beyond(values, masses)) <= 1


@pytest.mark.parametrize(("capacity", "level"), [(40_000, 1), (40_000, 6), (1025, 1)])
def test_a_node_that_is_not_what_its_children_make_is_noticed(capacity, level):
    tree = tree_of(np.arange(1.0, capacity + 1))
    tree.check_valid()

    tree._levels[level][3] += 1.0

    with pytest.raises(AssertionError):
        tree.check_valid()


class Watched:
    """Values and their extreme, which is told of each change."""

    def __init__(self, count, key):
        self.values, self.key, self.extreme = np.zeros(count), key, Extreme(self.look)
        self.looks = 0  # through all values

    def look(self, values):
        self.looks += len(values) == len(self.values)
        return self.key(values)

    def set(self, slots, new):
        old = self.values[slots]
        self.values[slots] = new
        self.extreme.changed(np.asarray(slots), old, self.values[slots])

    @property
    def largest(self):
        return self.extreme.of(self.values)


class AgainstAllValues(RuleBasedStateMachine):
    """Few different values, so that many slots share the extreme, and slots that come twice."""

    @initialize(key=st.sampled_from([np.positive, np.negative]))
    def start(self, key):
        self.watched = Watched(7, key)

    @rule(
        changes=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), max_size=12),
        asks=st.booleans(),
    )
    def change(self, changes, asks):
        slots = np.array([slot for slot, _ in changes], np.int64)
        self.watched.set(slots, np.array([value for _, value in changes], np.float64))
        if asks:  # else the next change comes upon an extreme that nobody looked for
            assert self.watched.largest == self.watched.key(self.watched.values).max()

    def teardown(self):
        if hasattr(self, "watched"):
            assert self.watched.largest == self.watched.key(self.watched.values).max()


def test_any_script_leaves_the_extreme_of_all_values():
    run_state_machine_as_test(
        AgainstAllValues, settings=settings(**QUIET, max_examples=200, stateful_step_count=20)
    )


def test_all_values_are_looked_through_only_when_the_last_extreme_one_is_gone():
    watched = Watched(100, np.positive)
    assert (watched.largest, watched.looks) == (0.0, 1)
    watched.set([3, 4, 50], 9.0)
    assert (watched.largest, watched.looks) == (9.0, 1)

    watched.set([3, 50], 1.0)
    watched.set([5], 2.0)
    assert (watched.largest, watched.looks) == (9.0, 1)

    watched.set([4], 1.0)
    assert (watched.largest, watched.looks) == (2.0, 2)
    assert (watched.largest, watched.looks) == (2.0, 2)
