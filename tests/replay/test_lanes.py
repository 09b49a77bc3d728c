"""Lanes against plain lists, through any order of calls, and what begins an episode."""

import json
from typing import NamedTuple

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

from jaxrl_async.replay.lanes import Episodes, Lanes
from jaxrl_async.types import CUT, GOES_ON, TERMINATED, TRUNCATED, Chunk, Windows

ROOM = 64
"""Positions of each lane for which there is room at first."""


def add(lanes, rows):
    """Rows (lane, begins, ends) in one call."""
    lane, begins, ends = np.array(rows, int).reshape(-1, 3).T
    lanes.add(lane.astype(np.int32), begins > 0, ends > 0)


def steps(count, lane=0, begins_at=(), ends_at=()):
    return [(lane, i in begins_at, i in ends_at) for i in range(count)]


class Model:
    """Each lane is a list of the numbers of its rows, each episode another; all is kept."""

    def __init__(self, capacity, first=0):
        self.capacity, self.first, self.total = capacity, first, first
        self.lanes = {}  # lane -> numbers of its rows
        self.episodes = {}  # lane -> lists of numbers
        self.has_ended = {}  # lane -> whether the newest of them has

    def add(self, rows):
        for lane, begins, ends in rows:
            episodes = self.episodes.setdefault(lane, [])
            if begins or not episodes or self.has_ended[lane]:
                episodes.append([])
            episodes[-1].append(self.total)
            self.lanes.setdefault(lane, []).append(self.total)
            self.has_ended[lane] = ends
            self.total += 1

    def facts(self):
        """(number, lane, position, begin, kept begin, stop, has ended) of each row kept."""
        found, oldest = {}, max(self.first, self.total - self.capacity)  # row -> the rest
        for lane, rows in self.lanes.items():
            stop = len(rows)
            for nth, episode in enumerate(reversed(self.episodes[lane])):
                begin = stop - len(episode)
                is_open = nth == 0 and not self.has_ended[lane]
                kept = [begin + i for i, row in enumerate(episode) if row >= oldest]
                for position in kept:
                    fact = (lane, position, begin, kept[0], stop, not is_open)
                    found[rows[position]] = fact
                stop = begin
                if len(kept) < len(episode):
                    break
        return [(row, *found[row]) for row in range(oldest, self.total)]


def assert_same(lanes, model):
    lanes.check_valid()
    facts = np.array(model.facts(), int).reshape(-1, 7)
    names = ("lane_of", "position_of", "begin_of", "kept_begin_of", "stop_of", "has_ended")
    ids, shape = facts[:, 0], (1, len(facts), 1)
    for name, expected in zip(names, facts[:, 1:].T, strict=True):
        found = getattr(lanes, name)(ids.reshape(shape))
        np.testing.assert_array_equal(found, expected.reshape(shape), err_msg=name)
    np.testing.assert_array_equal(lanes.at(facts[:, 1], facts[:, 2]), ids)
    for lane, rows in model.lanes.items():
        # Three positions before the first row of all, then all that there ever were.
        position = np.arange(-3, len(rows))
        expected = np.isin(np.append([-1] * 3, rows), ids)
        number = np.full(len(position), lane)
        np.testing.assert_array_equal(lanes.is_kept(number, position), expected)


class LanesMachine(RuleBasedStateMachine):
    @initialize(
        capacity=st.sampled_from([1, 2, 3, 7, 20, 70, 150]), first=st.sampled_from([0, 5, 2**40])
    )
    def make(self, capacity, first):
        self.lanes, self.model = Lanes(capacity, first), Model(capacity, first)
        self.capacity = capacity

    def grow(self, rows):
        rows = rows[: self.capacity]
        add(self.lanes, rows)
        self.model.add(rows)

    @rule(
        rows=st.lists(
            st.tuples(st.integers(0, 3), st.sampled_from([0, 0, 0, 1]), st.sampled_from([0, 0, 1])),
            max_size=8,
        )
    )
    def add_a_few(self, rows):
        self.grow(rows)

    @rule(lane=st.integers(0, 3), count=st.integers(1, 150), data=st.data())
    def add_many_to_one_lane(self, lane, count, data):
        """In chunks, so that a small ring has an episode longer than itself."""
        chunk = data.draw(st.integers(1, 150))
        ends_at = data.draw(st.sets(st.integers(0, count - 1), max_size=2))
        rows = steps(count, lane, ends_at=ends_at)
        chunk = min(chunk, self.capacity)
        for start in range(0, count, chunk):
            self.grow(rows[start : start + chunk])

    @rule(first=st.sampled_from([0, 1, 2**31 - 3]))
    def restart(self, first):
        self.lanes.restart(first)
        self.model = Model(self.capacity, first)

    @invariant()
    def every_row_that_is_kept_knows_its_neighbours(self):
        assert_same(self.lanes, self.model)


def test_any_order_of_calls_leaves_what_lists_would_say():
    run_state_machine_as_test(
        LanesMachine,
        settings=settings(
            derandomize=True,
            max_examples=50,
            stateful_step_count=12,
            deadline=None,
            database=None,
        ),
    )


