"""Other goals than the wanted one: which are taken, what follows from them, and what stays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_async.checks import ConfigError
from jaxrl_async.replay.hindsight import HindsightStore
from jaxrl_async.replay.prioritized import Prioritized
from jaxrl_async.replay.replay import Replay
from jaxrl_async.replay.uniform import Uniform
from jaxrl_async.types import (
    GOES_ON,
    TERMINATED,
    TRUNCATED,
    ArraySpec,
    Chunk,
    EnvSpec,
    Transition,
    Windows,
    leaves,
    map_leaves,
)

GOAL = ArraySpec((2,), "float32")
SPEC = EnvSpec(
    (("achieved_goal", GOAL), ("desired_goal", GOAL), ("observation", ArraySpec((1,), "float32"))),
    action_size=9,
    discrete=True,
)
GAMMA = 0.9
STRATEGIES = ["future", "final", "episode"]


def compute_reward(achieved, desired, info):
    assert achieved.shape == desired.shape == (len(achieved), 2)
    assert info == {}
    return 1 - np.abs(achieved - desired)[:, 0]


def compute_terminated(achieved, desired, info):
    return np.array_equal(achieved, desired)


def make_replay(capacity, strategy="future", share=1.0, sampler="uniform", **changes):
    functions = {"compute_reward": compute_reward, "compute_terminated": compute_terminated}
    store = HindsightStore(
        capacity, SPEC, strategy=strategy, share=share, discount=GAMMA, **functions | changes
    )
    draws = Uniform()
    if sampler == "prioritized":
        draws = Prioritized(capacity, exponent=0.5, importance=lambda _: 0.4)
    return Replay(store, draws, np.random.SeedSequence(0))


def as_goal(number):
    return np.stack([number, -number], -1).astype("f")


class Model:
    """The steps ever taken, by number, which is that of their row; each state has a number too."""

    def __init__(self):
        self.states = 0
        self.before, self.after, self.ends, self.episode_of = [], [], [], []
        self.episodes, self.open = [], {}  # lists of steps

    def chunk(self, steps, actor=0, incarnation=0):
        """Takes up the steps, (lane, end) each, and gives the message that says so."""
        first = len(self.ends)
        for number, (lane, end) in enumerate(steps, first):
            key, is_new = (actor, lane), self.open.get((actor, lane), (None,))[0] != incarnation
            if is_new:
                self.episodes.append([])
                self.open[key] = (incarnation, len(self.episodes) - 1)
                self.states += 1
            episode = self.open[key][1]
            self.before.append(self.states if is_new else self.after[self.episodes[episode][-1]])
            self.states += 1
            self.after.append(self.states)
            self.ends.append(end)
            self.episode_of.append(episode)
            self.episodes[episode].append(number)
            if end:
                del self.open[key]
        lane, end = np.array(steps, int).reshape(-1, 2).T
        added = self.own(np.arange(first, len(self.ends)))
        windows = Windows(added, lane.astype(np.int32), end.astype(np.uint8))
        return Chunk(windows, actor, incarnation, len(steps), (), -1, 0)

    def own(self, ids, goal=None):
        """Steps ``ids`` as they were added, or with other goals, all numbers of states."""
        before, after, end = (np.array(of)[ids] for of in (self.before, self.after, self.ends))
        wanted = as_goal(-1.0 - ids if goal is None else goal)
        reward, over = 1000 + ids, end == TERMINATED
        if goal is not None:
            reward, over = 1 - np.abs(after - goal), after == goal
        return Transition(
            self.observation(before, wanted, ids),
            ids.astype(np.int32),
            reward.astype("f"),
            np.where(over, 0, GAMMA).astype("f"),
            self.observation(after, wanted, ids + 0.5),
        )

    def observation(self, state, wanted, number):
        number = number[..., None].astype("f")
        return {"achieved_goal": as_goal(state), "desired_goal": wanted, "observation": number}

    def goals(self, number, strategy, oldest):
        """Those that a step may be given; none if it keeps its own."""
        mine = self.episodes[self.episode_of[number]]
        is_open = self.episode_of[number] in [episode for _, episode in self.open.values()]
        if strategy == "final":
            return [] if is_open else [self.after[mine[-1]]]
        first = number if strategy == "future" else oldest
        return [self.after[step] for step in mine if step >= first]


def drawn(replay, draws=300):
    """Ids, transitions, and the goals' numbers, which are below 0 for the own ones."""
    sample = replay.sample(1, draws)
    found = map_leaves(lambda leaf: leaf[0], replay._store.layout.unpack(sample.rows))
    return sample.ids[0], found, found.observation["desired_goal"][:, 0].astype(int)


