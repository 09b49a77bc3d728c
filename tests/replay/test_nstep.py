"""Where discount is made: windows by hand, against a slow oracle, and at every kind of end."""

from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_async.replay.nstep import NStepAccumulator
from jaxrl_async.types import CUT, GOES_ON, TERMINATED, TRUNCATED, Windows, leaves, map_leaves


def add(accumulator, observation, action, reward, terminated, truncated, next_observation):
    """One step of every lane, each argument a list with one number per lane."""
    return accumulator.add(
        np.array(observation, np.float32)[:, None],
        np.array(action, np.float32)[:, None],
        np.array(reward, np.float64),
        np.array(terminated, bool),
        np.array(truncated, bool),
        np.array(next_observation, np.float32)[:, None],
    )


def play(accumulator, rewards, terminated_at=(), truncated_at=()):
    """Steps of one lane: observation t, action 100 + t, next observation t + 1."""
    return [
        add(accumulator, [t], [100 + t], [r], [t in terminated_at], [t in truncated_at], [t + 1])
        for t, r in enumerate(rewards)
    ]


def joined(parts) -> Windows:
    return map_leaves(lambda *arrays: np.concatenate(arrays), *parts)


def column(values):
    return np.array(values, np.float32)[:, None]


# ---- public cases --------------------------------------------------------------------------


def test_a_time_limit_is_no_termination():
    # openai/baselines #436, skrl #449: the value 10 of the last state counts, 1 + .99 * 10.
    accumulator = NStepAccumulator(1, n=1, discount=0.99)

    (windows,) = play(accumulator, [1], truncated_at=[0])

    target = windows.transitions.reward + windows.transitions.discount * 10
    np.testing.assert_allclose(target, [10.9], rtol=1e-6)
    np.testing.assert_array_equal(windows.end, [TRUNCATED])


def test_termination_wins_over_a_time_limit_in_the_same_step():
    # spinningup PR #233: both flags set, so nothing follows, 1 + 0 * 10.
    accumulator = NStepAccumulator(1, n=1, discount=0.99)

    (windows,) = play(accumulator, [1], terminated_at=[0], truncated_at=[0])

    target = windows.transitions.reward + windows.transitions.discount * 10
    np.testing.assert_array_equal(target, [1.0])
    np.testing.assert_array_equal(windows.end, [TERMINATED])


@pytest.mark.parametrize("n", [1, 3])
def test_an_episode_of_one_step_is_stored_with_its_final_observation(n):
    # d3rlpy #98, #18
    accumulator = NStepAccumulator(1, n=n, discount=0.99)

    (windows,) = play(accumulator, [7], terminated_at=[0])

    np.testing.assert_array_equal(windows.transitions.observation, column([0]))
    np.testing.assert_array_equal(windows.transitions.next_observation, column([1]))
    np.testing.assert_array_equal(windows.transitions.reward, [7])
    np.testing.assert_array_equal(windows.transitions.discount, [0])


def test_an_episode_that_ends_once_leaves_one_terminal_item():
    # google/dopamine #228: 8 transitions, only the last of them terminal.
    accumulator = NStepAccumulator(1, n=1, discount=0.99)

    windows = joined(play(accumulator, [1] * 8, terminated_at=[7]))

    np.testing.assert_array_equal(windows.transitions.observation, column(range(8)))
    np.testing.assert_array_equal(windows.transitions.discount == 0, [False] * 7 + [True])
    np.testing.assert_array_equal(windows.end, [GOES_ON] * 7 + [TERMINATED])


