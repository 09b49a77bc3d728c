"""Whole runs with every kind of replay: what is learned, what a resume draws, what is stored."""

import dataclasses

import jax
import numpy as np
import pytest
from small import Flip, Memory, Pixels, small

from jaxrl_async import Policy, Trainer
from jaxrl_async.checks import ConfigError
from jaxrl_async.runtime.prefetch import Prefetcher


class StopAt:
    """Stops at the first row of training metrics from ``env_steps`` on."""

    def __init__(self, env_steps):
        self.env_steps = env_steps

    def on_record(self, stream, env_steps, values):
        return stream == "train" and env_steps >= self.env_steps

    def on_evaluation(self, evaluation):
        return False


def recording(path, steps=60):
    """A dataset of CartPole's shapes."""
    rng = np.random.default_rng(0)
    np.savez(
        path,
        observations=rng.normal(size=(steps, 4)).astype(np.float32),
        next_observations=rng.normal(size=(steps, 4)).astype(np.float32),
        actions=rng.integers(0, 2, steps),
        rewards=np.ones(steps),
        terminations=np.arange(steps) % 20 == 19,
        truncations=np.zeros(steps, bool),
    )
    return str(path)


KINDS = {
    "prioritized": (None, {"n_step": 3, "priority_exponent": 0.6}),
    "by buffer": (None, {"priority_exponent": 0.6, "importance_norm": "buffer"}),
    "frames": (Pixels, {"frame_stack": 4, "n_step": 3}),
    "prioritized frames": (Pixels, {"frame_stack": 4, "priority_exponent": 0.6}),
    "hindsight": (Flip, {"hindsight": "future"}),
    "mixed": (None, {"dataset": True, "priority_exponent": 0.6}),
    "on disk": (None, {"path": True}),
}


def config_of(kind, directory, **changes):
    """A small run with that kind of replay, whose ring is overwritten before the end."""
    make_env, replay = KINDS[kind]
    replay = dict(replay)
    if "dataset" in replay:
        replay["dataset"] = recording(directory.parent / "recorded.npz")
    if "path" in replay:
        replay["path"] = str(directory / "rows")
    changes = {
        "replay__capacity": 240,
        "learner__batch_size": 8,
        "actor__num_actors": 2,
        "directory": str(directory),
        **{f"replay__{name}": value for name, value in replay.items()},
        **changes,
    }
    name = "CartPole-v1" if make_env is None else make_env.__name__
    parts = {} if make_env is None else {"make_env": make_env}
    return small("dqn", name, **changes), parts


def run(config, parts, stop_at=None):
    callbacks = [] if stop_at is None else [StopAt(stop_at)]
    recorder = Memory()
    trainer = Trainer(config, recorder=recorder, callbacks=callbacks, **parts)
    trainer.run()
    trainer.parts.replay.check_valid()
    return trainer, recorder


every_kind = pytest.mark.parametrize(  # the slow ones combine what the others hold alone
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow)
        if kind in ("by buffer", "prioritized frames")
        else kind
        for kind in KINDS
    ],
)


@every_kind
def test_a_resumed_run_draws_the_same_bit_for_bit(tmp_path, kind):
    straight, _ = run(*config_of(kind, tmp_path / "straight"))
    config, parts = config_of(kind, tmp_path / "stopped")
    run(config, parts, stop_at=200)

    resumed, _ = run(config, parts)

    for a, b in zip(jax.tree.leaves(resumed.state), jax.tree.leaves(straight.state), strict=True):
        np.testing.assert_array_equal(a, b)
    samples = [trainer.parts.prefetcher._replay.sample(2, 8) for trainer in (resumed, straight)]
    np.testing.assert_array_equal(samples[0].ids, samples[1].ids)
    np.testing.assert_array_equal(samples[0].weight, samples[1].weight)
    for dtype, rows in samples[0].rows.items():
        np.testing.assert_array_equal(rows, samples[1].rows[dtype])


@every_kind
def test_in_threads_every_kind_ends_exactly_and_goes_on(tmp_path, kind):
    config, parts = config_of(kind, tmp_path / "run", lockstep=False, evaluation__period=0)

    first, _ = run(config, parts)
    second, _ = run(dataclasses.replace(config, env_steps=400), parts)

    assert (first.parts.learner.updates, second.parts.learner.updates) == (50, 75)
    assert second.parts.limiter.env_steps == 400


def test_looking_at_what_is_kept_changes_no_later_draw(tmp_path):
    drawn = []
    for name in ("looked at", "left alone"):
        config, parts = config_of("hindsight", tmp_path / name, evaluation__period=0)
        replay = run(config, parts)[0].parts.replay
        if name == "looked at":
            replay.contents()
        drawn.append(replay.sample(2, 8))

    np.testing.assert_array_equal(drawn[0].ids, drawn[1].ids)
    np.testing.assert_array_equal(drawn[0].rows["float32"], drawn[1].rows["float32"])