def assert_same(found, expected):
    for ours, theirs in zip(leaves(found), leaves(expected), strict=True):
        assert (ours.dtype, ours.tobytes()) == (theirs.dtype, theirs.tobytes())


def assert_holds(replay, model, strategy, keeps_some=False):
    """Bit by bit: what was added, except for the goals and what follows from them."""
    replay.check_valid()
    ids, found, goal = drawn(replay)
    allowed = {i: model.goals(i, strategy, replay._store.ring.oldest) for i in np.unique(ids)}
    for i, g in zip(ids, goal, strict=True):
        assert g in allowed[i] or (g < 0 and (keeps_some or not allowed[i]))
    for is_own in (True, False):
        some = (goal < 0) == is_own
        expected = model.own(ids[some], None if is_own else goal[some])
        assert_same(map_leaves(lambda leaf, some=some: leaf[some], found), expected)


def played(capacity, lengths, strategy, **changes):
    """After episodes of one lane, added step by step."""
    replay, model = make_replay(capacity, strategy, **changes), Model()
    for length in lengths:
        for t in range(length):
            replay.add(model.chunk([(0, TERMINATED if t + 1 == length else GOES_ON)]))
    return replay, model


def goals_by_step(replay):
    ids, _, goal = drawn(replay, 3000)
    return {i: sorted(set(goal[ids == i].tolist())) for i in np.unique(ids).tolist()}


ends = st.sampled_from([GOES_ON] * 6 + [TERMINATED, TRUNCATED])
parts = st.tuples(
    st.integers(0, 1),
    st.sampled_from([0] * 6 + [1]),
    st.lists(st.tuples(st.integers(0, 1), ends), min_size=1, max_size=6),
)


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(derandomize=True, max_examples=25, deadline=None, database=None)
@given(capacity=st.integers(6, 20), script=st.lists(parts, min_size=1, max_size=12))
def test_goals_are_of_the_same_actor_lane_and_episode_and_all_else_is_as_it_was(
    strategy, capacity, script
):
    replay, model, incarnation = make_replay(capacity, strategy), Model(), [0, 0]

    for actor, fault, some in script:
        incarnation[actor] += fault
        replay.add(model.chunk(some, actor, incarnation[actor]))

        assert_holds(replay, model, strategy)


def test_the_final_goal_is_the_last_state_and_not_the_one_before():
    # stable-baselines3 #847: of the states s0 s1 s2 s3, here 1 to 4, s2 was taken.
    replay, model = played(9, [3], "final")

    assert goals_by_step(replay) == {0: [4], 1: [4], 2: [4]}
    contents = replay.contents()
    np.testing.assert_array_equal(contents.reward, [-1, 0, 1])
    np.testing.assert_array_equal(contents.discount, np.array([0.9, 0.9, 0], np.float32))
    assert_holds(replay, model, "final")


def test_an_episode_that_goes_on_has_no_final_goal_yet():
    replay, model = make_replay(9, "final"), Model()
    replay.add(model.chunk([(0, GOES_ON), (1, GOES_ON), (1, TRUNCATED)]))

    # Step 0 keeps its own, -1; the other lane has the states 3, 4, 5.
    assert goals_by_step(replay) == {0: [-1], 1: [5], 2: [5]}


