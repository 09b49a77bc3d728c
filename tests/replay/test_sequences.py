"""Sequences against lists of episodes: which starts are drawn, and what comes with them."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_async.checks import ConfigError
from jaxrl_async.replay.nstep import NStepAccumulator
from jaxrl_async.replay.prioritized import Prioritized
from jaxrl_async.replay.replay import Replay
from jaxrl_async.replay.sequences import SequenceStore
from jaxrl_async.replay.uniform import Uniform
from jaxrl_async.types import (
    GOES_ON,
    TERMINATED,
    TRUNCATED,
    ArraySpec,
    Chunk,
    EnvSpec,
    Layout,
    Transition,
    Windows,
    leaves,
    map_leaves,
)

CARRY = (ArraySpec((2,), "float32"), {"age": ArraySpec((), "int32")})
LAYOUT = Layout(EnvSpec(ArraySpec((1,), "float32"), 2, discrete=True), CARRY)
both_samplers = pytest.mark.parametrize("sampler", ["uniform", "prioritized"])


def make_replay(capacity, length, period=1, sampler="uniform"):
    store = SequenceStore(capacity, LAYOUT, length=length, period=period)
    draws = Uniform()
    if sampler == "prioritized":
        draws = Prioritized(capacity, exponent=0.5, importance=lambda _: 0.4)
    return Replay(store, draws, np.random.SeedSequence(0))


def transitions(numbers):
    """Every field says the number of the step."""
    t = np.array(numbers, np.int32)
    wide = np.stack([t, -t], -1).astype("f")
    return Transition(
        wide[..., :1],
        t,
        10 + t.astype("f"),
        t.astype("f") / 2,
        1 + wide[..., :1],
        (wide, {"age": t}),
    )


class Step(NamedTuple):
    lane: int = 0
    end: int = GOES_ON


class Model:
    """Each episode is the list of the numbers of its steps, which are those of their rows."""

    def __init__(self):
        self.total, self.episodes, self.open = 0, [], {}

    def chunk(self, steps, actor=0, incarnation=0):
        """Takes up the steps, and gives the message that says so."""
        numbers = range(self.total, self.total + len(steps))
        self.total += len(steps)
        for number, (lane, end) in zip(numbers, steps, strict=True):
            key = (actor, lane)
            if self.open.get(key, (None,))[0] != incarnation:
                self.episodes.append([])
                self.open[key] = (incarnation, self.episodes[-1])
            self.open[key][1].append(number)
            if end:
                del self.open[key]
        lane, end = np.array(steps, int).reshape(-1, 2).T
        windows = Windows(transitions(numbers), lane.astype(np.int32), end.astype(np.uint8))
        return Chunk(windows, actor, incarnation, len(steps), (), -1, 0)

    def sequences(self, capacity, length, period):
        """Number of the first step -> numbers of all."""
        found = {}
        for episode in self.episodes:
            for start in range(0, len(episode) - length + 1, period):
                if episode[start] >= self.total - capacity:
                    found[episode[start]] = episode[start : start + length]
        return dict(sorted(found.items()))


def assert_same(found, numbers):
    """Bit by bit, with dtypes."""
    for ours, theirs in zip(leaves(found), leaves(transitions(numbers)), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def assert_holds(replay, model, length, period=1):
    replay.check_valid()
    sequences = model.sequences(replay.capacity, length, period)
    if not sequences:
        with pytest.raises(ValueError, match=r"(can be drawn|empty replay).*"):
            replay.sample(1, 1)
        return
    assert_same(replay.contents(), list(sequences.values()))
    sample = replay.sample(2, 300)
    # At most 25 items: one is missed uniformly with a chance of 25 (24/25)^600, below 10^-9.
    assert sorted(set(sample.ids.ravel().tolist())) == list(sequences)
    expected = np.array([sequences[i] for i in sample.ids.ravel().tolist()])
    assert_same(LAYOUT.unpack(sample.rows), expected.reshape(2, 300, length))
    replay.update_priorities(sample.ids, 1 + np.arange(600).reshape(2, 300) % 7 / 7)


ends = st.sampled_from([GOES_ON] * 8 + [TERMINATED, TRUNCATED])
parts = st.tuples(
    st.integers(0, 1),
    st.sampled_from([0] * 6 + [1]),
    st.lists(st.builds(Step, lane=st.integers(0, 1), end=ends), max_size=6),
)


@both_samplers
@settings(derandomize=True, max_examples=40, deadline=None, database=None)
@given(
    length=st.integers(1, 4),
    period=st.integers(1, 4),
    capacity=st.integers(6, 25),
    script=st.lists(parts, min_size=1, max_size=14),
)
def test_every_sequence_is_of_consecutive_steps_of_one_actor_lane_and_episode(
    sampler, length, period, capacity, script
):
    period = min(period, length)
    replay, model = make_replay(capacity, length, period, sampler), Model()
    incarnation = [0, 0]

    for actor, fault, some in script:
        incarnation[actor] += fault
        replay.add(model.chunk(some, actor, incarnation[actor]))

        assert_holds(replay, model, length, period)


@settings(derandomize=True, max_examples=40, deadline=None, database=None)
@given(
    length=st.integers(1, 4),
    period=st.integers(1, 4),
    capacity=st.integers(6, 25),
    script=st.lists(parts, min_size=1, max_size=14),
)
def test_steps_make_those_sequences_drawable_that_they_complete(length, period, capacity, script):
    period = min(period, length)
    store, model = SequenceStore(capacity, LAYOUT, length=length, period=period), Model()

    for actor, incarnation, some in script:
        first = model.total
        found = store.append(store.pack(model.chunk(some, actor, incarnation)))

        kept = model.sequences(capacity, length, period)
        assert sorted(found.tolist()) == [i for i, rows in kept.items() if rows[-1] >= first]


def test_what_is_completed_when_its_first_step_is_overwritten_is_no_sequence():
    # Two steps of lane 0 with five of lane 1 between them, in a ring of 4: row 4, which a sequence
    # of lane 1 starts with, lies where row 0 lay.
    store, model = SequenceStore(4, LAYOUT, length=2), Model()
    found = [
        store.append(store.pack(model.chunk([Step(lane)]))).tolist()
        for lane in (0, 1, 1, 1, 1, 1, 0)
    ]

    assert found == [[], [], [1], [2], [3], [4], []]


def filled(steps, capacity, length, period=1):
    replay, model = make_replay(capacity, length, period), Model()
    for step in steps:
        replay.add(model.chunk([step]))
    return replay, model


def starts(replay):
    return sorted(set(replay.sample(1, 500).ids.ravel().tolist()))


@pytest.mark.parametrize("length", range(1, 6))
def test_an_episode_of_five_steps_has_one_start_for_each_place_of_a_sequence(length):
    # pytorch/rl #1774: the last of L - T + 1 starts was never drawn. 5, 4, 3, 2 and 1 of them.
    replay, _ = filled([Step()] * 4 + [Step(0, TRUNCATED)], capacity=9, length=length)

    assert starts(replay) == list(range(5 - length + 1))


def test_of_two_steps_both_are_a_sequence_of_one():
    # pytorch/rl #1774
    replay, _ = filled([Step(), Step(0, TERMINATED)], capacity=9, length=1)

    assert starts(replay) == [0, 1]


def of_trajectories(names):
    """One lane, where an episode ends before another name comes."""
    return [
        Step(0, TERMINATED if after != name else GOES_ON)
        for name, after in zip(names, [*names[1:], names[-1]], strict=True)
    ]


def test_the_last_step_written_and_the_first_slot_are_no_neighbours():
    # pytorch/rl #2208: 10 of 20 slots, T = 3. Only trajectories 1 and 2 have three steps.
    replay, _ = filled(of_trajectories([3, 3, 0, 1, 1, 1, 2, 2, 2, 3]), capacity=20, length=3)

    assert starts(replay) == [3, 6]


def test_a_sequence_may_lie_on_the_seam_of_a_full_ring():
    # The same slots, but full: rows 2 to 11 in a ring of 10, so trajectory 3 is slots 9, 0 and 1.
    replay, model = filled(
        of_trajectories([8, 9, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]), capacity=10, length=3
    )

    assert starts(replay) == [3, 6, 9]
    assert_holds(replay, model, length=3)


@pytest.mark.parametrize(
    ("period", "expected"), [(1, [6, 7, 8, 9]), (2, [6, 8]), (3, [6, 9]), (4, [8])]
)
def test_starts_are_a_period_apart_from_where_their_episode_began(period, expected):
    # 13 steps of one episode, of which 6 to 12 are kept; T = 4. Overlaps of 3, 2, 1 and 0 steps.
    replay, _ = filled([Step()] * 13, capacity=7, length=4, period=period)

    assert starts(replay) == expected


@pytest.mark.parametrize(("length", "period"), [(4, 5), (8, 1), (0, 0), (4, 0)])
def test_sequences_that_would_never_fit_are_refused_with_the_remedy(length, period):
    with pytest.raises(ConfigError, match="use 1 <= period <= length <= capacity"):
        make_replay(7, length, period)


@pytest.mark.parametrize("terminates", [True, False])
def test_only_the_last_step_of_an_episode_can_be_terminal_and_each_has_its_own_carry(terminates):
    # Gamma .9: .9 at each step that something follows, 0 where nothing does.
    accumulator, replay = NStepAccumulator(1, n=1, discount=0.9), make_replay(9, length=3)
    for t in range(3):
        ends, carry = np.array([t == 2]), (np.full((1, 2), t, "f"), {"age": np.array([t])})
        observation, action = np.full((1, 1), t, "f"), np.zeros(1, np.int32)
        windows = accumulator.add(
            observation,
            action,
            np.ones(1),
            ends & terminates,
            ends & (not terminates),
            observation + 1,
            carry,
        )
        replay.add(Chunk(windows, 0, 0, 1, (), -1, 0))

    sequence = map_leaves(lambda leaf: leaf[0], replay.contents())

    expected = np.array([0.9, 0.9, 0.0 if terminates else 0.9], np.float32)
    np.testing.assert_array_equal(sequence.discount, expected)
    np.testing.assert_array_equal(sequence.extras[0], [[0, 0], [1, 1], [2, 2]])
    np.testing.assert_array_equal(sequence.extras[1]["age"], [0, 1, 2])
    np.testing.assert_array_equal(sequence.next_observation, [[1], [2], [3]])


@both_samplers
@pytest.mark.parametrize("period", [1, 3])
@pytest.mark.parametrize("most_bytes", [1, 300, 2**20])
def test_a_replay_of_saved_rows_draws_the_same_and_goes_on_with_the_same_episodes(
    sampler, period, most_bytes
):
    # The oldest row kept is in the middle of an episode: its period goes on from where that began.
    replay, model = make_replay(20, 4, period, sampler), Model()
    for t in range(40):
        ended = TERMINATED if t in (8, 31) else GOES_ON
        replay.add(model.chunk([Step(0, ended), Step(1)], actor=t % 2))
    replay.update_priorities(replay.sample(1, 4).ids, np.array([[9.0, 1, 2, 3]]))
    state, again = replay.state(), make_replay(20, 4, period, sampler)

    start, stop = state["rows"] - 20, state["rows"]
    again.restart(start)
    while start < stop:
        start, rows = replay.rows(start, stop, most_bytes)
        again.append(rows)
        start += len(rows["int32"])
    again.restore(state)

    for t in range(12):
        for one in (again, replay):
            assert_holds(one, model, 4, period)
        for a, b in zip(leaves(again.sample(2, 9)), leaves(replay.sample(2, 9)), strict=True):
            np.testing.assert_array_equal(a, b)
        added = model.chunk([Step(t % 2), Step(1)], actor=t % 2)
        for one in (again, replay):
            one.add(added)


@both_samplers
def test_after_a_restart_only_what_came_since_is_drawn(sampler):
    replay, model = make_replay(20, 2, sampler=sampler), Model()
    replay.add(model.chunk([Step()] * 20))

    replay.restart(20)
    replay.add(model.chunk([Step()] * 3, incarnation=1))

    # Rows 20, 21 and 22: two sequences of two steps.
    assert set(replay.sample(1, 200).ids.ravel().tolist()) == {20, 21}