def test_a_window_does_not_reach_past_a_truncation():
    # tensorflow/agents #939: gamma .9, rewards 1 2 4 8 16 32, n = 3, truncated at index 2.
    accumulator = NStepAccumulator(1, n=3, discount=0.9)

    steps = play(accumulator, [1, 2, 4, 8, 16, 32], truncated_at=[2])

    # Start 0: 1 + .9 * 2 + .81 * 4 = 6.04, 1: 2 + .9 * 4 = 5.6, 2: 4; all booted from 2's next.
    # Start 3: 8 + .9 * 16 + .81 * 32 = 48.32; its 3 steps are full, so it needs no end.
    assert [len(windows.end) for windows in steps] == [0, 0, 3, 0, 0, 1]
    windows = joined(steps)
    np.testing.assert_array_equal(windows.transitions.observation, column([0, 1, 2, 3]))
    np.testing.assert_allclose(windows.transitions.reward, [6.04, 5.6, 4, 48.32], rtol=1e-6)
    np.testing.assert_allclose(windows.transitions.discount, [0.729, 0.81, 0.9, 0.729], rtol=1e-6)
    np.testing.assert_array_equal(windows.transitions.next_observation, column([3, 3, 3, 6]))
    np.testing.assert_array_equal(windows.end, [GOES_ON, GOES_ON, TRUNCATED, GOES_ON])

    # Start 4: 16 + .9 * 32 = 44.8, after 2 steps .81; start 5: 32, .9.
    cut = accumulator.flush()
    np.testing.assert_array_equal(cut.transitions.observation, column([4, 5]))
    np.testing.assert_allclose(cut.transitions.reward, [44.8, 32], rtol=1e-6)
    np.testing.assert_allclose(cut.transitions.discount, [0.81, 0.9], rtol=1e-6)
    np.testing.assert_array_equal(cut.transitions.next_observation, column([6, 6]))
    np.testing.assert_array_equal(cut.end, [GOES_ON, CUT])


def test_a_window_carries_the_action_of_its_first_step():
    # rainbow-is-all-you-need PR #9
    accumulator = NStepAccumulator(1, n=3, discount=0.9)

    windows = joined(play(accumulator, [1, 1, 1, 1]))

    np.testing.assert_array_equal(windows.transitions.observation, column([0, 1]))
    np.testing.assert_array_equal(windows.transitions.action, column([100, 101]))
    np.testing.assert_array_equal(windows.transitions.next_observation, column([3, 4]))


def test_termination_in_the_middle_of_a_window_ends_it():
    # rlpyt PR #182: n = 3, terminated at index 1, so both windows begun so far are terminal.
    accumulator = NStepAccumulator(1, n=3, discount=0.9)

    steps = play(accumulator, [1, 2, 4, 8], terminated_at=[1])

    windows = joined(steps)  # 1 + .9 * 2, 2
    np.testing.assert_array_equal(windows.transitions.observation, column([0, 1]))
    np.testing.assert_allclose(windows.transitions.reward, [2.8, 2], rtol=1e-6)
    np.testing.assert_array_equal(windows.transitions.discount, [0, 0])
    np.testing.assert_array_equal(windows.transitions.next_observation, column([2, 2]))
    np.testing.assert_array_equal(windows.end, [GOES_ON, TERMINATED])


@pytest.mark.parametrize("n", [1, 2, 3])
def test_an_env_that_returns_one_array_changed_in_place_is_copied(n):
    # gymnasium copy=False, EnvPool: three adds must store 0, 1, 2.
    accumulator = NStepAccumulator(1, n=n, discount=1.0)
    observation, next_observation = np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32)
    action, reward = np.zeros((1, 1), np.float32), np.zeros(1)
    terminated, truncated = np.zeros(1, bool), np.zeros(1, bool)

    parts = []
    for t in range(3):
        observation[:], next_observation[:], action[:], reward[:] = t, t + 1, 10 * t, 1
        terminated[:], truncated[:] = t == 2, False
        parts.append(
            accumulator.add(observation, action, reward, terminated, truncated, next_observation)
        )
    for array in (observation, next_observation, action, reward):
        array[:] = -1

    windows = joined(parts)
    np.testing.assert_array_equal(windows.transitions.observation, column([0, 1, 2]))
    np.testing.assert_array_equal(windows.transitions.action, column([0, 10, 20]))
    # n steps on, or the end of the episode at 3
    expected = [min(t + n, 3) for t in range(3)]
    np.testing.assert_array_equal(windows.transitions.next_observation, column(expected))


