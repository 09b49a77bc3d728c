"""Lanes without autoreset: masks, seeds, episode ends, and who owns the arrays."""

import types

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from small import Counting, small

from jaxrl_async.checks import ConfigError
from jaxrl_async.envs.spaces import describe
from jaxrl_async.envs.vector import SerialVectorEnv
from jaxrl_async.runtime.actor import Actor
from jaxrl_async.runtime.params import Snapshot


class Watched(Counting):
    """Remembers what was asked of it, and says whether it succeeded."""

    def __init__(self, length=3, ends="terminated", success=None):
        super().__init__(length, ends)
        self.success, self.actions, self.options, self.closed = success, [], [], 0

    def reset(self, *, seed=None, options=None):
        self.options.append(options)
        return super().reset(seed=seed)

    def step(self, action):
        self.actions.append(action)
        *step, info = super().step(action)
        return *step, info if self.success is None else {"is_success": self.success}

    def close(self):
        self.closed += 1


def make_lanes(*envs):
    rest = iter(envs)
    return SerialVectorEnv(lambda: next(rest), len(envs))


def zeros(env):
    return np.zeros(env.num_envs, np.int64)


# ---- resetting and stepping -----------------------------------------------------------------


def test_it_says_that_it_never_resets_by_itself():
    env = make_lanes(Watched(), Watched())

    assert env.metadata["autoreset_mode"] == AutoresetMode.DISABLED
    assert env.num_envs == 2
    assert env.single_observation_space.shape == (1,)
    assert env.observation_space.shape == (2, 1)


def test_a_step_returns_the_true_successor_of_an_episode_that_ends():
    # lengths 2 and 3: lane 0 ends at t = 2, where its own last observation is 2, not a reset's 0
    env = make_lanes(Watched(2), Watched(3, ends="truncated"))
    env.reset(seed=[0, 1])
    env.step(zeros(env))

    observation, reward, terminated, truncated, _ = env.step(zeros(env))

    np.testing.assert_array_equal(observation, [[2.0], [2.0]])
    np.testing.assert_array_equal(reward, [1.0, 1.0])
    np.testing.assert_array_equal(terminated, [True, False])
    np.testing.assert_array_equal(truncated, [False, False])


def test_only_the_masked_lanes_are_reset_each_with_its_seed():
    envs = [Watched(10), Watched(10), Watched(10)]
    env = make_lanes(*envs)
    env.reset(seed=[10, 11, 12])
    env.step(zeros(env))

    mask = np.array([True, False, True])
    observation, _ = env.reset(seed=[20, 21, 22], options={"reset_mask": mask})

    assert [lane.seeds for lane in envs] == [[10, 20], [11], [12, 22]]
    np.testing.assert_array_equal(observation, [[0.0], [1.0], [0.0]])


def test_an_empty_mask_resets_nothing():
    env = make_lanes(Watched(10), Watched(10))
    env.reset(seed=[1, 2])
    env.step(zeros(env))

    observation, _ = env.reset(seed=[3, 4], options={"reset_mask": np.zeros(2, bool)})

    np.testing.assert_array_equal(observation, [[1.0], [1.0]])
    assert [lane.seeds for lane in env.envs] == [[1], [2]]


@pytest.mark.parametrize(
    ("seed", "given"), [(None, [None] * 3), (7, [7, 8, 9]), ([5, None, 6], [5, None, 6])]
)
def test_seeds_as_gymnasium_takes_them(seed, given):
    env = make_lanes(Watched(), Watched(), Watched())

    env.reset(seed=seed)

    assert [lane.seeds for lane in env.envs] == [[one] for one in given]


def test_options_reach_the_envs_without_the_mask_and_the_dict_stays():
    env = make_lanes(Watched(), Watched())
    mask = np.array([False, True])
    options = {"reset_mask": mask, "level": 2}

    env.reset(seed=[0, 1], options=options)

    assert [lane.options for lane in env.envs] == [[], [{"level": 2}]]
    assert options == {"reset_mask": mask, "level": 2}


def test_lanes_outside_the_mask_are_not_stepped():
    envs = [Watched(10), Watched(1), Watched(10)]
    env = make_lanes(*envs)
    env.reset(seed=[0, 1, 2])
    env.step(np.array([0, 1, 0]))

    mask = np.array([True, False, True])
    observation, reward, terminated, truncated, _ = env.step(np.array([1, 1, 0]), mask)

    # lane 1 ended at its first step; it stays there, without reward and without a second end
    assert [lane.actions for lane in envs] == [[0, 1], [1], [0, 0]]
    np.testing.assert_array_equal(observation, [[2.0], [1.0], [2.0]])
    np.testing.assert_array_equal(reward, [1.0, 0.0, 1.0])
    assert not (terminated | truncated).any()