def test_future_goals_are_those_of_the_step_and_after_it_when_the_ring_has_wrapped():
    # tianshou #811: a ring of 15, two episodes of 10, so 5 to 19 are kept. The first has the states
    # 1 to 11 and the second 12 to 22, and step t leads to state t + 2, from 10 on to t + 3.
    replay, _ = played(15, [10, 10], "future")

    found = goals_by_step(replay)

    first = {t: list(range(t + 2, 12)) for t in range(5, 10)}
    assert found == first | {t: list(range(t + 3, 23)) for t in range(10, 20)}


def test_goals_of_an_episode_are_those_of_its_steps_that_are_still_kept():
    # As above: of the first episode steps 5 to 9 are kept, which led to 7 to 11.
    replay, _ = played(15, [10, 10], "episode")

    found = goals_by_step(replay)

    first, second = list(range(7, 12)), list(range(13, 23))
    assert found == dict.fromkeys(range(5, 10), first) | dict.fromkeys(range(10, 20), second)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_with_a_share_of_0_all_is_as_it_was_added_and_with_1_nothing_keeps_its_goal(strategy):
    replay, model = played(15, [10, 10], strategy, share=0.0)

    ids, found, _ = drawn(replay)

    assert_same(found, model.own(ids))
    assert (drawn(played(15, [10, 10], strategy)[0])[2] > 0).all()


def test_a_share_of_the_items_drawn_gets_another_goal():
    # 8,000 of 10,000 draws; the standard deviation is sqrt(10,000 * .8 * .2) = 40: five of these.
    replay, model = played(15, [10, 10], "future", share=0.8)

    _, _, goal = drawn(replay, 10_000)

    assert 8_000 - 200 < np.count_nonzero(goal > 0) < 8_000 + 200
    assert_holds(replay, model, "future", keeps_some=True)


def test_where_the_env_computes_no_termination_the_step_keeps_its_own():
    replay, model = played(9, [3], "final", compute_terminated=None)

    contents = replay.contents()

    assert_same(contents.discount, model.own(np.arange(3)).discount)
    np.testing.assert_array_equal(contents.reward, [-1, 0, 1])


@pytest.mark.parametrize(
    ("wrong", "shape"),
    [(lambda a, d, i: np.zeros((len(a), 1)), r"\[4, 1\]"), (lambda a, d, i: 0.0, r"\[\]")],
    ids=["a column", "one for all"],
)
def test_rewards_that_are_not_one_for_each_row_are_refused_with_the_remedy(wrong, shape):
    replay, _ = played(9, [3], "final", compute_reward=wrong)

    message = rf"compute_reward gave {shape} for goals \[4, 2\]: make it give one reward for each"
    with pytest.raises(ValueError, match=message):
        replay.sample(1, 4)


def test_an_observation_without_goals_is_refused_with_the_remedy():
    spec = SPEC._replace(observation=SPEC.observation[1:])

    with pytest.raises(ConfigError, match="use an env whose observation is a Dict with achieved"):
        HindsightStore(
            9, spec, strategy="final", share=1.0, discount=GAMMA, compute_reward=compute_reward
        )


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_episodes_stay_apart_when_old_ones_are_overwritten_and_when_the_rows_are_saved(
    strategy, sampler
):
    # stable-baselines3 #234, an IndexError once the ring is full; #1542, episodes of 7 that were 10
    # long after loading. 135 steps in a ring of 100, so the newest episode has 2 steps, then more.
    replay, model = played(100, [7] * 19, strategy, sampler=sampler)
    replay.add(model.chunk([(0, GOES_ON)] * 2))
    state, again = replay.state(), make_replay(100, strategy, sampler=sampler)

    again.restart(35)
    again.append(replay.rows(0, 80, 2**20)[1])
    again.append(replay.rows(80, 135, 2**20)[1])
    again.restore(state)

    for t in range(40):
        for a, b in zip(leaves(again.sample(2, 9)), leaves(replay.sample(2, 9)), strict=True):
            np.testing.assert_array_equal(a, b)
        if t % 5 == 0:
            for one in (again, replay):
                assert_holds(one, model, strategy)
        added = model.chunk([(0, TERMINATED if t % 7 == 4 else GOES_ON)])
        for one in (again, replay):
            one.add(added)
    assert max(map(len, model.episodes)) == 7