def test_flush_bootstraps_from_the_observation_as_it_was_and_not_as_the_env_has_it_now():
    accumulator = NStepAccumulator(1, n=3, discount=0.5)
    reused = np.ones((1, 1), np.float32)
    flags = np.zeros(1, bool)
    accumulator.add(
        np.zeros((1, 1), np.float32), np.zeros((1, 1)), np.ones(1), flags, flags, reused
    )

    reused[:] = -1
    cut = accumulator.flush()

    np.testing.assert_array_equal(cut.transitions.next_observation, column([1]))


# ---- n = 1, flush, drop --------------------------------------------------------------------


def test_windows_of_one_step_are_the_plain_transitions():
    accumulator = NStepAccumulator(2, n=1, discount=0.9)

    windows = add(accumulator, [1, 2], [3, 4], [5, 6], [False, True], [False, False], [7, 8])

    np.testing.assert_array_equal(windows.transitions.observation, column([1, 2]))
    np.testing.assert_array_equal(windows.transitions.action, column([3, 4]))
    np.testing.assert_array_equal(windows.transitions.reward, np.array([5, 6], np.float32))
    np.testing.assert_array_equal(windows.transitions.discount, np.array([0.9, 0], np.float32))
    np.testing.assert_array_equal(windows.transitions.next_observation, column([7, 8]))
    np.testing.assert_array_equal(windows.lane, [0, 1])
    np.testing.assert_array_equal(windows.end, [GOES_ON, TERMINATED])
    assert len(accumulator.flush().end) == 0


def test_dtypes_are_those_that_the_messages_promise():
    accumulator = NStepAccumulator(1, n=1, discount=0.9)

    (windows,) = play(accumulator, [1])

    assert windows.transitions.reward.dtype == windows.transitions.discount.dtype == np.float32
    assert (windows.lane.dtype, windows.end.dtype) == (np.int32, np.uint8)


def test_flush_cuts_every_lane_and_begins_anew():
    # Gamma .5, n = 3, two steps in both lanes: per lane 1 + .5 * 2 with .25, then 2 with .5.
    accumulator = NStepAccumulator(2, n=3, discount=0.5)
    for t in range(2):
        add(accumulator, [t, 10 + t], [0, 0], [t + 1] * 2, [0, 0], [0, 0], [t + 1, 11 + t])

    cut = accumulator.flush()

    np.testing.assert_array_equal(cut.transitions.observation, column([0, 1, 10, 11]))
    np.testing.assert_array_equal(cut.transitions.reward, [2, 2, 2, 2])
    np.testing.assert_array_equal(cut.transitions.discount, [0.25, 0.5, 0.25, 0.5])
    np.testing.assert_array_equal(cut.transitions.next_observation, column([2, 2, 12, 12]))
    np.testing.assert_array_equal(cut.lane, [0, 0, 1, 1])
    np.testing.assert_array_equal(cut.end, [GOES_ON, CUT, GOES_ON, CUT])
    assert len(accumulator.flush().end) == 0

    # What is added next starts windows of its own: 1 + .5 * 1 + .25 * 1, none from before.
    windows = joined(play_lanes(accumulator, steps=3))
    np.testing.assert_array_equal(windows.transitions.reward, [1.75, 1.75])
    np.testing.assert_array_equal(windows.transitions.observation, column([0, 0]))


def play_lanes(accumulator, steps):
    """The same steps, of reward 1, in both lanes."""
    return [
        add(accumulator, [t, t], [0, 0], [1, 1], [0, 0], [0, 0], [t + 1, t + 1])
        for t in range(steps)
    ]


def test_flush_before_anything_was_added_is_refused():
    with pytest.raises(RuntimeError, match="nothing was added yet"):
        NStepAccumulator(1, n=3, discount=0.9).flush()


