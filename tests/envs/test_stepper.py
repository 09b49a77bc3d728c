"""Autoreset: whatever mode a vector env has, the same transitions, statistics and counts."""

import types
from collections import Counter

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from small import Counting, Memory, small

from jaxrl_async.checks import ConfigError
from jaxrl_async.envs.spaces import describe
from jaxrl_async.envs.stepper import Stepper, success_of
from jaxrl_async.envs.vector import SerialVectorEnv
from jaxrl_async.runtime.actor import Actor
from jaxrl_async.runtime.params import Snapshot
from jaxrl_async.runtime.trainer import Trainer

GYMNASIUM = [AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]


class Marked(Counting):
    """Counts in its lane: observation 100 * lane + t; succeeds where its length is even."""

    observation_space = gym.spaces.Box(-1e6, 1e6, (1,), np.float32)

    def __init__(self, lane, length, ends="terminated"):
        super().__init__(length, ends)
        self.lane = lane

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        return observation + 100 * self.lane, info

    def step(self, action):
        observation, *rest, _info = super().step(action)
        return observation + 100 * self.lane, *rest, {"is_success": self.length % 2 == 0}


def factories(lengths, ends="terminated"):
    return [
        lambda lane=lane, length=length: Marked(lane, length, ends)
        for lane, length in enumerate(lengths)
    ]


def make(kind, lengths, ends="terminated"):
    """A vector env of lanes with episodes of these lengths."""
    if kind == "ours":
        makers = iter(factories(lengths, ends))
        return SerialVectorEnv(lambda: next(makers)(), len(lengths))
    return SyncVectorEnv(factories(lengths, ends), autoreset_mode=kind)


class Keeping:
    """A sink that keeps chunks and a policy that takes the first action."""

    def __init__(self):
        self.chunks = []

    def add(self, chunk):
        self.chunks.append(chunk)

    def ask(self, carry, observation, explore, step):
        return lambda: (np.zeros(len(observation), np.int32), carry, Snapshot(0, 0, 0.0, {}))


def act(env, env_steps, n_step=1, chunk_steps=1):
    """The chunks of at least so many env steps."""
    config, keeping = small("dqn", "x", actor__envs_per_actor=env.num_envs), Keeping()
    config = small(
        "dqn",
        "x",
        actor__envs_per_actor=env.num_envs,
        actor__random_steps=0,
        actor__chunk_steps=chunk_steps,
        replay__n_step=n_step,
    )
    spec, bounds = describe(env.single_observation_space, env.single_action_space)
    agent = types.SimpleNamespace(spec=spec, config=config.agent, initial_carry=lambda batch: ())
    actor = Actor(
        config, agent, index=0, actors=1, env=env, bounds=bounds, policy=keeping, sink=keeping
    )
    while sum(chunk.env_steps for chunk in keeping.chunks) < env_steps:
        actor.step()
    return keeping.chunks


def rows(chunks, lane):
    """(observation, next observation, reward, discount, end) of a lane, in order."""
    found = []
    for windows in (chunk.windows for chunk in chunks):
        t, mine = windows.transitions, windows.lane == lane
        columns = (t.observation[:, 0], t.next_observation[:, 0], t.reward, t.discount, windows.end)
        found += zip(*(column[mine].tolist() for column in columns), strict=True)
    return found


# ---- numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ours", *GYMNASIUM])
def test_the_last_row_of_an_episode_holds_its_own_last_observation(kind):
    # length 3: step 3 goes from 2 to 3, never to the 0 of a reset
    chunks = act(make(kind, [3]), 7)

    gamma = np.float32(0.99).item()
    episode = [(0, 1, 1, gamma, 0), (1, 2, 1, gamma, 0), (2, 3, 1, 0, 1)]
    assert rows(chunks, 0) == [*episode, *episode, (0, 1, 1, gamma, 0)]


def test_a_step_that_only_resets_is_no_row_and_no_env_step():
    # next step, length 3: steps 4 and 8 of 8 are resets, so 6 rows, and none from 3 to 0
    env, keeping = make(AutoresetMode.NEXT_STEP, [3]), []
    stepper = Stepper(env, lambda lane: 0)
    stepper.reset()
    for _ in range(8):
        keeping.append(stepper.step(np.zeros(1, np.int64)))

    assert [bool(step.stepped[0]) for step in keeping] == [True] * 3 + [False] + [True] * 3 + [
        False
    ]
    assert [bool(step.began[0]) for step in keeping] == [False] * 3 + [True] + [False] * 3 + [True]
    assert sum(chunk.env_steps for chunk in act(make(AutoresetMode.NEXT_STEP, [3]), 6)) == 6
    pairs = [row[:2] for row in rows(act(make(AutoresetMode.NEXT_STEP, [3]), 6), 0)]
    assert pairs == [(0, 1), (1, 2), (2, 3)] * 2


