"""Single frames against whole stacks: what is drawn is what was added, and nothing of others."""

from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_async.checks import ConfigError
from jaxrl_async.replay.frames import FrameStore
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

STACK = 3
SPECS = {
    (axis, discrete): EnvSpec(ArraySpec(shape, "uint8"), 2, discrete)
    for axis, shape in ((0, (3, 1, 2)), (2, (1, 2, 3)))
    for discrete in (False, True)
}
FIRST = SPECS[0, True]
both_samplers = pytest.mark.parametrize("sampler", ["uniform", "prioritized"])


def make_replay(capacity, spec=FIRST, n=1, gamma=0.5, sampler="uniform", stack=STACK):
    store = FrameStore(capacity, spec, stack=stack, n_step=n, discount=gamma)
    draws = Uniform()
    if sampler == "prioritized":
        draws = Prioritized(capacity, exponent=0.5, importance=lambda _: 0.4)
    return Replay(store, draws, np.random.SeedSequence(0))


class Step(NamedTuple):
    lane: int = 0
    reward: int = 0
    end: int = GOES_ON


class Episode:
    def __init__(self, incarnation):
        self.incarnation = incarnation
        self.frames, self.rows = [], []  # of the first observation, then one for each step
        self.steps, self.actions = [], []


class Model:
    """Every frame of every episode, by a number of its own, and the row it would lie in."""

    def __init__(self, spec=FIRST):
        self.axis = 0 if spec.observation.shape[0] == STACK else 2
        self.discrete = spec.discrete
        self.rows = 0
        self.episodes, self.open = [], {}

    def _grow(self, episode):
        self.rows += 1
        episode.frames.append(self.rows)
        episode.rows.append(self.rows - 1)

    def stack(self, frames):
        return np.stack([np.array([[f >> 8, f % 256]], np.uint8) for f in frames], self.axis)

    def action(self, number):
        return np.int32(number) if self.discrete else np.array([number, -number], "f") / 8

    def chunk(self, steps, actor=0, incarnation=0):
        """Takes up the steps, and gives the message that says so."""
        taken = []
        for step in steps:
            episode = self.open.get((actor, step.lane))
            if episode is None or episode.incarnation != incarnation:
                episode = self.open[actor, step.lane] = Episode(incarnation)
                self.episodes.append(episode)
                for _ in range(STACK):
                    self._grow(episode)
            self._grow(episode)
            episode.steps.append(step)
            episode.actions.append(self.action(self.rows))
            stacks = episode.frames[-STACK - 1 : -1], episode.frames[-STACK:]
            before, after = map(self.stack, stacks)
            # The discount of the message is not stored: the store makes it of how the step ended.
            taken.append(
                Transition(before, episode.actions[-1], np.float32(step.reward), 7.0, after)
            )
            if step.end:
                del self.open[actor, step.lane]
        lane, _, end = np.array(steps).T
        windows = Windows(
            map_leaves(lambda *parts: np.stack(parts), *taken),
            lane.astype(np.int32),
            end.astype(np.uint8),
        )
        return Chunk(windows, actor, incarnation, len(steps), (), -1, 0)

    def items(self, capacity, n, gamma):
        """The step of each row that may be drawn, as a transition, by walking forward from it."""
        found = {}
        for episode in self.episodes:
            for j, action in enumerate(episode.actions):
                if episode.rows[j] < self.rows - capacity:
                    continue  # the first frame of its stack is overwritten
                inside = episode.steps[j : j + n]
                reward = sum(gamma**k * step.reward for k, step in enumerate(inside))
                ends_here = inside[-1].end == TERMINATED
                found[episode.rows[j + STACK]] = Transition(
                    self.stack(episode.frames[j : j + STACK]),
                    action,
                    np.float32(reward),
                    np.float32(0 if ends_here else gamma ** len(inside)),
                    self.stack(episode.frames[j + len(inside) :][:STACK]),
                )
        return dict(sorted(found.items()))