@pytest.mark.parametrize("lanes", [np.array([0]), np.array([True, False])], ids=["index", "mask"])
def test_dropped_windows_never_come_out_and_other_lanes_keep_theirs(lanes):
    accumulator = NStepAccumulator(2, n=3, discount=0.5)
    play_lanes(accumulator, steps=2)

    accumulator.drop(lanes)
    third = add(accumulator, [70, 2], [0, 0], [1, 1], [0, 0], [0, 0], [71, 3])
    fourth = add(accumulator, [71, 3], [0, 0], [1, 1], [0, 0], [0, 0], [72, 4])
    fifth = add(accumulator, [72, 4], [0, 0], [1, 1], [0, 0], [0, 0], [73, 5])

    # Lane 1 goes on: starts 0, 1, 2. Lane 0 has its first window from 70 on, three steps later.
    np.testing.assert_array_equal(third.lane, [1])
    np.testing.assert_array_equal(fourth.lane, [1])
    np.testing.assert_array_equal(fifth.lane, [0, 1])
    np.testing.assert_array_equal(fifth.transitions.observation, column([70, 2]))
    np.testing.assert_array_equal(fifth.transitions.reward, [1.75, 1.75])  # 1 + .5 + .25
    np.testing.assert_array_equal(fifth.transitions.next_observation, column([73, 5]))


# ---- lanes ---------------------------------------------------------------------------------


def test_windows_of_one_lane_come_in_order_of_time_whatever_slot_they_lie_in():
    # n = 3. An episode of 5 steps ends with starts 2, 3, 4 open, in slots 2, 0, 1.
    accumulator = NStepAccumulator(1, n=3, discount=0.5)

    for last in (5, 4, 3, 6):
        steps = play(accumulator, [1] * (last + 1), terminated_at=[last])

        starts = [step.transitions.observation[:, 0].tolist() for step in steps]
        assert starts == [[], [], *([t] for t in range(last - 2)), [last - 2, last - 1, last]]


class Step(NamedTuple):
    """One step of one lane."""

    reward: int
    terminated: bool
    truncated: bool


def oracle(script, gamma: Fraction, n: int, lane: int):
    """All windows of one lane, by walking forward from each of its steps; slow and obvious.

    Returns tuples (start, end of window, reward, discount, end flag), in the order of starts.
    """
    found = []
    for start in range(len(script)):
        reward, factor, flag = Fraction(0), Fraction(1), CUT
        for t in range(start, min(start + n, len(script))):
            reward += factor * script[t].reward
            factor *= gamma
            stop = t
            if script[t].terminated or script[t].truncated:
                flag = TERMINATED if script[t].terminated else TRUNCATED
                break
        else:
            if stop - start + 1 == n:
                flag = GOES_ON
        found.append((start, stop, reward, Fraction(0) if flag == TERMINATED else factor, flag))
    # All windows that an end closes come out at once, and only the last of them carries it.
    return [
        (lane, *row[:4], row[4] if i + 1 == len(found) or found[i + 1][1] > row[1] else GOES_ON)
        for i, row in enumerate(found)
    ]


def run_script(scripts, gamma, n):
    """Steps all lanes together, then flushes; observation of lane l at step t is 1000 l + t."""
    accumulator = NStepAccumulator(len(scripts), n, gamma)
    offsets = 1000 * np.arange(len(scripts))
    parts = [
        add(
            accumulator,
            offsets + t,
            -(offsets + t),
            [step.reward for step in steps],
            [step.terminated for step in steps],
            [step.truncated for step in steps],
            offsets + t + 1,
        )
        for t, steps in enumerate(zip(*scripts, strict=True))
    ]
    return joined([*parts, accumulator.flush()])


def of_lane(windows, lane):
    return map_leaves(lambda leaf: leaf[windows.lane == lane], windows)


steps = st.builds(
    Step,
    reward=st.integers(-100, 100),
    terminated=st.sampled_from([False] * 5 + [True]),
    truncated=st.sampled_from([False] * 5 + [True]),
)


