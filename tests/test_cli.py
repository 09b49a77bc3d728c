"""The command line, as a user types it."""

import pathlib

import gymnasium as gym
import pytest

from jaxrl_async.cli import main

TINY = [
    *("--env-steps", "150", "--learner.warmup-steps", "100", "--actor.random-steps", "100"),
    *("--learner.batch-size", "16", "--agent.hidden", "8", "--evaluation.episodes", "2"),
]


def test_train_evaluate_and_list(tmp_path, capsys):
    run = str(tmp_path / "run")
    settings = ["--learner.updates-per-call", "1", "--directory", run]

    assert main(["train", "dqn", "CartPole-v1", *TINY, *settings]) == 0
    assert main(["evaluate", run, "--episodes", "3"]) == 0
    assert main(["list"]) == 0

    out, err = capsys.readouterr()
    assert "dqn on CartPole-v1: return" in out
    assert f"the run lies in {run}" in out
    assert "over 3 episodes" in out
    assert "tuned for CartPole-v1" in out
    assert "150 env steps: evaluation return" in err
    assert (pathlib.Path(run) / "policy_best.npz").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "sad", "Pendulum-v1"], "agent = 'sad': no such agent; did you mean 'sac'?"),
        (["train", "sac", "Pendulun-v1"], "did you mean 'Pendulum-v1'?"),
        (["train", "sac"], "train needs an agent and an env"),
        (["train", "sac", "CartPole-v1"], "use a Box, or the agent dqn"),
        (["train", "dqn", "Pendulum-v1"], "use Discrete, or the agent sac or td3"),
        (["train", "dqn", "Taxi-v4"], "Discrete is not supported; use a Box"),
        (
            ["train", "sac", "Pendulum-v1", "--replay.capacity", "100"],
            "learner.batch_size = 256: use at most replay.capacity = 100",
        ),
        (
            ["train", "sac", "Pendulum-v1", "--agent.tau", "2"],
            "SACConfig.tau = 2.0: use a number from 0 to 1",
        ),
        (
            ["train", "sac", "Pendulum-v1", "--env-steps", "500"],
            "learner.warmup_steps = 1000: use fewer than env_steps = 500",
        ),
        (
            ["train", "sac", "Pendulum-v1", "--learner.slack", "0.5"],
            "use a slack of 1 or more",
        ),
        (["train", "sac", "Pendulum-v1", "--actor.device", "abacus"], "no such platform"),
        (
            ["train", "sac", "Pendulum-v1", "--learner.updates-per-call", "19001"],
            "learner.updates_per_call = 19001: use at most",
        ),
        (
            ["train", "sac", "Pendulum-v1", "--actor.chunk-steps", "20001"],
            "actor.chunk_steps = 20001: use a chunk of at most env_steps = 20000",
        ),
        (["train", "sac", "Pendulum-v1", "--directory", "/dev/null/run"], "can be written to"),
        (["evaluate", "nowhere"], "no policy at nowhere"),
        (["list", "all"], "list takes no arguments"),
        (["trian"], "no command 'trian'"),
    ],
)
def test_each_mistake_gets_one_clear_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    assert main(arguments) == 2

    out, err = capsys.readouterr()
    assert message in err
    assert err.startswith("error: ")
    assert "Traceback" not in out + err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--agent.taw", "0.1"], "--agent.tau"),
        (["--learner.batch-size", "many"], "many"),
    ],
)
def test_a_wrong_field_names_the_right_one(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["train", "sac", "Pendulum-v1", *arguments])

    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_without_a_command_the_usage_is_shown(capsys):
    assert main([]) == 2
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.count("usage: python -m jaxrl_async COMMAND") == 2


def test_taxi_is_what_the_test_takes_it_for():
    assert isinstance(gym.make("Taxi-v4").observation_space, gym.spaces.Discrete)
