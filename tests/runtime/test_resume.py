"""Stop and resume: in lockstep the same bits as without a stop, in threads the same counts."""

import dataclasses

import flax.struct
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import Counting, Memory, small

from jaxrl_async import Policy, Trainer
from jaxrl_async.checks import ConfigError
from jaxrl_async.runtime.checkpoint import Checkpointer, read_npz, write_npz


class StopAt:
    """Stops at the first row of training metrics from ``env_steps`` on."""

    def __init__(self, env_steps):
        self.env_steps = env_steps

    def on_record(self, stream, env_steps, values):
        return stream == "train" and env_steps >= self.env_steps

    def on_evaluation(self, evaluation):
        return False


def run(config, directory, stop_at=None, **parts):
    config = dataclasses.replace(config, directory=str(directory))
    callbacks = [] if stop_at is None else [StopAt(stop_at)]
    trainer = Trainer(config, recorder=Memory(), callbacks=callbacks, **parts)
    return trainer, trainer.run()


def files(directory):
    return {name: (directory / name).read_bytes() for name in ("train.csv", "evaluation.csv")}


def assert_same(one, two):
    for a, b in zip(jax.tree.leaves(one.state), jax.tree.leaves(two.state), strict=True):
        np.testing.assert_array_equal(a, b)
    stored = one.parts.replay.contents(), two.parts.replay.contents()
    for a, b in zip(jax.tree.leaves(stored[0]), jax.tree.leaves(stored[1]), strict=True):
        np.testing.assert_array_equal(a, b)
    draws = [trainer.parts.replay.sample(2, 8).ids for trainer in (one, two)]
    np.testing.assert_array_equal(*draws)


@pytest.mark.parametrize(
    ("name", "env", "changes"),
    [
        # two actors in turn, open windows and episodes, parameters older than the learner's
        (
            "dqn",
            "CartPole-v1",
            {
                "replay__n_step": 3,
                "actor__num_actors": 2,
                "actor__envs_per_actor": 2,
                "learner__publish_period": 7,
            },
        ),
        # an open chunk, and a ring that was overwritten
        (
            "sac",
            "Pendulum-v1",
            {"actor__chunk_steps": 3, "replay__capacity": 130, "record_period": 1},
        ),
    ],
)
def test_stopped_twice_equals_never_stopped(tmp_path, name, env, changes):
    config = small(name, env, **changes)

    straight, _ = run(config, tmp_path / "straight")
    for stop_at in (101, 200):
        _, summary = run(config, tmp_path / "stopped", stop_at)
        assert summary.env_steps < 300
    resumed, summary = run(config, tmp_path / "stopped")

    assert summary.env_steps == 300
    assert files(tmp_path / "stopped") == files(tmp_path / "straight")
    assert repr(resumed.history) == repr(straight.history)  # NaN is not NaN's equal
    assert_same(resumed, straight)


def test_a_larger_budget_goes_on_as_if_it_had_always_been_so(tmp_path):
    config = small("dqn", "CartPole-v1")

    run(dataclasses.replace(config, env_steps=200), tmp_path / "stopped")
    resumed, _ = run(config, tmp_path / "stopped")
    straight, _ = run(config, tmp_path / "straight")

    assert files(tmp_path / "stopped") == files(tmp_path / "straight")
    assert_same(resumed, straight)


def test_a_finished_run_is_resumed_to_the_same_end(tmp_path):
    config = small("dqn", "CartPole-v1")
    _, first = run(config, tmp_path / "run")
    before = files(tmp_path / "run")

    _, again = run(config, tmp_path / "run")

    assert files(tmp_path / "run") == before
    assert again._replace(seconds=0.0) == first._replace(seconds=0.0)


def test_a_run_goes_on_from_a_periodic_checkpoint_of_one_that_died(tmp_path):
    config = small("dqn", "CartPole-v1", checkpoint__period=100)

    class Dies(StopAt):
        def on_record(self, stream, env_steps, values):
            if env_steps >= self.env_steps:
                raise KeyboardInterrupt

    dying = Trainer(
        dataclasses.replace(config, directory=str(tmp_path / "died")),
        recorder=Memory(),
        callbacks=[Dies(250)],
    )
    with pytest.raises(KeyboardInterrupt):
        dying.run()
    resumed, _ = run(config, tmp_path / "died")
    straight, _ = run(config, tmp_path / "straight")

    assert files(tmp_path / "died") == files(tmp_path / "straight")
    assert_same(resumed, straight)


class Drifting(Counting):
    """Shows other observations the second time."""

    drift = 0.0

    def step(self, action):
        observation, *rest = super().step(action)
        return (observation + np.float32(self.drift), *rest)


