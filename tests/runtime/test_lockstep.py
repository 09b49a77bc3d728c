"""Whole runs in lockstep."""

import dataclasses
import functools
import json
import math
import pathlib

import jax
import numpy as np
import pytest
from small import Counting, Memory, small

from jaxrl_async import Policy, Trainer
from jaxrl_async.agents import AGENTS
from jaxrl_async.agents.dqn import DQN, DQNConfig
from jaxrl_async.types import EnvSpec

ENVS = {"dqn": "CartPole-v1", "sac": "Pendulum-v1", "td3": "Pendulum-v1", "ddpg": "Pendulum-v1"}


def run(config, directory, **parts):
    config = dataclasses.replace(config, directory=str(directory))
    recorder = parts.pop("recorder", Memory())
    trainer = Trainer(config, recorder=recorder, **parts)
    return trainer, trainer.run(), recorder


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("dqn", "sac") else pytest.param(name, marks=pytest.mark.slow)
        for name in sorted(AGENTS)
    ],
)
def test_a_run_twice_writes_the_same_bytes(name, tmp_path):
    config = small(name, ENVS[name], replay__n_step=2, actor__num_actors=2, actor__envs_per_actor=2)

    for directory in ("first", "second"):
        run(config, tmp_path / directory)

    for stream in ("train.csv", "evaluation.csv"):
        first, second = (tmp_path / d / stream for d in ("first", "second"))
        assert first.read_bytes() == second.read_bytes()
        assert len(first.read_text().splitlines()) > 3


def test_a_seed_changes_parameters_and_experience(tmp_path):
    trainers = [
        run(small("sac", "Pendulum-v1", seed=seed), tmp_path / str(seed))[0] for seed in (1, 2)
    ]

    first, second = (trainer.state.actor.params["params"] for trainer in trainers)
    assert not np.array_equal(first["Dense_0"]["kernel"], second["Dense_0"]["kernel"])
    assert (tmp_path / "1/train.csv").read_bytes() != (tmp_path / "2/train.csv").read_bytes()


def test_updates_are_exactly_those_owed(tmp_path):
    # 300 env steps, 100 of warm-up, ratio 0.25: 50 updates owed, 16 whole calls of 3 are 48.
    config = small("dqn", "CartPole-v1", learner__updates_per_call=3)

    trainer, summary, _ = run(config, tmp_path / "run")

    assert summary.env_steps == 300
    assert summary.updates == 48
    assert int(trainer.state.step) == 48


def test_many_envs_count_env_steps_not_calls(tmp_path):
    # 4 envs, ratio 1: 1000 env steps less 100 of warm-up are 900 updates; evaluations at 0, 400,
    # 800 and after the last update.
    config = small(
        "dqn",
        "CartPole-v1",
        env_steps=1000,
        actor__envs_per_actor=4,
        learner__updates_per_env_step=1.0,
        evaluation__period=400,
    )

    _, summary, recorder = run(config, tmp_path / "run")

    assert summary.updates == 900
    assert recorder.column("evaluation", "env_steps") == [0, 400, 800, 1000]
    assert recorder.column("train", "env_steps") == [
        *(t for t in range(50, 1000, 2) if t % 50 < 4 and t % 4 == 0),
        1000,
    ]


def test_evaluations_are_due_by_env_steps_whatever_episodes_do(tmp_path):
    # Episodes of 70 steps end on no multiple of 100.
    config = small("dqn", "Counting", env_steps=350)

    _, _, recorder = run(config, tmp_path / "run", make_env=lambda: Counting(length=70))

    assert recorder.column("evaluation", "env_steps") == [0, 100, 200, 300, 350]
    assert recorder.column("evaluation", "evaluation/return_mean") == [70.0] * 5
    assert recorder.column("evaluation", "evaluation/length_mean") == [70.0] * 5
    assert recorder.column("evaluation", "evaluation/version")[-1] == 62  # floor(250 * 0.25)


def test_training_episodes_are_counted_at_their_true_ends(tmp_path):
    # 2 lanes, 150 vector steps, episodes of 7 steps: 2 * 21 whole episodes, each of return 7.
    config = small("dqn", "Counting", actor__envs_per_actor=2, record_period=100)

    _, summary, recorder = run(config, tmp_path / "run", make_env=lambda: Counting(length=7))

    assert summary.episodes == 42
    assert recorder.column("train", "actor/return_mean") == [7.0] * 3
    assert recorder.column("train", "actor/length_mean") == [7.0] * 3


@pytest.mark.parametrize(("ends", "discount"), [("terminated", 0.0), ("truncated", 0.99)])
def test_no_reset_observation_ever_stands_in_next_observation(tmp_path, ends, discount):
    config = small("dqn", "Counting", evaluation__period=0)

    trainer, _, _ = run(config, tmp_path / "run", make_env=lambda: Counting(3, ends))

    stored = trainer.parts.replay.contents()
    t = stored.observation[:, 0]
    np.testing.assert_array_equal(stored.next_observation[:, 0], t + 1)
    np.testing.assert_array_equal(t[:6], [0, 1, 2, 0, 1, 2])
    np.testing.assert_array_equal(stored.reward, 1.0)
    expected = np.where(t == 2, discount, 0.99).astype(np.float32)
    np.testing.assert_array_equal(stored.discount, expected)
    assert len(stored.reward) == 300


