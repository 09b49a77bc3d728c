"""The notebook's door."""

import gymnasium as gym
import numpy as np
import pytest
from small import SMALL, Counting, Memory

from jaxrl_async import ConfigError, RunConfig, train
from jaxrl_async.agents.dqn import DQNConfig
from jaxrl_async.api import resolve

TINY = {name: value for name, value in SMALL.items() if not name.startswith("agent.")}
OPTIONS = {"hidden": (8,)}


def test_train_returns_policy_state_summary_and_history(tmp_path):
    result = train(
        "dqn", "CartPole-v1", options=OPTIONS, directory=tmp_path / "run", recorder=Memory(), **TINY
    )

    assert result.summary.env_steps == 300
    assert int(result.state.step) == result.summary.updates == 50
    assert [row["env_steps"] for row in result.history] == [0.0, 100.0, 200.0, 300.0]
    assert result.history[-1]["evaluation/return_mean"] == result.summary.score
    assert result.policy.act(np.zeros(4)) in (0, 1)


def test_a_factory_a_config_and_an_evaluation_env(tmp_path):
    result = train(
        DQNConfig(hidden=(8,)),
        lambda: Counting(length=7),
        evaluation_env=lambda: Counting(length=5),
        directory=tmp_path / "run",
        recorder=Memory(),
        **TINY,
    )

    assert result.summary.agent == "dqn"
    assert result.summary.score == 5.0


def test_an_env_object_is_made_again_by_its_spec(tmp_path):
    env = gym.make("CartPole-v1", max_episode_steps=9)

    result = train(
        "dqn", env, options=OPTIONS, directory=tmp_path / "run", recorder=Memory(), **TINY
    )

    assert result.summary.env == "CartPole-v1"
    assert all(row["evaluation/length_mean"] <= 9 for row in result.history)


def test_env_options_reach_gymnasium(tmp_path):
    result = train(
        "dqn",
        "CartPole-v1",
        env_options={"max_episode_steps": 5},
        options=OPTIONS,
        directory=tmp_path / "run",
        recorder=Memory(),
        **TINY,
    )

    assert all(row["evaluation/length_mean"] == 5 for row in result.history)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batchsize": 3}, "batchsize = 3: no such field"),
        ({"learner": {"batchsize": 3}}, "did you mean 'batch_size'"),
        ({"options": {"taw": 3}}, "did you mean 'tau'"),
        ({"agent": "dqm"}, "did you mean 'dqn'"),
        ({"agent": RunConfig}, "use a name of"),
        ({"env": 3}, "use a Gymnasium id, a function"),
        ({"env": Counting()}, "without a spec"),
    ],
)
def test_a_mistake_is_refused_before_anything_is_written(arguments, message, tmp_path):
    known = {"agent": "dqn", "env": "CartPole-v1", "directory": tmp_path / "run", **arguments}

    with pytest.raises(ConfigError, match=message):
        train(**known)

    assert list(tmp_path.iterdir()) == []


class Stop:
    """Stops at the first row of training metrics."""

    def on_record(self, stream, env_steps, values):
        return stream == "train"

    def on_evaluation(self, evaluation):
        return False


def test_callbacks_are_called_and_may_stop_the_run(tmp_path):
    result = train(
        "dqn",
        "CartPole-v1",
        options=OPTIONS,
        directory=tmp_path / "run",
        recorder=Memory(),
        callbacks=[Stop()],
        **TINY,
    )

    assert result.summary.reason == "Stop said so"
    assert result.summary.env_steps == 50


def test_a_config_gets_the_run_level_values_of_its_agent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    by_name = resolve("dqn", "CartPole-v1", {"agent": {"hidden": (8,)}})
    by_config = resolve(DQNConfig(hidden=(8,)), "CartPole-v1", {"agent": {}})

    assert by_config.learner == by_name.learner
    assert by_config.agent == DQNConfig(hidden=(8,))
