"""The compiled scan over updates."""

import jax
import numpy as np
import pytest

from jaxrl_async.agents.dqn import DQN, DQNConfig
from jaxrl_async.checks import ConfigError
from jaxrl_async.runtime.learner import MAX_IN_FLIGHT, Learner, make_mesh
from jaxrl_async.types import ArraySpec, Batch, EnvSpec, Layout

SPEC = EnvSpec(ArraySpec((3,), "float32"), 2, True)
AGENT = DQN(DQNConfig(hidden=(8,), target_period=4), SPEC)
K, B = 3, 4


def make_learner(devices: int = 1, updates_per_call: int = K) -> Learner:
    return Learner(
        AGENT,
        AGENT.init(jax.random.key(0)),
        batch_size=B,
        updates_per_call=updates_per_call,
        key=jax.random.key(1),
        mesh=make_mesh(devices),
    )


def batches(seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = {"float32": rng.normal(size=(K, B, 8)), "int32": rng.integers(0, 2, (K, B, 1))}
    return {k: v.astype(k) for k, v in rows.items()}, np.ones((K, B), np.float32)


@pytest.fixture(scope="module")
def learner():
    return make_learner()


def test_one_call_of_k_updates_equals_k_single_updates(learner):
    rows, weight = batches()
    before = jax.tree.map(np.array, learner.state)

    learner.step(*jax.device_put((rows, weight), learner.batch_sharding))

    expected = before
    for k in range(K):
        transition = Layout(SPEC).unpack({dtype: r[k] for dtype, r in rows.items()})
        key = jax.random.fold_in(jax.random.key(1), int(expected.step))
        expected, _ = jax.jit(AGENT.update)(expected, Batch(transition, weight[k]), key)
    for found, wanted in zip(
        jax.tree.leaves(learner.state), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_the_callers_state_survives_donation():
    state = AGENT.init(jax.random.key(0))
    mesh = make_mesh(1)
    learner = Learner(
        AGENT, state, batch_size=B, updates_per_call=K, key=jax.random.key(1), mesh=mesh
    )

    learner.step(*jax.device_put(batches(), learner.batch_sharding))
    learner.finish()

    assert np.isfinite(np.asarray(state.q.params["params"]["Dense_0"]["kernel"])).all()


def test_the_step_is_compiled_once(learner):
    learner.compile()
    compiled = learner._compiled

    for seed in range(3):
        learner.step(*jax.device_put(batches(seed), learner.batch_sharding))

    assert learner._compiled is compiled  # a Compiled refuses any other shape or sharding


def test_a_thousand_updates_in_one_call_take_no_more_compiling_than_one():
    # (sbx #14): the program that XLA compiles has the same operations, whatever K is
    one, thousand = (make_learner(updates_per_call=k) for k in (1, 1_000))

    sizes = [len(text_of(learner).splitlines()) for learner in (one, thousand)]

    assert sizes[0] == sizes[1] > 100


def text_of(learner: Learner) -> str:
    """The compiled step as XLA gets it."""
    rows, weight = learner._sample_shapes(learner._shape)
    return learner._step.lower(learner._state, rows, weight, learner._key).as_text()


def test_another_shape_is_refused_and_not_compiled(learner):
    rows, weight = batches()
    half = {dtype: r[:, : B // 2] for dtype, r in rows.items()}

    with pytest.raises(TypeError, match="compiled"):
        learner.step(*jax.device_put((half, weight[:, : B // 2]), learner.batch_sharding))


def test_at_most_two_calls_are_in_flight_and_done_counts_the_finished():
    learner = make_learner()

    for calls in range(1, 5):
        learner.step(*jax.device_put(batches(), learner.batch_sharding))
        assert learner.updates == calls * K
        assert learner.updates - learner.done <= MAX_IN_FLIGHT * K
    learner.finish()

    assert learner.done == 4 * K


def test_metrics_are_means_over_updates_since_the_last_take():
    learner = make_learner()
    assert learner.metric_names == ["q", "q_loss"]
    assert np.isnan(learner.take_metrics()["q"])

    for _ in range(2):
        learner.step(*jax.device_put(batches(), learner.batch_sharding))
    learner.finish()

    assert np.isfinite(learner.take_metrics()["q_loss"])
    assert np.isnan(learner.take_metrics()["q_loss"])


def test_a_batch_with_nan_changes_no_parameter_and_is_counted():
    learner = make_learner()
    rows, weight = batches()
    rows["float32"][1, 0, 3] = np.nan  # a reward of the second update
    before = jax.tree.map(np.array, learner.state.q.params)

    learner.step(*jax.device_put((rows, weight), learner.batch_sharding))
    learner.finish()

    assert learner.take_metrics()["skipped"] == 1.0
    after = learner.state.q.params
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))
    assert any(
        (a != b).any() for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True)
    )


def test_more_devices_than_there_are_is_refused():
    with pytest.raises(ConfigError, match=r"learner.devices = 1000: this machine has 8; use fewer"):
        make_mesh(1000)