def test_actors_and_lanes_are_seeded_apart(tmp_path):
    made = []

    def make_env():
        made.append(Counting(length=50))
        return made[-1]

    config = small(
        "dqn",
        "Counting",
        actor__num_actors=2,
        actor__envs_per_actor=2,
        evaluation__period=150,
        learner__warmup_steps=10,
    )

    run(config, tmp_path / "run", make_env=make_env)

    seeds = [seed for env in made for seed in env.seeds]
    assert None not in seeds
    assert len(set(seeds)) == len(seeds)


def test_the_best_policy_is_the_one_that_was_scored(tmp_path):
    trainer, summary, _ = run(small("sac", "Pendulum-v1"), tmp_path / "run")

    best = max(trainer.evaluations, key=lambda evaluation: evaluation.score)
    policy = Policy.load(tmp_path / "run")
    kept = policy.params["params"]["Dense_0"]["kernel"]
    np.testing.assert_array_equal(kept, best.snapshot.params["params"]["Dense_0"]["kernel"])
    assert policy.card["score"] == best.score == summary.best_score
    last = Policy.load(tmp_path / "run" / "policy_last.npz")
    np.testing.assert_array_equal(
        last.params["params"]["Dense_0"]["kernel"],
        trainer.state.actor.params["params"]["Dense_0"]["kernel"],
    )


def test_without_evaluation_the_last_policy_is_kept(tmp_path):
    _, summary, recorder = run(small("sac", "Pendulum-v1", evaluation__period=0), tmp_path / "run")

    assert recorder.rows["evaluation"] == []
    assert math.isnan(summary.score)
    assert Policy.load(tmp_path / "run").card["env_steps"] == 300


def test_evaluating_changes_no_bit_of_the_learner(tmp_path):
    runs = [
        run(
            small("dqn", "CartPole-v1", evaluation__period=p, learner__publish_period=20),
            tmp_path / str(p),
        )
        for p in (0, 60)
    ]

    files = [(tmp_path / str(p) / "train.csv").read_bytes() for p in (0, 60)]
    assert files[0] == files[1]
    assert len(runs[1][0].evaluations) == 6


@pytest.mark.parametrize("devices", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_several_devices_learn_what_one_does(tmp_path, devices):
    one, many = (
        run(small("sac", "Pendulum-v1", learner__devices=n), tmp_path / str(n))[0].state
        for n in (1, devices)
    )

    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(many), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_the_config_is_written_with_versions(tmp_path):
    run(small("dqn", "CartPole-v1", env_steps=150), tmp_path / "run")

    written = json.loads((tmp_path / "run/config.json").read_text())
    assert written["agent_name"] == "dqn"
    assert written["agent"]["hidden"] == [16, 16]
    assert written["learner"]["batch_size"] == 16
    assert set(written["versions"]) >= {"jax", "jaxrl-async", "numpy"}


def test_a_failing_env_is_raised_and_everything_closed(tmp_path):
    closed = []

    class Failing(Counting):
        def step(self, action):
            if self.t == 2:
                raise RuntimeError("the simulator is gone")
            return super().step(action)

        def close(self):
            closed.append(self)

    recorder = Memory()
    with pytest.raises(RuntimeError, match="the simulator is gone"):
        config = small("dqn", "Failing", evaluation__period=0)
        run(config, tmp_path / "run", make_env=Failing, recorder=recorder)

    assert len(closed) == 1
    assert recorder.closed == 1


def test_new_directories_are_named_after_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    for _ in range(2):
        Trainer(small("dqn", "CartPole-v1", env_steps=120), recorder=Memory()).run()

    found = sorted(path.name for path in pathlib.Path("runs").iterdir())
    assert len(found) == 2
    assert all(name.startswith("dqn-CartPole-v1-seed0-") for name in found)


@dataclasses.dataclass(frozen=True)
class Remembering:
    """DQN with a carry that counts the steps since the episode began."""

    config: DQNConfig
    spec: EnvSpec

    @functools.cached_property
    def dqn(self):
        return DQN(self.config, self.spec)

    def __getattr__(self, name):
        if name in ("init", "update", "actor_params", "explore"):
            return getattr(self.dqn, name)
        raise AttributeError(name)

    def initial_carry(self, batch):
        return {"steps": np.zeros((batch, 1), np.float32)}

    def act(self, params, carry, observation, key, explore):
        action, _ = self.dqn.act(params, (), observation, key, explore)
        return action, {"steps": carry["steps"] + 1}


def test_the_carry_before_each_step_is_stored_and_begins_with_the_episode(tmp_path):
    config = small("dqn", "Counting", actor__envs_per_actor=2, actor__random_steps=0)
    parts = {"make_agent": Remembering, "make_env": lambda: Counting(length=7)}

    trainer, _, recorder = run(config, tmp_path / "run", **parts)

    stored = trainer.parts.replay.contents()
    np.testing.assert_array_equal(stored.extras["steps"], stored.observation)  # both count from 0
    assert recorder.column("evaluation", "evaluation/return_mean") == [7.0] * 4