@settings(derandomize=True, max_examples=60, deadline=None, database=None)
@given(
    n=st.integers(1, 10),
    gamma=st.sampled_from([0.5, 0.99, 1.0, 0.0]),
    scripts=st.integers(1, 25).flatmap(
        lambda length: st.lists(
            st.lists(steps, min_size=length, max_size=length), min_size=4, max_size=4
        )
    ),
)
def test_any_script_of_four_lanes_gives_the_windows_of_the_slow_oracle(n, gamma, scripts):
    windows = run_script(scripts, gamma, n)

    for lane, script in enumerate(scripts):
        ours = of_lane(windows, lane)
        expected = oracle(script, Fraction(gamma), n, lane)
        start, stop = (np.array([row[i] for row in expected]) for i in (1, 2))
        reward, discount = ([float(row[i]) for row in expected] for i in (3, 4))
        np.testing.assert_array_equal(ours.transitions.observation, column(1000 * lane + start))
        np.testing.assert_array_equal(ours.transitions.action, column(-(1000 * lane + start)))
        np.testing.assert_array_equal(
            ours.transitions.next_observation, column(1000 * lane + stop + 1)
        )
        # float64 sums, rounded once to float32: half a unit in the last place, 2^-24
        np.testing.assert_allclose(ours.transitions.reward, reward, rtol=6e-8, atol=1e-11)
        np.testing.assert_allclose(ours.transitions.discount, discount, rtol=6e-8, atol=0)
        np.testing.assert_array_equal(ours.end, [row[5] for row in expected])


@settings(derandomize=True, max_examples=20, deadline=None, database=None)
@given(
    n=st.integers(1, 10),
    scripts=st.lists(st.lists(steps, min_size=20, max_size=20), min_size=2, max_size=4),
)
def test_a_lane_gives_the_same_bits_alone_and_among_others(n, scripts):
    together = run_script(scripts, 0.99, n)

    for lane, script in enumerate(scripts):
        alone = run_script([script], 0.99, n)
        among = of_lane(together, lane)
        shifted = among.transitions._replace(
            observation=among.transitions.observation - 1000 * lane,
            action=among.transitions.action + 1000 * lane,
            next_observation=among.transitions.next_observation - 1000 * lane,
        )
        for ours, theirs in zip(leaves(shifted), leaves(alone.transitions), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(among.end, alone.end)


# ---- trees ---------------------------------------------------------------------------------


def test_dict_observations_discrete_actions_and_extras_keep_names_and_dtypes():
    accumulator = NStepAccumulator(2, n=2, discount=0.5)
    flags = np.zeros(2, bool)

    def observation(t):
        camera = np.full((2, 3, 3), t, np.uint8)
        return {"camera": camera, "joints": {"q": np.full((2, 4), t / 2, np.float32)}}

    parts = []
    for t in range(3):
        action = np.array([t, 10 + t], np.int32)
        extras = (np.full((2, 5), t, np.float32), {"age": np.full(2, t, np.int32)})
        parts.append(
            accumulator.add(
                observation(t), action, np.ones(2), flags, flags, observation(t + 1), extras
            )
        )

    # Windows start at 0 and 1, are 2 steps long, and so boot from 2 and 3; extras are the start's.
    windows = joined(parts)
    np.testing.assert_array_equal(windows.lane, [0, 1, 0, 1])
    t = windows.transitions
    np.testing.assert_array_equal(t.observation["camera"][:, 0, 0], [0, 0, 1, 1])
    np.testing.assert_array_equal(t.observation["joints"]["q"][:, 3], [0, 0, 0.5, 0.5])
    np.testing.assert_array_equal(t.next_observation["camera"][:, 2, 2], [2, 2, 3, 3])
    np.testing.assert_array_equal(t.action, [0, 10, 1, 11])
    np.testing.assert_array_equal(t.extras[0][:, 4], [0, 0, 1, 1])
    np.testing.assert_array_equal(t.extras[1]["age"], [0, 0, 1, 1])
    assert (t.observation["camera"].dtype, t.observation["camera"].shape) == ("uint8", (4, 3, 3))
    assert (t.action.dtype, t.extras[1]["age"].dtype) == ("int32", "int32")


def test_agents_without_a_carry_have_no_extras():
    accumulator = NStepAccumulator(1, n=2, discount=0.5)

    windows = joined(play(accumulator, [1, 1, 1]))

    assert windows.transitions.extras == ()