@pytest.mark.parametrize("kind", ["ours", *GYMNASIUM])
@pytest.mark.parametrize("n_step", [1, 2, 5])
@pytest.mark.parametrize("chunk_steps", [1, 3])
def test_every_mode_gives_the_same_rows_of_each_lane(kind, n_step, chunk_steps):
    # A lane's rows are contiguous whatever its neighbour does; 3 and 4 steps an episode.
    lengths = [3, 4, 1]
    expected = act(make("ours", lengths), 90, n_step)

    chunks = act(make(kind, lengths), 90, n_step, chunk_steps)

    for lane in range(3):
        ours, theirs = rows(expected, lane), rows(chunks, lane)
        shared = min(len(ours), len(theirs))
        assert shared > 15
        assert theirs[:shared] == ours[:shared]


@pytest.mark.parametrize("kind", ["ours", *GYMNASIUM])
@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_every_episode_has_the_return_length_and_success_of_its_own_steps(kind, ends):
    # Reward 1: an episode of 3 steps is 3, 3, one of 4 is 4, 4; those of 4 succeed.
    chunks = act(make(kind, [3, 4], ends), 120)

    episodes = Counter(episode for chunk in chunks for episode in chunk.episodes)
    assert set(episodes) == {(3.0, 3, 0.0), (4.0, 4, 1.0)}
    assert min(episodes.values()) >= 12
    discounts = {row[3] for row in rows(chunks, 0) if row[4]}
    assert discounts == {0.0 if ends == "terminated" else np.float32(0.99).item()}


@pytest.mark.parametrize("kind", ["ours", *GYMNASIUM])
def test_env_steps_are_the_transitions_made(kind):
    chunks = act(make(kind, [2, 5]), 100)

    made = sum(len(chunk.windows.end) for chunk in chunks)
    assert sum(chunk.env_steps for chunk in chunks) == made
    assert all(chunk.env_steps > 0 for chunk in chunks)  # an empty message is never sent


@pytest.mark.slow  # gymnasium's child processes take seconds to start
@pytest.mark.parametrize("mode", GYMNASIUM)
def test_gymnasium_s_child_processes_give_the_same(mode):
    expected = act(make("ours", [3, 4]), 60)
    env = AsyncVectorEnv(factories([3, 4]), autoreset_mode=mode, context="spawn")
    try:
        chunks = act(env, 60)
    finally:
        env.close()

    for lane in range(2):
        shared = min(len(rows(expected, lane)), len(rows(chunks, lane)))
        assert rows(chunks, lane)[:shared] == rows(expected, lane)[:shared]


# ---- what envs say -------------------------------------------------------------------------


@pytest.mark.parametrize("stated", [None, "", "nextstep", 3])
def test_an_env_that_does_not_say_how_it_resets_is_refused(stated):
    env = make(AutoresetMode.NEXT_STEP, [3])
    env.metadata = {} if stated is None else {"autoreset_mode": stated}

    with pytest.raises(ConfigError, match=r"^env = SyncVectorEnv.*AutoresetMode that holds$"):
        Stepper(env, lambda lane: 0)


@pytest.mark.parametrize("mode", GYMNASIUM)
def test_the_mode_may_be_stated_by_its_name(mode):
    env = make(mode, [2])
    env.metadata = {"autoreset_mode": mode.value}

    stepper = Stepper(env, lambda lane: 0)
    stepper.reset()

    found = [stepper.step(np.zeros(1, np.int64)) for _ in range(2)]
    assert found[-1].next_observation[0, 0] == 2.0


def test_an_env_that_loses_the_last_observation_is_refused():
    class Losing(SyncVectorEnv):
        def step(self, actions):
            *step, infos = super().step(actions)
            infos.pop("final_obs", None)
            return *step, infos

    env = Losing(factories([2]), autoreset_mode=AutoresetMode.SAME_STEP)
    stepper = Stepper(env, lambda lane: 0)
    stepper.reset()
    stepper.step(np.zeros(1, np.int64))

    with pytest.raises(ConfigError, match="final_obs"):
        stepper.step(np.zeros(1, np.int64))


