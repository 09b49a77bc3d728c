"""The packed ring against a plain list, through any order of calls, in memory and in files."""

import pathlib
import tempfile

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jaxrl_async.replay.ring import Ring

WIDTHS = {"float32": 2, "int32": 1, "uint8": 3}
LARGEST = 7


def rows(tokens):
    """One row for each token t: t and -t, t, and its three lowest bytes. No two are alike."""
    t = np.array(tokens, np.int64)
    return {
        "float32": np.stack([t, -t], axis=-1).astype(np.float32),
        "int32": t[..., None].astype(np.int32),
        "uint8": np.stack([t >> 16, t >> 8, t], axis=-1).astype(np.uint8),
    }


def assert_same(found, expected):
    assert set(found) == set(expected)
    for dtype, array in expected.items():
        assert found[dtype].dtype == array.dtype
        np.testing.assert_array_equal(found[dtype], array)


class RingMachine(RuleBasedStateMachine):
    """The model is a list of the tokens kept, and the number of the first of them."""

    where = None  # in memory

    @initialize(capacity=st.integers(1, LARGEST))
    def make(self, capacity):
        self.ring = Ring(capacity, WIDTHS, self.where)
        self.capacity = capacity
        self.kept, self.oldest = [], 0
        self.token = 0  # of the newest row; tokens have nothing to do with insertion numbers
        self.taken = []  # what was taken earlier, and what it must go on to be

    def next_rows(self, count):
        tokens = list(range(self.token + 1, self.token + 1 + count))
        self.token += count
        return tokens, rows(np.array(tokens, np.int64))

    @rule(count=st.integers(0, LARGEST))
    def add(self, count):
        tokens, added = self.next_rows(count % (self.capacity + 1))

        self.ring.add(added)
        for array in added.values():
            array[:] = 0  # the giver goes on writing

        self.kept += tokens
        surplus = max(0, len(self.kept) - self.capacity)
        self.kept, self.oldest = self.kept[surplus:], self.oldest + surplus

    @rule(surplus=st.integers(1, 3))
    def add_too_many(self, surplus):
        _, added = self.next_rows(self.capacity + surplus)

        with pytest.raises(ValueError, match=f"into a ring of {self.capacity}: add fewer"):
            self.ring.add(added)

    @rule(first=st.sampled_from([0, 1, 5, 2**31 - 3, 2**32 - 2, 2**40 + 1]))
    def restart(self, first):
        self.ring.restart(first)

        self.kept, self.oldest = [], first

    @precondition(lambda self: self.kept)
    @rule(
        indices=st.lists(st.integers(0, LARGEST - 1), min_size=1, max_size=6), is_wide=st.booleans()
    )
    def take(self, indices, is_wide):
        index = np.array(indices) % len(self.kept)
        index = np.stack([index, index[::-1]]) if is_wide else index
        expected = rows(np.array(self.kept)[index])

        found = self.ring.take(self.oldest + index)

        assert_same(found, expected)
        for dtype, array in expected.items():
            np.testing.assert_array_equal(self.ring.take_one(dtype, self.oldest + index), array)
        self.taken = [*self.taken[-2:], (found, expected)]

    @precondition(lambda self: self.taken)
    @rule()
    def write_into_what_was_taken(self):
        found, _ = self.taken.pop()
        for array in found.values():
            array[:] = 0

    @invariant()
    def the_counts_are_those_of_the_list(self):
        assert len(self.ring) == len(self.kept)
        assert self.ring.oldest == self.oldest
        assert self.ring.total == self.oldest + len(self.kept)
        self.ring.check_valid()

    @invariant()
    def every_row_that_is_kept_is_that_of_the_list(self):
        ids = np.arange(self.ring.oldest, self.ring.total)
        assert_same(self.ring.take(ids), rows(self.kept))

    @invariant()
    def what_was_taken_stays_as_it_was(self):
        for found, expected in self.taken:
            assert_same(found, expected)


class MappedRingMachine(RingMachine):
    """The same with rows in files, in their slots."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.where = str(pathlib.Path(self.folder.name) / "made" / "here")

    @invariant()
    def row_i_lies_in_slot_i_mod_capacity_of_the_file(self):
        slots = [(self.oldest + i) % self.capacity for i in range(len(self.kept))]
        for dtype, array in rows(self.kept).items():
            file = self.ring._rows[dtype]
            assert isinstance(file, np.memmap) and file.shape == (self.capacity, WIDTHS[dtype])
            np.testing.assert_array_equal(file[slots], array)

    def teardown(self):
        self.folder.cleanup()


def explore(machine, examples):
    run_state_machine_as_test(
        machine,
        settings=settings(
            derandomize=True,
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            database=None,
        ),
    )


def test_any_order_of_calls_leaves_what_a_list_would_hold():
    explore(RingMachine, examples=70)


def test_in_files_any_order_of_calls_leaves_each_row_in_its_slot():
    explore(MappedRingMachine, examples=30)


@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 7])
def test_numbers_pass_2_to_the_31_without_a_gap(capacity):
    # From 2^31 - 3 on: an int32 cursor would turn negative with the third row.
    ring, first = Ring(capacity, WIDTHS), 2**31 - 3
    ring.restart(first)

    for token in range(1, 12):
        ring.add(rows([token]))

        kept = list(range(max(1, token - capacity + 1), token + 1))
        assert (ring.oldest, ring.total) == (first + kept[0] - 1, first + token)
        assert_same(ring.take(np.arange(ring.oldest, ring.total)), rows(kept))


@pytest.mark.parametrize(
    ("first", "total"), [(-1, 0), (3, 2)], ids=["below 0", "fewer than were dropped"]
)
def test_counts_that_cannot_be_are_found(first, total):
    ring = Ring(4, WIDTHS)
    ring.restart(first)
    ring.total = total

    with pytest.raises(AssertionError):
        ring.check_valid()