def assert_same(found, expected):
    """Bit by bit, with dtypes."""
    expected = map_leaves(lambda *parts: np.stack(parts), *expected)
    for ours, theirs in zip(leaves(found), leaves(expected), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def assert_holds(replay, model, n=1, gamma=0.5):
    replay.check_valid()
    items = model.items(replay.capacity, n, Fraction(gamma))
    assert len(replay) == min(model.rows, replay.capacity)
    if not items:
        with pytest.raises(ValueError, match=r"can be drawn.*learner\.warmup_steps"):
            replay.sample(1, 1)
        return
    assert_same(replay.contents(), items.values())
    sample = replay.sample(2, 300)
    # At most 40 items: one is missed uniformly with a chance of 40 (39/40)^600, below 10^-4.
    assert sorted(set(sample.ids.ravel().tolist())) == list(items)
    drawn = map_leaves(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), replay._store.layout.unpack(sample.rows)
    )
    assert_same(drawn, [items[i] for i in sample.ids.ravel().tolist()])
    replay.update_priorities(sample.ids, 1 + np.arange(600).reshape(2, 300) % 7 / 7)


ends = st.sampled_from([GOES_ON] * 6 + [TERMINATED, TRUNCATED])
steps = st.builds(Step, lane=st.integers(0, 1), reward=st.integers(-99, 99), end=ends)
parts = st.tuples(
    st.integers(0, 1), st.sampled_from([0] * 6 + [1]), st.lists(steps, min_size=1, max_size=4)
)


@both_samplers
@settings(derandomize=True, max_examples=30, deadline=None, database=None)
@given(
    spec=st.sampled_from(list(SPECS.values())),
    n=st.integers(1, 4),
    capacity=st.integers(16, 40),
    script=st.lists(parts, min_size=1, max_size=12),
)
def test_every_item_is_what_whole_stacks_would_be_of_any_actor_lane_and_episode(
    sampler, spec, n, capacity, script
):
    replay, model = make_replay(capacity, spec, n, sampler=sampler), Model(spec)
    incarnation = [0, 0]

    for actor, fault, some in script:
        incarnation[actor] += fault
        replay.add(model.chunk(some, actor, incarnation[actor]))

        assert_holds(replay, model, n)


def test_a_window_does_not_reach_past_a_truncation():
    # tensorflow/agents #939: gamma .9, n = 3, truncated at index 2. 1 + .9 * 2 + .81 * 4 = 6.04,
    # 2 + .9 * 4 = 5.6, 4; 8 + .9 * 16 + .81 * 32 = 48.32, 16 + .9 * 32 = 44.8, and the newest, 32.
    replay, model = make_replay(20, n=3, gamma=0.9), Model()
    end = [TRUNCATED if t == 2 else GOES_ON for t in range(6)]

    for t in range(6):
        replay.add(model.chunk([Step(0, 2**t, end[t])]))

    contents = replay.contents()
    np.testing.assert_allclose(contents.reward, [6.04, 5.6, 4, 48.32, 44.8, 32], rtol=1e-6)
    np.testing.assert_allclose(contents.discount, [0.729, 0.81, 0.9] * 2, rtol=1e-6)
    # Frames 1 to 3 lead, 4 to 6 follow; 7 to 9 lead again, 10 to 12 follow.
    np.testing.assert_array_equal(contents.next_observation[:, 2, 0, 1], [6] * 3 + [12] * 3)


def test_at_the_write_head_of_a_full_ring_a_window_holds_what_is_there_and_nothing_older():
    # FastTD3 #6. Gamma .9, n = 3, steps 1 to 30 in a ring of 10, so 21 lies in the slot after 30's.
    replay, model = make_replay(10, n=3, gamma=0.9), Model()
    for t in range(1, 31):
        replay.add(model.chunk([Step(0, t)]))

    contents = replay.contents()

    # 24 is the oldest, with the frames of 21 to 23. 24 + .9 * 25 + .81 * 26 = 67.56, then 2.71 more
    # each; 29 + .9 * 30, and the newest is 30 alone.
    full = [67.56 + 2.71 * i for i in range(5)]
    np.testing.assert_allclose(contents.reward, [*full, 29 + 0.9 * 30, 30], rtol=1e-6)
    np.testing.assert_allclose(contents.discount, [0.729] * 5 + [0.81, 0.9], rtol=1e-6)
    assert_same(contents.next_observation[-1:], [model.stack([31, 32, 33])])