def test_priorities_come_back_and_say_how_old_they_are(tmp_path):
    config, parts = config_of("prioritized", tmp_path / "run", lockstep=False)

    trainer, recorder = run(config, parts)

    ages = [age for age in recorder.column("train", "replay/priority_age") if not np.isnan(age)]
    assert 0 <= min(ages) <= max(ages) <= 4  # one call waits, two are in flight, one is drawn
    assert recorder.column("train", "replay/priorities_refused")[-1] == 0
    mass = trainer.parts.replay._sampler.state()["mass"]
    assert len(set(mass[mass > 0].tolist())) > 20  # no longer all alike


def test_errors_that_are_not_finite_are_counted_and_never_become_priorities(tmp_path):
    config, parts = config_of("prioritized", tmp_path / "run")
    trainer, _ = run(config, parts)
    prefetcher: Prefetcher = trainer.parts.prefetcher
    batch = prefetcher.fetch()
    error = np.full(batch.ids.shape, 2.0, np.float32)
    error[0, :3] = [np.nan, np.inf, -np.inf]

    prefetcher.report(batch, jax.numpy.asarray(error))
    prefetcher.write_back(wait=True)

    assert prefetcher.refused == 3
    trainer.parts.replay.check_valid()


def test_hindsight_solves_what_the_same_agent_without_it_does_not(tmp_path):
    # 7 bits: a goal is met by chance in about one episode of ten
    success = {}
    for hindsight in ("future", None):
        config = small(
            "dqn",
            "Flip",
            env_steps=2_500,
            record_period=10_000,
            replay__capacity=10_000,
            replay__hindsight=hindsight,
            learner__batch_size=128,
            learner__warmup_steps=500,
            actor__random_steps=500,
            learner__updates_per_env_step=0.5,
            learner__updates_per_call=8,
            learner__publish_period=8,
            evaluation__period=10_000,
            evaluation__episodes=100,
            agent__hidden=(128, 128),
            agent__learning_rate=1e-3,
            agent__exploration_steps=5_000,
            agent__exploration_end=0.1,
            agent__target_period=100,
            agent__discount=0.95,
            directory=str(tmp_path / str(hindsight)),
        )
        trainer, _ = run(config, {"make_env": Flip})
        success[hindsight] = trainer.history[-1]["evaluation/success_mean"]

    assert success["future"] >= 0.9
    assert success[None] < 0.2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replay__frame_stack": 4}, r"replay.frame_stack = 4: no first or last axis"),
        ({"replay__hindsight": "final"}, r"replay.hindsight = 'final': the env has no compute_rew"),
        ({"replay__dataset": "nowhere.npz"}, r"replay.dataset = 'nowhere.npz': there is no such"),
    ],
)
def test_a_replay_that_does_not_fit_the_env_is_refused(tmp_path, changes, message):
    config = small("dqn", "CartPole-v1", directory=str(tmp_path / "run"), **changes)

    with pytest.raises(ConfigError, match=message):
        Trainer(config, recorder=Memory()).run()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"replay__priority_exponent": 0.6, "replay__capacity": 400},
            r"replay.capacity = 400: use at least 30 .* = 480",
        ),
        (
            {"replay__frame_stack": 4, "replay__capacity": 39, "actor__chunk_steps": 8},
            r"replay.capacity = 39: use at least .* \(1 \+ frame_stack\) = 40",
        ),
        (
            {"replay__hindsight": "future", "replay__n_step": 3},
            r"ReplayConfig.hindsight = 'future': use it with n_step = 1",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused_at_construction(changes, message):
    with pytest.raises(ConfigError, match=message):
        small("dqn", "CartPole-v1", **changes)


def test_a_policy_of_named_observations_acts_on_one_and_on_several(tmp_path):
    config, parts = config_of("hindsight", tmp_path / "run", evaluation__period=0)
    run(config, parts)
    policy = Policy.load(tmp_path / "run")
    one, _ = Flip().reset(seed=0)
    several = {name: np.stack([part, part]) for name, part in one.items()}

    action = policy.act(one)

    assert action.shape == () and action in range(7)
    np.testing.assert_array_equal(policy.act(several), [action, action])
    with pytest.raises(ValueError, match=r"lacks \['desired_goal'\]: use a dict"):
        policy.act({name: part for name, part in one.items() if name != "desired_goal"})
    with pytest.raises(ValueError, match="with and without a leading axis"):
        policy.act({**one, "observation": several["observation"]})
