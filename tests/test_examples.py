"""Every file in examples/, run as its docstring says, with a small budget."""

import importlib.util
import pathlib
import sys

import numpy as np
import pytest
import tyro
from gymnasium.utils.env_checker import check_env

from jaxrl_async import AGENTS, Policy

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
RUN_FILES = {
    "checkpoints",
    "config.json",
    "train.csv",
    "evaluation.csv",
    "timing.csv",
    "policy_best.npz",
    "policy_last.npz",
}


@pytest.fixture
def example(monkeypatch):
    """Loads a file of examples/ as a module."""

    def load(name):
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


def run(main, env_steps, directory):
    """Calls ``main`` as its command line does."""
    return tyro.cli(main, args=["--env-steps", str(env_steps), "--directory", str(directory)])


def file_names(directory):
    return {path.name for path in directory.iterdir()}


def evaluated_at(result):
    return [row["env_steps"] for row in result.history]


def test_quickstart_trains_and_plays_an_episode(example, tmp_path, capsys):
    quickstart = example("quickstart")

    episode_return = run(quickstart.main, 1_020, tmp_path / "run")

    # Pendulum's reward lies in [-(pi^2 + 0.1 * 8^2 + 0.001 * 2^2), 0] = [-16.27, 0], 200 steps
    assert -200 * 16.28 < episode_return < 0
    assert file_names(tmp_path / "run") == RUN_FILES
    assert "1,020 env steps, 20 updates" in capsys.readouterr().out  # (1020 - 1000 warm-up) * 1
    policy = Policy.load(tmp_path / "run")
    observations = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    assert np.all(np.abs(policy.act(observations, explore=1.0)) <= 2.0)  # Pendulum's torque


def test_dqn_cartpole_trains_a_dueling_network(example, tmp_path, capsys):
    dqn_cartpole = example("dqn_cartpole")

    result = run(dqn_cartpole.main, 1_400, tmp_path / "run")

    assert result.policy.agent.config.dueling
    tuned = AGENTS["dqn"].tasks["CartPole-v1"]
    assert result.policy.agent.config.learning_rate == tuned["agent.learning_rate"]
    assert result.summary.updates == 128  # (1400 - 1000 warm-up) * 0.5 = 200, one whole call of 128
    assert evaluated_at(result) == [0, 1_400]
    assert file_names(tmp_path / "run") == RUN_FILES
    assert result.policy.act(np.zeros((8, 4), np.float32)).tolist() in ([0] * 8, [1] * 8)
    assert "#" in capsys.readouterr().out


def test_custom_env_is_trained_by_its_factory(example, tmp_path):
    custom_env = example("custom_env")

    result = run(custom_env.main, 220, tmp_path / "run")

    assert result.summary.env == "cart"
    assert result.summary.updates == 20  # (220 - 200 warm-up) * 1
    assert result.history[-1]["evaluation/success_mean"] in np.arange(11) / 10  # of 10 episodes
    assert file_names(tmp_path / "run") == RUN_FILES
    observations = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    assert np.all(np.abs(result.policy.act(observations, explore=1.0)) <= 3.0)  # the cart's force


@pytest.mark.filterwarnings("ignore:.*symmetric and normalized space")  # a force has a unit
@pytest.mark.filterwarnings("ignore:.*value is -?infinity")  # and a velocity no bound
def test_custom_env_is_a_correct_gymnasium_env(example):
    custom_env = example("custom_env")
    env = custom_env.cart()

    check_env(env.unwrapped, skip_render_check=True)
    env.reset(seed=0)
    env.unwrapped.position, env.unwrapped.velocity = 1.9, 3.0
    *_, terminated, truncated, _ = env.step(np.array([2.0], np.float32))

    # velocity 3 + 0.05 * 2 = 3.1, position 1.9 + 0.05 * 3.1 = 2.055 > 2: off the track
    assert (terminated, truncated) == (True, False)


def test_custom_agent_is_trained_saved_and_loaded(example, tmp_path):
    custom_agent = example("custom_agent")

    policy = run(custom_agent.main, 1_400, tmp_path / "run")

    assert isinstance(policy.agent, custom_agent.SoftQ)
    assert policy.card["agent_name"] == "soft-q"
    assert file_names(tmp_path / "run") == RUN_FILES
    observations = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    assert set(policy.act(observations, explore=100.0).tolist()) == {0, 1}  # nearly uniform


def test_every_example_has_a_test():
    names = {path.stem for path in EXAMPLES.glob("*.py")}

    assert names == {"quickstart", "dqn_cartpole", "custom_env", "custom_agent"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short_and_says_its_command(path):
    text = path.read_text()

    assert len(text.splitlines()) < 120
    assert f"    python examples/{path.name}\n" in text