def test_a_chunk_without_windows_adds_nothing():
    replay, model = make_replay(20), Model()
    added = model.chunk([Step()])
    replay.add(added)

    nothing = map_leaves(lambda leaf: leaf[:0], added.windows)
    replay.add(added._replace(windows=nothing))

    assert_holds(replay, model)


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (2, "moved on by one of 3 frames: set replay.frame_stack only for envs"),
        (4, "16 rows at once into a ring of 15: add fewer"),  # should all four begin an episode
    ],
)
@pytest.mark.parametrize("actor", [0, 1], ids=["known", "new"])
def test_a_chunk_that_is_refused_changes_no_byte(count, message, actor):
    replay, model = make_replay(15), Model()
    replay.add(model.chunk([Step(lane=1), Step(), Step()]))
    refused = Model().chunk([Step(end=TRUNCATED)] * count, actor)
    if count == 2:
        newest = refused.windows.transitions.next_observation
        newest[1] = newest[1, ::-1]
    before, state = [leaf.tobytes() for leaf in leaves(replay.contents())], replay.state()

    with pytest.raises(ValueError, match=message):
        replay.add(refused)

    assert [leaf.tobytes() for leaf in leaves(replay.contents())] == before
    assert replay.state() == state
    replay.add(model.chunk([Step()]))
    assert_holds(replay, model)


def test_pixels_of_a_transition_take_one_frame_and_not_two_stacks():
    # 84 * 84 = 7,056 bytes, and 24 for action, reward, kind and marks; two stacks are 56,448. An
    # episode of 100 steps has 4 frames more.
    spec = EnvSpec(ArraySpec((84, 84, 4), "uint8"), 2, discrete=True)
    replay = make_replay(120, spec, stack=4)
    frames = np.random.default_rng(0).integers(0, 255, (104, 84, 84), np.uint8)
    stacks = np.stack([frames[i : i + 101] for i in range(4)], -1)
    zeros = np.zeros(100, np.int32)
    t = Transition(stacks[:-1], zeros, zeros.astype("f"), zeros.astype("f"), stacks[1:])
    for some in range(0, 100, 20):
        part = map_leaves(
            lambda leaf, i=some: leaf[i : i + 20], Windows(t, zeros, zeros.astype("u1"))
        )
        replay.add(Chunk(part, 0, 0, 20, (), -1, 0))

    first, rows = replay.rows(0, 104, most_bytes=2**30)

    assert (first, len(replay)) == (0, 104)
    assert sum(array.nbytes for array in rows.values()) == 104 * (7_056 + 24)
    np.testing.assert_array_equal(replay.contents().next_observation, stacks[1:])


def played(capacity, sampler):
    replay, model = make_replay(capacity, n=2, sampler=sampler), Model()
    for t in range(40):
        some = [Step(lane, t, TERMINATED if t % (5 + lane) == 0 else GOES_ON) for lane in (0, 1)]
        replay.add(model.chunk(some, actor=t % 2))
        replay.update_priorities(replay.sample(1, 4).ids, np.array([[t, 1, 2, 3]]))
    return replay, model


@both_samplers
@pytest.mark.parametrize("most_bytes", [1, 200, 2**20])
def test_a_replay_of_saved_rows_draws_the_same_and_goes_on_with_the_same_episodes(
    sampler, most_bytes
):
    replay, model = played(50, sampler)
    state, again = replay.state(), make_replay(50, n=2, sampler=sampler)

    start, stop = state["rows"] - 50, state["rows"]
    again.restart(start)
    while start < stop:
        start, rows = replay.rows(start, stop, most_bytes)
        again.append(rows)
        start += len(rows["uint8"])
    again.restore(state)

    for t in range(8):
        for one in (again, replay):
            assert_holds(one, model, n=2)
        for a, b in zip(leaves(again.sample(2, 9)), leaves(replay.sample(2, 9)), strict=True):
            np.testing.assert_array_equal(a, b)
        added = model.chunk([Step(lane=t % 2), Step(lane=1)], actor=t % 2)
        for one in (again, replay):
            one.add(added)


@pytest.mark.parametrize(
    ("shape", "dtype", "remedy"),
    [((84, 84), "uint8", "FrameStackObservation, or None"), ((4, 8, 8), "float32", "use uint8")],
)
def test_an_observation_that_is_no_stack_of_pixels_is_refused_with_its_remedy(shape, dtype, remedy):
    with pytest.raises(ConfigError, match=rf"replay\.frame_stack = 4: .*{remedy}"):
        make_replay(20, EnvSpec(ArraySpec(shape, dtype), 2, True), stack=4)
