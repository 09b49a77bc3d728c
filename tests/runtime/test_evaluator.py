"""Scores: which episodes count, and what a limit does."""

import dataclasses
import math

import jax
import numpy as np
from small import Counting, small

from jaxrl_async.envs.spaces import describe
from jaxrl_async.envs.vector import SerialVectorEnv
from jaxrl_async.runtime.evaluator import Evaluation, Evaluator, lanes_for
from jaxrl_async.runtime.params import Snapshot


class Still:
    """An agent that stands still."""

    def initial_carry(self, batch):
        return ()


def still(params, carry, observation, key, step, explore):
    np.testing.assert_array_equal(explore, 0.0)
    return np.zeros(len(observation), np.int32), carry


def make_evaluator(episodes, make_env, **limits):
    config = small("dqn", "x", evaluation__episodes=episodes)
    config = dataclasses.replace(
        config, evaluation=dataclasses.replace(config.evaluation, **limits)
    )
    env = SerialVectorEnv(make_env, lanes_for(episodes))
    _, bounds = describe(env.single_observation_space, env.single_action_space)
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return Evaluator(config, Still(), still, env, bounds, place), env


def snapshot(version=0):
    return Snapshot(version, 0, 1.0, {})


def test_more_episodes_than_lanes_are_all_played():
    lengths = iter(range(1, 17))
    evaluator, env = make_evaluator(40, lambda: Counting(next(lengths)))

    result = evaluator.evaluate(snapshot())

    # lane i plays episodes i, i + 16 and, for i < 8, i + 32; its episodes have i + 1 steps
    assert env.num_envs == 16
    expected = [i % 16 + 1 for i in range(40)]
    np.testing.assert_array_equal(result.returns, expected)
    np.testing.assert_array_equal(result.lengths, expected)


def test_an_episode_has_its_own_seed_by_version():
    evaluator, env = make_evaluator(3, Counting)

    for version in (0, 1, 0):
        evaluator.evaluate(snapshot(version))

    seeds = np.array([lane.seeds for lane in env.envs])  # [lane, evaluation]
    np.testing.assert_array_equal(seeds[:, 0], seeds[:, 2])
    assert len(set(seeds[:, :2].ravel())) == 6


def test_an_episode_without_end_is_cut_at_the_step_limit():
    evaluator, _ = make_evaluator(2, lambda: Counting(10**9), max_episode_steps=25)

    result = evaluator.evaluate(snapshot())

    np.testing.assert_array_equal(result.returns, [25.0, 25.0])


def test_what_has_not_ended_in_time_is_not_reported(monkeypatch):
    ticks = iter(range(1_000))
    monkeypatch.setattr("time.monotonic", lambda: float(next(ticks)))
    lengths = iter([3, 10**9])
    evaluator, _ = make_evaluator(2, lambda: Counting(next(lengths)), time_limit=6.0)

    result = evaluator.evaluate(snapshot())

    np.testing.assert_array_equal(result.returns, [3.0])


def test_an_evaluation_without_episodes_is_nan_and_says_so():
    result = Evaluation(snapshot(4), *np.zeros((3, 0)))

    values = result.values()

    assert math.isnan(result.score)
    assert math.isnan(values["evaluation/return_mean"])
    assert values["evaluation/episodes"] == 0.0
    assert values["evaluation/version"] == 4.0


def test_values_by_hand():
    result = Evaluation(
        snapshot(), np.array([1.0, 3.0]), np.array([10.0, 20.0]), np.array([0.0, 1.0])
    )

    values = {name.removeprefix("evaluation/"): v for name, v in result.values().items()}

    assert values == {
        "return_mean": 2.0,
        "return_std": 1.0,
        "return_min": 1.0,
        "return_max": 3.0,
        "length_mean": 15.0,
        "success_mean": 0.5,
        "episodes": 2.0,
        "version": 0.0,
    }
