"""The tree over slots: against a plain array, at the edges of its levels, and in bad numbers."""

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

from jaxrl_async.replay.sum_tree import Tree

# 1 node, one node less than full, full, one more; the largest of one level, the smallest of two,
# and one of three: 40,000 slots, 1,250 nodes, 40 nodes.
CAPACITIES = [1, 31, 32, 33, 1024, 1025, 40_000]
EMPTY = {np.add: 0.0, np.maximum: 0.0, np.minimum: np.inf}
QUIET = {"derandomize": True, "deadline": None, "database": None}


def tree_of(values, combine=np.add):
    tree = Tree(len(values), combine, EMPTY[combine])
    tree.set(np.arange(len(values)), np.asarray(values, np.float64))
    return tree


def first_beyond(values, masses):
    """The slow oracle; sums of whole numbers are exact in any order."""
    return np.searchsorted(np.cumsum(values), masses, side="right")


class AgainstAnArray(RuleBasedStateMachine):
    """Whole numbers from 0 to 9, many of them 0, so that sums are exact and slots are empty."""

    @initialize(capacity=st.sampled_from(CAPACITIES), combine=st.sampled_from(list(EMPTY)))
    def start(self, capacity, combine):
        self.combine, self.values = combine, np.full(capacity, EMPTY[combine])
        self.tree = Tree(capacity, combine, EMPTY[combine])

    def slots(self, data, most=40):
        """Near the seams of nodes as often as anywhere."""
        last = len(self.values) - 1
        near = [slot for slot in (0, 1, 31, 32, 33, 1023, 1024, 32_768) if slot <= last]
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
        if self.combine is not np.add or not total:
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
        assert self.tree.total == self.combine.reduce(self.values)
        self.tree.check_valid()


def test_any_script_leaves_the_tree_as_a_plain_array_says():
    run_state_machine_as_test(
        AgainstAnArray, settings=settings(**QUIET, max_examples=60, stateful_step_count=15)
    )


@pytest.mark.parametrize("combine", EMPTY)
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_a_new_tree_holds_nothing_but_the_neutral_value(capacity, combine):
    tree = Tree(capacity, combine, EMPTY[combine])

    assert tree.total == EMPTY[combine]
    np.testing.assert_array_equal(tree[np.arange(capacity)], EMPTY[combine])
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
    for combine, total in ((np.add, 13.0), (np.maximum, 8.0), (np.minimum, 5.0)):
        tree = Tree(2000, combine, EMPTY[combine])

        tree.set(np.array([7, 1999, 7, 7, 1999]), np.array([1.0, 2.0, 9.0, 5.0, 8.0]))

        np.testing.assert_array_equal(tree[np.array([7, 1999])], [5.0, 8.0])
        assert tree.total == total
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


@pytest.mark.parametrize(("capacity", "level"), [(40_000, 1), (40_000, 2), (1025, 1)])
@pytest.mark.parametrize("combine", EMPTY)
def test_a_node_that_is_not_what_its_children_make_is_noticed(combine, capacity, level):
    tree = tree_of(np.arange(1.0, capacity + 1), combine)
    tree.check_valid()

    tree._levels[level][3] += 1.0

    with pytest.raises(AssertionError):
        tree.check_valid()
