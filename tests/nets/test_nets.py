"""Shapes, bounds and ensembles of the networks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_async.nets.ensemble import Critic, CriticEnsemble
from jaxrl_async.nets.heads import DeterministicPolicy, QValues, TanhNormalPolicy
from jaxrl_async.nets.network import Network
from jaxrl_async.nets.torso import MLP, flatten

B, A, N = 5, 3, 4
KEY = jax.random.key(0)
OBSERVATION = np.random.default_rng(0).normal(size=(B, 2)).astype(np.float32)
ACTION = np.random.default_rng(1).uniform(-1, 1, (B, A)).astype(np.float32)


def made(module, *inputs):
    """A network, compiled, and its fresh parameters."""
    network = Network(module)
    return jax.jit(network), jax.jit(network.init)(KEY, *inputs)


def test_flatten_joins_a_dict_in_order_of_names_as_float32():
    observation = {
        "joints": np.array([[0.5, -0.5], [1.5, 2.5]], np.float32),
        "camera": np.array([[[0, 1], [2, 255]], [[3, 4], [5, 6]]], np.uint8),
        "lamp": np.array([7, 8], np.int64),  # one number per row
    }

    flat = flatten(observation)

    assert flat.dtype == jnp.float32
    np.testing.assert_array_equal(flat, [[0, 1, 2, 255, 0.5, -0.5, 7], [3, 4, 5, 6, 1.5, 2.5, 8]])


def test_flatten_reaches_nested_parts_and_leaves_a_matrix_alone():
    nested = {"b": {"y": np.ones((2, 1), np.float32), "x": np.zeros((2, 2), np.float32)}}

    np.testing.assert_array_equal(flatten(nested), [[0, 0, 1], [0, 0, 1]])
    np.testing.assert_array_equal(flatten(OBSERVATION), OBSERVATION)


def test_an_mlp_is_dense_layers_with_relus():
    network, params = made(MLP((8, 6)), OBSERVATION)

    features = network(params, OBSERVATION)

    x = OBSERVATION
    for layer in ("Dense_0", "Dense_1"):
        weights = jax.tree.map(np.asarray, params["params"][layer])
        x = np.maximum(x @ weights["kernel"] + weights["bias"], 0)
    assert features.shape == (B, 6)
    np.testing.assert_allclose(features, x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("hidden", "dueling"), [((8,), False), ((8, 6), True)])
def test_q_values_are_one_per_action(hidden, dueling):
    network, params = made(QValues(A, hidden, dueling), OBSERVATION)

    assert network(params, OBSERVATION).shape == (B, A)


def test_the_squashed_gaussians_spread_is_bounded():
    network, params = made(TanhNormalPolicy(A, (8,)), OBSERVATION)

    policy = network(params, OBSERVATION)
    extreme = network(params, 1e6 * OBSERVATION)

    assert policy.mean.shape == policy.log_std.shape == (B, A)
    assert jnp.min(extreme.log_std) == -20 and jnp.max(extreme.log_std) == 2
    assert jnp.max(jnp.abs(extreme.mean)) > 1e3  # the mean is not bounded, the action is
    assert jnp.max(jnp.abs(extreme.mode())) <= 1


def test_a_deterministic_policy_stays_within_bounds():
    network, params = made(DeterministicPolicy(A, (8,)), OBSERVATION)

    actions, extreme = network(params, OBSERVATION), network(params, 1e6 * OBSERVATION)

    assert actions.shape == (B, A)
    assert jnp.max(jnp.abs(actions)) < 1
    np.testing.assert_array_equal(jnp.abs(extreme), 1)


@pytest.fixture(scope="module")
def ensemble():
    return made(CriticEnsemble(N, (8,)), OBSERVATION, ACTION)


def test_an_ensemble_has_a_leading_axis_in_values_and_parameters(ensemble):
    network, params = ensemble

    assert network(params, OBSERVATION, ACTION).shape == (N, B)
    assert all(leaf.shape[0] == N for leaf in jax.tree.leaves(params))


def test_the_members_of_an_ensemble_differ_at_the_start(ensemble):
    network, params = ensemble

    q = np.asarray(network(params, OBSERVATION, ACTION))

    assert all(np.all(q[i] != q[j]) for i in range(N) for j in range(i))


def test_each_member_of_an_ensemble_is_a_critic_of_its_own(ensemble):
    network, params = ensemble
    (inner,) = params["params"].values()

    q = network(params, OBSERVATION, ACTION)

    critic = jax.jit(Network(Critic((8,))))
    for i in range(N):
        member = {"params": jax.tree.map(lambda leaf, i=i: leaf[i], inner)}
        np.testing.assert_allclose(critic(member, OBSERVATION, ACTION), q[i], rtol=1e-5, atol=1e-6)


def test_a_slice_of_an_ensemble_is_a_smaller_ensemble(ensemble):
    network, params = ensemble
    first = jax.tree.map(lambda leaf: leaf[:1], params)

    q = jax.jit(Network(CriticEnsemble(1, (8,))))(first, OBSERVATION, ACTION)

    expected = network(params, OBSERVATION, ACTION)[:1]
    np.testing.assert_allclose(q, expected, rtol=1e-5, atol=1e-6)


def test_a_critic_sees_the_observation_and_the_action(ensemble):
    network, params = ensemble

    def total(observation, action):
        return network(params, observation, action).sum()

    by_observation, by_action = jax.grad(total, argnums=(0, 1))(OBSERVATION, ACTION)

    assert jnp.any(by_observation != 0) and jnp.any(by_action != 0)


def test_networks_of_equal_modules_are_equal_and_hashable():
    one, two, other = (Network(MLP(hidden)) for hidden in [(8,), (8,), (6,)])

    assert one == two and hash(one) == hash(two)
    assert one != other