def test_success_is_reported_where_the_env_says_it():
    env = make_lanes(Watched(success=True), Watched(success=np.False_), Watched())
    env.reset(seed=[0, 1, 2])

    *_, infos = env.step(zeros(env))
    *_, after = env.step(zeros(env), np.array([False, True, True]))

    np.testing.assert_array_equal(infos["is_success"], [1.0, 0.0, np.nan])
    np.testing.assert_array_equal(after["is_success"], [np.nan, 0.0, np.nan])


# ---- who owns the arrays --------------------------------------------------------------------


def test_no_returned_array_is_ever_written_again():
    env = make_lanes(Watched(2, success=True), Watched(3))
    returned = [env.reset(seed=[0, 1])[0]]
    copies = [returned[0].copy()]

    for _ in range(4):
        observation, reward, terminated, truncated, infos = env.step(zeros(env))
        ended = terminated | truncated
        begun, _ = env.reset(seed=[0, 1], options={"reset_mask": ended})
        new = [observation, reward, terminated, truncated, infos["is_success"], begun]
        assert not any(np.shares_memory(a, b) for a in new for b in returned)
        returned += new
        copies += [array.copy() for array in new]

    for array, copy in zip(returned, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_an_env_that_reuses_its_array_stores_each_observation():
    class Reusing(Counting):
        array = np.zeros(1, np.float32)

        def step(self, action):
            observation, *rest = super().step(action)
            self.array[:] = observation
            return self.array, *rest

    env = SerialVectorEnv(lambda: Reusing(10), 1)
    env.reset(seed=[0])

    seen = [env.step(zeros(env))[0] for _ in range(3)]

    np.testing.assert_array_equal(np.concatenate(seen)[:, 0], [1.0, 2.0, 3.0])


def test_writing_into_a_returned_observation_changes_no_lane():
    env = make_lanes(Watched(10), Watched(10))
    observation, _ = env.reset(seed=[0, 1])

    observation[:] = 99.0
    after, *_ = env.step(zeros(env), np.array([True, False]))

    np.testing.assert_array_equal(after, [[1.0], [0.0]])


# ---- what envs do wrong ---------------------------------------------------------------------


class Returning(Counting):
    """Declares one space and returns something else."""

    def __init__(self, space, observation):
        super().__init__()
        self.observation_space, self.observation = space, observation

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation, {}


def test_an_observation_of_another_shape_is_refused():
    # (1,) would be broadcast over (3,) in silence
    space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    env = SerialVectorEnv(lambda: Returning(space, np.zeros(1, np.float32)), 1)

    with pytest.raises(ConfigError, match=r"shape \(1,\), its space says \(3,\): make the env"):
        env.reset(seed=[0])


def test_an_observation_of_another_kind_of_dtype_is_refused():
    # an image scaled to [0, 1] in a space of uint8 would be cut to zeros in silence
    space = gym.spaces.Box(0, 255, (3,), np.uint8)
    env = SerialVectorEnv(lambda: Returning(space, np.array([0.2, 0.5, 0.9])), 1)

    with pytest.raises(ConfigError, match=r"uint8.*make the env return what it declares"):
        env.reset(seed=[0])


@pytest.mark.parametrize("observation", [np.ones(3), [1.0, 1.0, 1.0], np.ones(3, np.int64)])
def test_observations_that_fit_are_taken_in_any_form(observation):
    space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    env = SerialVectorEnv(lambda: Returning(space, observation), 1)

    taken, _ = env.reset(seed=[0])

    assert taken.dtype == np.float32
    np.testing.assert_array_equal(taken, np.ones((1, 3)))


# ---- closing --------------------------------------------------------------------------------


def test_every_env_is_closed_once():
    envs = [Watched(), Watched(), Watched()]
    env = make_lanes(*envs)

    env.close()
    env.close()

    assert [lane.closed for lane in envs] == [1, 1, 1]


def test_every_env_is_closed_where_one_fails_to():
    class Stuck(Watched):
        def close(self):
            super().close()
            if self.closed == 1:
                raise RuntimeError("the window is stuck")

    envs = [Watched(), Stuck(), Watched()]
    env = make_lanes(*envs)

    with pytest.raises(Exception) as caught:
        env.close()

    closed = [lane.closed for lane in envs]
    env.close()
    assert closed == [1, 1, 1]
    errors = getattr(caught.value, "exceptions", (caught.value,))
    assert [str(error) for error in errors] == ["the window is stuck"]


def test_envs_already_made_are_closed_where_a_later_one_cannot_be():
    made = []

    def make_env():
        if len(made) == 2:
            raise RuntimeError("no licence left")
        made.append(Watched())
        return made[-1]

    with pytest.raises(RuntimeError, match="no licence left"):
        SerialVectorEnv(make_env, 3)

    assert [env.closed for env in made] == [1, 1]


# ---- with an actor --------------------------------------------------------------------------


class Keeping:
    """A sink that keeps chunks, and a policy that always takes the first action."""

    def __init__(self):
        self.chunks = []

    def add(self, chunk):
        self.chunks.append(chunk)

    def ask(self, carry, observation, explore, step):
        return lambda: (np.zeros(len(observation), np.int32), carry, Snapshot(0, 0, 0.0, {}))

    @property
    def episodes(self):
        return [(e.episode_return, e.length) for chunk in self.chunks for e in chunk.episodes]

    def stored(self, name):
        parts = [getattr(chunk.windows.transitions, name) for chunk in self.chunks]
        return np.concatenate(parts)


def act(env, steps, index=0, **changes):
    """What an actor hands over in so many vector steps of ``env``."""
    changes = {"actor__envs_per_actor": env.num_envs, "actor__random_steps": 0, **changes}
    config, keeping = small("dqn", "x", **changes), Keeping()
    spec, bounds = describe(env.single_observation_space, env.single_action_space)
    agent = types.SimpleNamespace(spec=spec, config=config.agent, initial_carry=lambda batch: ())
    actor = Actor(
        config,
        agent,
        index=index,
        actors=config.actor.num_actors,
        env=env,
        bounds=bounds,
        policy=keeping,
        sink=keeping,
    )
    for _ in range(steps):
        actor.step()
    return keeping


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_every_episode_has_the_return_and_length_of_its_steps(ends):
    # Gymnasium PR #1624: with reward 1 and three steps each episode is r = 3, l = 3, not 2 or 4
    kept = act(make_lanes(Watched(3, ends)), 12)

    assert kept.episodes == [(3.0, 3)] * 4


def test_lanes_of_different_lengths_count_their_own_episodes():
    # 12 vector steps: 4 episodes of 3 and 3 of 4; they end at 3, 4, 6, 8, 9, and both at 12
    kept = act(make_lanes(Watched(3), Watched(4)), 12)

    assert kept.episodes == [(n, n) for n in (3, 4, 3, 4, 3, 3, 4)]
    assert sum(chunk.env_steps for chunk in kept.chunks) == 24


@pytest.mark.parametrize(("ends", "discount"), [("terminated", 0.0), ("truncated", 0.99)])
def test_the_final_observation_of_a_one_step_episode_is_stored(ends, discount):
    # d3rlpy #98: s0 = 0, s1 = 1; nothing else is ever seen
    kept = act(make_lanes(Watched(1, ends)), 4)

    np.testing.assert_array_equal(kept.stored("observation")[:, 0], [0.0] * 4)
    np.testing.assert_array_equal(kept.stored("next_observation")[:, 0], [1.0] * 4)
    np.testing.assert_allclose(kept.stored("discount"), [discount] * 4)
    assert kept.episodes == [(1.0, 1)] * 4


def test_seeds_differ_by_run_actor_lane_and_episode_and_repeat():
    # henry-prior/jax-rl #9, dreamerv3 #43: the seed reaches the envs, and no two get the same
    def seeds(seed, index):
        envs = [Watched(3), Watched(3)]
        act(make_lanes(*envs), 9, index, seed=seed, actor__num_actors=2)
        return [lane.seeds for lane in envs]

    runs = {(seed, index): seeds(seed, index) for seed in (1, 2) for index in (0, 1)}

    # 9 steps: episodes begin at 0, 3, 6 and 9 on each of 2 lanes, of 2 actors, in 2 runs
    every = [seed for lanes in runs.values() for lane in lanes for seed in lane]
    assert len(every) == len(set(every)) == 32
    assert seeds(1, 0) == runs[1, 0]


def test_the_seed_of_an_episode_does_not_depend_on_other_lanes():
    # the second lane's episodes end earlier or later; the first lane's seeds stay
    pairs = [[Watched(3), Watched(length)] for length in (2, 5)]
    for envs in pairs:
        act(make_lanes(*envs), 9)

    assert pairs[0][0].seeds == pairs[1][0].seeds


def test_random_actions_are_stored_as_agents_give_them():
    # stable-baselines #573: the env takes [0, 10] x [-2, 2], the replay keeps [-1, 1] x [-1, 1]
    class Reaching(Watched):
        def __init__(self):
            super().__init__(length=100)
            low, high = np.array([0, -2], np.float32), np.array([10, 2], np.float32)
            self.action_space = gym.spaces.Box(low, high)

    env = Reaching()

    kept = act(make_lanes(env), 50, actor__random_steps=50)

    stored, taken = kept.stored("action"), np.array(env.actions)
    assert all(env.action_space.contains(action) for action in taken)
    assert np.all(np.abs(stored) <= 1.0)
    # low + (a + 1) / 2 (high - low): 5 a + 5 and 2 a
    np.testing.assert_allclose(taken, stored * [5.0, 2.0] + [5.0, 0.0], atol=1e-5)
    # spread over the whole of both: a tenth of each end is missed 50 times with odds of 0.95^50
    np.testing.assert_array_less(stored.min(axis=0), -0.8)
    np.testing.assert_array_less(0.8, stored.max(axis=0))