@pytest.mark.parametrize("capacity", [2, 3, ROOM])
def test_the_end_of_an_episode_longer_than_the_table_leaves_the_next_one_open(capacity):
    # Positions 0 to 63 fill the table; one call then ends the episode at 64 and begins the next at
    # 65, which lies where position 1 lay. Position 1 is of the ended episode, and no longer kept.
    lanes, model = Lanes(capacity), Model(capacity)
    for rows in [*([row] for row in steps(ROOM, begins_at=[0])), steps(2, ends_at=[0])]:
        add(lanes, rows)
        model.add(rows)

    assert not lanes.has_ended(np.array([65])).any()
    assert_same(lanes, model)


@pytest.mark.parametrize("capacity", [ROOM, ROOM + 1, 300])
@pytest.mark.parametrize("chunk", [1, 60])
def test_the_table_grows_to_a_history_of_any_length_and_loses_nothing(capacity, chunk):
    lanes, model = Lanes(capacity), Model(capacity)
    rows = [*steps(3, lane=2), *steps(4 * ROOM, ends_at=[5, 70])]

    for start in range(0, len(rows), chunk):
        add(lanes, rows[start : start + chunk])
        model.add(rows[start : start + chunk])

        assert_same(lanes, model)


def test_a_lane_that_rests_keeps_its_old_rows_while_others_run_on():
    # Lane 1 adds 2 rows, lanes 0 and 2 then 150 of a ring of 100: first both are kept, then none.
    # With 90 more lane 1 needs a wider table when some of them have come around in the narrow one.
    lanes, model = Lanes(capacity=100), Model(capacity=100)
    others = [*steps(1), *steps(1, lane=2)]
    for rows in (steps(2, lane=1), others * 49, others * 26, *[steps(1, lane=1)] * 90):
        add(lanes, rows)
        model.add(rows)

        assert_same(lanes, model)

    # 242 rows, of which 142 to 241 are kept; the newest is of the episode that began the lane.
    newest = np.array([241])
    assert (lanes.begin_of(newest), lanes.kept_begin_of(newest)) == (0, 2)


def test_positions_before_an_episode_and_after_it_are_of_its_neighbours():
    # One lane: 0 1 | 2 3 4 | 5, the second bar because row 5 says that it begins.
    lanes = Lanes(capacity=10)
    add(lanes, steps(6, begins_at=[5], ends_at=[1]))

    ids = np.arange(6)
    np.testing.assert_array_equal(lanes.begin_of(ids), [0, 0, 2, 2, 2, 5])
    np.testing.assert_array_equal(lanes.stop_of(ids), [2, 2, 5, 5, 5, 6])
    np.testing.assert_array_equal(lanes.has_ended(ids), [True] * 5 + [False])


def test_a_row_that_lies_in_another_lane_than_it_says_is_found():
    lanes = Lanes(capacity=10)
    add(lanes, [*steps(3), *steps(3, lane=1)])
    lanes._lane[4] = 0

    with pytest.raises(AssertionError):
        lanes.check_valid()


# ---- episodes ------------------------------------------------------------------------------


class Part(NamedTuple):
    """A chunk: whose, and of each window its lane and how it ends."""

    actor: int
    incarnation: int
    windows: list[tuple[int, int]]


def chunk(part):
    lane, end = np.array(part.windows, int).reshape(-1, 2).T
    windows = Windows(None, lane.astype(np.int32), end.astype(np.uint8))
    return Chunk(windows, part.actor, part.incarnation, 0, (), -1, 0)


def slow(parts):
    """(number, steps of its episode before it) of each window, from all windows before it."""
    seen, found = [], []
    for part in parts:
        for lane, end in part.windows:
            key = (part.actor, lane)
            order = list(dict.fromkeys([*(before[0] for before in seen), key]))
            mine = [before for before in seen if before[0] == key]
            goes_on = mine and mine[-1][1:3] == (part.incarnation, GOES_ON)
            since = mine[-1][3] + 1 if goes_on else 0
            found.append((order.index(key), since))
            seen.append((key, part.incarnation, end, since))
    return found


parts = st.builds(
    Part,
    actor=st.integers(0, 2),
    incarnation=st.integers(0, 1),
    windows=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([GOES_ON] * 4 + [TERMINATED, TRUNCATED, CUT])),
        max_size=6,
    ),
)


@settings(derandomize=True, max_examples=60, deadline=None, database=None)
@given(script=st.lists(parts, max_size=10), saved_after=st.integers(0, 10))
def test_lanes_are_numbered_as_they_come_and_an_end_or_another_incarnation_begins_an_episode(
    script, saved_after
):
    episodes, found = Episodes(), []

    for i, part in enumerate(script):
        if i == saved_after:
            state = json.loads(json.dumps(episodes.state()))
            episodes = Episodes()
            episodes.restore(state)
        found += zip(*(array.tolist() for array in episodes.enter(chunk(part))), strict=True)

    assert found == slow(script)