def test_last_observations_may_come_as_one_batch():
    class Batched(SyncVectorEnv):
        def step(self, actions):
            observation, *rest, infos = super().step(actions)
            if "final_obs" in infos:
                last = np.zeros_like(observation)
                for lane in np.flatnonzero(infos["_final_obs"]):
                    last[lane] = infos["final_obs"][lane]
                infos["final_obs"] = last
            return observation, *rest, infos

    env = Batched(factories([3, 4]), autoreset_mode=AutoresetMode.SAME_STEP)

    assert rows(act(env, 40), 1) == rows(act(make("ours", [3, 4]), 40), 1)


def test_success_is_nan_where_it_is_not_given():
    infos = {"is_success": np.array([1, 0, 1]), "_is_success": np.array([True, True, False])}

    np.testing.assert_array_equal(success_of(infos, 3), [1.0, 0.0, np.nan])
    np.testing.assert_array_equal(success_of({}, 2), [np.nan, np.nan])
    np.testing.assert_array_equal(success_of({"is_success": [True]}, 1), [1.0])


def test_a_lane_is_reset_with_the_seed_asked_for_it():
    envs = [Marked(0, 2), Marked(1, 3)]
    makers = iter(envs)
    env, asked = SerialVectorEnv(lambda: next(makers), 2), []
    stepper = Stepper(env, lambda lane: asked.append(lane) or len(asked))
    stepper.reset()
    for _ in range(3):
        stepper.step(np.zeros(2, np.int64))

    assert asked == [0, 1, 0, 1]
    assert (envs[0].seeds, envs[1].seeds) == ([1, 3], [2, 4])


# ---- whole runs ----------------------------------------------------------------------------


def vector_of(mode, lanes=2):
    return lambda: gym.make_vec(
        "CartPole-v1", lanes, "sync", vector_kwargs={"autoreset_mode": mode}
    )


@pytest.mark.parametrize("mode", GYMNASIUM)
@pytest.mark.parametrize("lockstep", [True, False])
def test_a_run_trains_on_a_vector_env_of_any_mode(tmp_path, mode, lockstep):
    config = small(
        "dqn",
        "CartPole-v1",
        lockstep=lockstep,
        directory=str(tmp_path),
        actor__envs_per_actor=2,
        env_steps=400,
    )
    recorder = Memory()
    trainer = Trainer(
        config,
        make_env=vector_of(mode),
        make_evaluation_env=lambda: gym.make("CartPole-v1"),
        recorder=recorder,
    )

    summary = trainer.run()

    assert summary.env_steps in (400, 401)  # the last vector step may be one of two lanes
    assert summary.episodes > 5
    contents = trainer.parts.replay.contents()
    assert len(contents.reward) == summary.env_steps
    ended = contents.discount == 0.0
    outside = (np.abs(contents.next_observation[:, 0]) > 2.4) | (
        np.abs(contents.next_observation[:, 2]) > 0.2095
    )
    np.testing.assert_array_equal(ended, outside)  # a pole has fallen just where it says so
    assert not np.any(np.abs(contents.observation[:, 2]) > 0.2095)


def test_a_vector_env_of_another_size_is_refused(tmp_path):
    config = small("dqn", "CartPole-v1", directory=str(tmp_path), actor__envs_per_actor=3)

    with pytest.raises(ConfigError, match=r"a vector env of 2: each actor steps 3"):
        Trainer(config, make_env=vector_of(AutoresetMode.NEXT_STEP)).run()


def test_evaluation_in_a_vector_env_is_refused_with_the_remedy(tmp_path):
    config = small("dqn", "CartPole-v1", directory=str(tmp_path), actor__envs_per_actor=2)

    with pytest.raises(ConfigError, match=r"set evaluation\.env to an id"):
        Trainer(config, make_env=vector_of(AutoresetMode.NEXT_STEP)).run()


def test_a_vector_env_object_is_refused(tmp_path):
    import jaxrl_async

    env = make(AutoresetMode.NEXT_STEP, [3])

    with pytest.raises(ConfigError, match="pass a function that makes one"):
        jaxrl_async.train("dqn", env, directory=str(tmp_path))


def test_a_resume_says_that_a_vector_env_s_open_episodes_are_lost(tmp_path):
    config = small(
        "dqn",
        "CartPole-v1",
        directory=str(tmp_path),
        actor__envs_per_actor=2,
        evaluation__period=0,
        stop__updates=20,
    )
    Trainer(config, make_env=vector_of(AutoresetMode.SAME_STEP)).run()
    longer = small(
        "dqn",
        "CartPole-v1",
        directory=str(tmp_path),
        actor__envs_per_actor=2,
        evaluation__period=0,
    )

    with pytest.warns(UserWarning, match="open episodes are lost and this resume is not exact"):
        summary = Trainer(longer, make_env=vector_of(AutoresetMode.SAME_STEP)).run()

    assert summary.env_steps >= 300