def test_an_env_that_comes_back_different_loses_its_episode_and_says_so(tmp_path, monkeypatch):
    config = small("dqn", "Drifting", evaluation__period=0)
    parts = {"make_env": lambda: Drifting(length=1_000)}
    run(config, tmp_path / "run", 130, **parts)

    monkeypatch.setattr(Drifting, "drift", 0.25)
    with pytest.warns(UserWarning, match=r"lanes \[0\] did not come back where they stood"):
        trainer, summary = run(config, tmp_path / "run", **parts)

    assert summary.env_steps == 300
    t = trainer.parts.replay.contents().observation[:, 0]
    assert t[150] == 0.0  # stopped at 150, where a new episode had to begin


def test_threads_go_on_with_their_counts(tmp_path):
    config = small("dqn", "CartPole-v1", lockstep=False, actor__num_actors=2)

    _, first = run(config, tmp_path / "run", stop_at=150)
    trainer, second = run(config, tmp_path / "run")

    assert 150 <= first.env_steps < 300 <= second.env_steps < 302
    assert second.updates == (second.env_steps - 100) // 4
    assert int(trainer.state.step) == second.updates
    assert second.episodes >= first.episodes
    assert len(trainer.parts.replay.contents().reward) == second.env_steps
    for name in ("train", "evaluation", "timing"):
        lines = (tmp_path / "run" / f"{name}.csv").read_text().splitlines()
        x = [int(line.split(",")[0]) for line in lines[1:]]
        assert x == sorted(x)


def test_the_best_policy_survives_a_resume(tmp_path):
    config = small("dqn", "Counting")
    lengths = {"evaluation": 9}

    def make_env():
        return Counting(length=lengths["evaluation"])

    run(config, tmp_path / "run", 150, make_env=make_env)
    lengths["evaluation"] = 4
    _, summary = run(config, tmp_path / "run", make_env=make_env)

    assert summary.best_score == 9.0
    assert Policy.load(tmp_path / "run").card["score"] == 9.0


def test_every_difference_of_another_config_is_named(tmp_path):
    config = small("dqn", "CartPole-v1", env_steps=150)
    run(config, tmp_path / "run")

    changed = small("dqn", "CartPole-v1", env_steps=150, seed=3, agent__discount=0.5)
    with pytest.raises(
        ConfigError, match=r"agent.discount was 0.99 and is 0.5; seed was 0 and is 3"
    ):
        run(changed, tmp_path / "run")


def test_only_the_newest_checkpoints_and_the_rows_they_need_are_kept(tmp_path):
    config = small("dqn", "CartPole-v1", checkpoint__period=50, replay__capacity=60)

    run(config, tmp_path / "run")

    kept = sorted(p.name for p in (tmp_path / "run/checkpoints").iterdir())
    assert len(kept) == 3  # two checkpoints, and the log of rows
    rows = sorted((tmp_path / "run/checkpoints/replay").iterdir())
    assert rows[0].name.startswith("000000000150")  # capacity 60 before row 250, in segments of 50
    assert sum(p.stat().st_size for p in rows) < 100_000


@flax.struct.dataclass
class Odd:
    """A state with a typed key and integers that float32 cannot hold."""

    key: jax.Array
    count: jax.Array


class NoReplay:
    """A replay without rows."""

    capacity = 1

    def rows(self, start, stop, most):
        raise AssertionError

    def restart(self, first): ...


def test_typed_keys_and_exact_integers_come_back(tmp_path):
    state = Odd(jax.random.key(42), jnp.asarray(16_777_217, jnp.int32))
    checkpointer = Checkpointer(tmp_path, keep=1)
    run_state = {"rows": 0, "capacity": 1}

    checkpointer.save(10, 5, state, run_state, NoReplay())
    path = checkpointer.latest()
    again = checkpointer.restore_arrays(path, state)

    assert jax.random.uniform(again.key) == jax.random.uniform(state.key)
    assert int(again.count) == 16_777_217
    with pytest.raises(ConfigError, match=r"count is .*int32.* needs .*float32"):
        checkpointer.restore_arrays(path, state.replace(count=jnp.zeros(())))
    with pytest.raises(ConfigError, match=r"count is \(\(\), 'int32'\).* needs \(\(2,\)"):
        checkpointer.restore_arrays(path, state.replace(count=jnp.zeros(2, jnp.int32)))


def test_generators_come_back_with_their_128_bit_state(tmp_path):
    rng = np.random.default_rng(7)
    rng.random(3)

    write_npz(tmp_path / "state.npz", {"rng": rng.bit_generator.state, "x": [np.arange(2), None]})
    state = read_npz(tmp_path / "state.npz")

    again = np.random.default_rng()
    again.bit_generator.state = state["rng"]
    np.testing.assert_array_equal(again.random(5), rng.random(5))
    np.testing.assert_array_equal(state["x"][0], [0, 1])


def test_mujoco_episodes_are_played_again_bit_for_bit(tmp_path):
    config = small("td3", "InvertedPendulum-v5", actor__envs_per_actor=2, evaluation__period=0)

    straight, _ = run(config, tmp_path / "straight")
    run(config, tmp_path / "stopped", 130)
    resumed, _ = run(config, tmp_path / "stopped")

    assert_same(resumed, straight)
    assert isinstance(gym.make("InvertedPendulum-v5").action_space, gym.spaces.Box)
