"""Actors: exploration per lane, random steps, chunks; and the policy call."""

import types

import chex
import jax
import numpy as np
import pytest
from small import Counting, small

from jaxrl_async.agents.dqn import DQN, DQNConfig
from jaxrl_async.envs.spaces import describe
from jaxrl_async.envs.vector import SerialVectorEnv
from jaxrl_async.runtime.acting import LocalPolicy, begin, ladder, make_act
from jaxrl_async.runtime.actor import Actor
from jaxrl_async.runtime.params import ParamStore, Snapshot


def test_the_ladder_is_that_of_ape_x():
    # N = 4: exponents 1 + 7 i / 3 are 1, 10/3, 17/3, 8 of 0.4
    lanes = ladder(7.0, first=0, count=4, total=4)(0.4)

    np.testing.assert_allclose(lanes, [0.4, 0.0471562, 0.0055593, 0.00065536], rtol=1e-4)
    assert lanes.dtype == np.float32


def test_the_ladder_runs_through_all_actors():
    whole = ladder(7.0, 0, 6, 6)(0.4)

    parts = [ladder(7.0, first, 2, 6)(0.4) for first in (0, 2, 4)]

    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_the_ladder_of_one_lane_is_finite_and_no_ladder_is_level():
    np.testing.assert_array_equal(ladder(7.0, 0, 1, 1)(0.5), [0.5])
    np.testing.assert_array_equal(ladder(0.0, 0, 3, 3)(1.0), [1.0, 1.0, 1.0])


class Recording:
    """A sink that keeps chunks and a policy that counts its calls."""

    def __init__(self):
        self.chunks, self.steps = [], []

    def add(self, chunk):
        self.chunks.append(chunk)

    def ask(self, carry, observation, explore, step):
        self.steps.append(step)
        acted = np.zeros(len(observation), np.int32), carry, Snapshot(7, 40, 0.0, {})
        return lambda: acted


def make_actor(config, index=0, length=3):
    env = SerialVectorEnv(lambda: Counting(length), config.actor.envs_per_actor)
    spec, bounds = describe(env.single_observation_space, env.single_action_space)
    agent, double = DQN(config.agent, spec), Recording()
    actor = Actor(
        config,
        agent,
        index=index,
        actors=config.actor.num_actors,
        env=env,
        bounds=bounds,
        policy=double,
        sink=double,
    )
    return actor, double


def test_random_steps_are_shared_out_over_actors():
    # 10 env steps over 3 actors of 2 lanes: 4, 3 and 3, in whole vector steps 2, 2 and 2
    for index in range(3):
        config = small(
            "dqn", "x", actor__num_actors=3, actor__envs_per_actor=2, actor__random_steps=10
        )
        actor, double = make_actor(config, index)

        for _ in range(5):
            actor.step()

        assert double.steps == [2, 3, 4]


def test_actors_draw_different_random_actions():
    config = small("dqn", "x", actor__num_actors=2, actor__random_steps=1000)
    drawn = []
    for index in range(2):
        actor, double = make_actor(config, index)
        for _ in range(100):
            actor.step()
        drawn.append(np.concatenate([c.windows.transitions.action for c in double.chunks]))

    assert 30 < np.sum(drawn[0] != drawn[1]) < 70  # 50 expected of two fair coins


def test_a_chunk_holds_its_steps_and_names_the_oldest_version():
    config = small("dqn", "x", actor__envs_per_actor=2, actor__chunk_steps=4, actor__random_steps=4)
    actor, double = make_actor(config)

    for _ in range(8):
        actor.step()

    first, second = double.chunks
    assert [c.env_steps for c in double.chunks] == [8, 8]
    assert (first.version, first.version_env_steps) == (7, 40)
    assert (second.version, second.version_env_steps) == (7, 40)
    # lanes step together: 0,1,2 then again 0 of the next episode
    np.testing.assert_array_equal(
        first.windows.transitions.observation[:, 0], [0, 0, 1, 1, 2, 2, 0, 0]
    )
    np.testing.assert_array_equal(first.windows.end, [0, 0, 0, 0, 1, 1, 0, 0])
    assert [e.length for e in first.episodes] == [3, 3]
    assert np.isnan(first.episodes[0].success)


def test_the_policy_is_traced_once_for_steps_and_versions():
    agent = DQN(DQNConfig(hidden=(8,)), describe_counting())
    chex.clear_trace_counter()
    traced = chex.assert_max_traces(agent.act, n=1)
    act = make_act(types.SimpleNamespace(act=traced))
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    store = ParamStore(place)
    policy = LocalPolicy(act, store, jax.random.key(0))
    state = agent.init(jax.random.key(0))

    for version in range(3):
        store.publish(Snapshot(version, 0, 0.1 * version, agent.actor_params(state)))
        store.deliver()
        action, _, snapshot = policy.ask(
            (), np.zeros((2, 1), np.float32), ladder(0, 0, 2, 2), version
        )()
        assert (action.shape, action.dtype, snapshot.version) == ((2,), np.int32, version)


def describe_counting():
    return describe(Counting().observation_space, Counting().action_space)[0]


def test_a_carry_begins_anew_where_an_episode_does():
    carry = {"h": np.arange(6.0).reshape(3, 2)}

    fresh = begin(carry, {"h": np.zeros((3, 2))}, np.array([False, True, False]))

    np.testing.assert_array_equal(fresh["h"], [[0, 1], [0, 0], [4, 5]])


def test_published_parameters_survive_the_donation_of_theirs():
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    store = ParamStore(place)
    params = {"w": jax.numpy.arange(4.0)}
    donate = jax.jit(lambda p: jax.tree.map(lambda x: x + 1, p), donate_argnums=0)

    for version in range(3):
        store.publish(Snapshot(version, 0, 0.0, params))
        params = donate(params)
        store.deliver()
        np.testing.assert_array_equal(store.latest().params["w"], np.arange(4.0) + version)


def test_latest_says_when_nothing_was_delivered():
    store = ParamStore(jax.sharding.SingleDeviceSharding(jax.devices()[0]))

    with pytest.raises(TimeoutError, match=r"no parameters were delivered within 0\.01 s"):
        store.latest(timeout=0.01)
    assert store.deliver(timeout=0.01) is False
