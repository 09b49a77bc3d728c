"""SAC's losses against plain numpy, and what its temperature does."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_async.agents.sac import SAC, SACConfig
from jaxrl_async.checks import ConfigError
from jaxrl_async.types import ArraySpec, Batch, EnvSpec, Transition

B, A = 3, 2
KEY = jax.random.key(3)
SPEC = EnvSpec(ArraySpec((2,), "float32"), A, discrete=False)
AGENT = SAC(SACConfig(hidden=(4,), initial_temperature=0.5, learning_rate=0.1, tau=0.25), SPEC)


@pytest.fixture(scope="module")
def state():
    """A fresh state whose target critics differ from the critics."""
    init = jax.jit(AGENT.init)
    state, other = init(jax.random.key(0)), init(jax.random.key(1))
    return dataclasses.replace(state, target_critic=other.critic.params)


@pytest.fixture(scope="module")
def update():
    return jax.jit(AGENT.update)


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    transition = Transition(
        observation=rng.normal(size=(B, 2)).astype(np.float32),
        action=rng.uniform(-1, 1, (B, A)).astype(np.float32),
        reward=np.array([1, -2, 3], np.float32),
        discount=np.array([0.9, 0.81, 0], np.float32),
        next_observation=rng.normal(size=(B, 2)).astype(np.float32),
    )
    return Batch(transition, np.array([1, 0.5, 2], np.float32))


def dense(layer, x):
    return x @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"])


def policy(params, observation):
    """Mean and log std [B, A], written out."""
    layers = params["params"]
    x = np.maximum(dense(layers["MLP_0"]["Dense_0"], observation), 0)
    out = dense(layers["Dense_0"], x)
    return out[:, :A], np.clip(out[:, A:], -20, 2)


def critics(params, observation, action):
    """Values [N, B], written out one critic after the other."""
    x = np.concatenate([observation, action], axis=1)
    values = []
    for i in range(2):
        layers = jax.tree.map(lambda leaf, i=i: leaf[i], params["params"]["VmapCritic_0"])
        hidden = np.maximum(dense(layers["MLP_0"]["Dense_0"], x), 0)
        values.append(dense(layers["Dense_0"], hidden)[:, 0])
    return np.array(values)


def sample(params, observation, key):
    """Actions [B, A] and log-probabilities [B]: a Gaussian's density over tanh's slope."""
    mean, log_std = policy(params, observation)
    noise = np.asarray(jax.random.normal(key, mean.shape))
    action = np.tanh(mean + np.exp(log_std) * noise)
    density = np.exp(-0.5 * noise**2) / (np.exp(log_std) * np.sqrt(2 * np.pi) * (1 - action**2))
    return action, np.log(density).sum(axis=1)


def test_the_critic_loss_equals_numpys(state, batch):
    t = batch.transition

    loss, (q, td_error) = jax.jit(AGENT.critic_loss)(state.critic.params, state, batch, KEY)

    next_action, next_log_prob = sample(state.actor.params, t.next_observation, KEY)
    next_q = critics(state.target_critic, t.next_observation, next_action).min(axis=0)
    target = t.reward + t.discount * (next_q - 0.5 * next_log_prob)
    expected_q = critics(state.critic.params, t.observation, t.action)
    expected = (batch.weight * (target - expected_q) ** 2 / 2).mean(axis=1).sum()
    np.testing.assert_allclose(q, expected_q, rtol=1e-4, atol=1e-5)
    expected_error = np.abs(target - expected_q).mean(axis=0)
    np.testing.assert_allclose(td_error, expected_error, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


def test_the_actor_loss_equals_numpys(state, batch):
    loss, entropy = jax.jit(AGENT.actor_loss)(state.actor.params, state, batch, KEY)

    observation = batch.transition.observation
    action, log_prob = sample(state.actor.params, observation, KEY)
    q = critics(state.critic.params, observation, action).min(axis=0)
    np.testing.assert_allclose(loss, (0.5 * log_prob - q).mean(), rtol=1e-4)
    np.testing.assert_allclose(entropy, -log_prob.mean(), rtol=1e-4)


def test_the_gradient_of_the_temperature_loss_is_entropy_minus_its_target():
    gradient = jax.grad(lambda log_alpha: AGENT.temperature_loss(log_alpha, jnp.float32(-5))[0])

    # target: minus the action size, -2; the same however small alpha is
    np.testing.assert_allclose([gradient(0.0), gradient(-9.0)], [-3, -3])


@pytest.mark.parametrize(
    ("log_std", "temperature"),
    [
        # entropy of a narrow Gaussian: 2 (1.419 - 5) = -7.2, below -2: log alpha + .1
        (-5.0, 0.5 * np.exp(0.1)),
        # of tanh(N(0, 1)): positive, above -2: log alpha - .1
        (0.0, 0.5 * np.exp(-0.1)),
    ],
    ids=["below", "above"],
)
def test_the_temperature_rises_below_the_target_entropy_and_falls_above(
    state, batch, update, log_std, temperature
):
    zeros = jax.tree.map(jnp.zeros_like, state.actor.params)  # mean 0, log std 0 everywhere
    zeros["params"]["Dense_0"]["bias"] = jnp.array([0, 0, log_std, log_std], jnp.float32)
    start = dataclasses.replace(state, actor=state.actor.replace(params=zeros))

    new, info = update(start, batch, KEY)

    # Adam's first step is the learning rate, .1, against the gradient's sign
    assert (info.metrics["entropy"] < -2) == (log_std == -5)
    np.testing.assert_allclose(info.metrics["temperature"], temperature, rtol=1e-5)
    np.testing.assert_allclose(np.exp(new.log_alpha.params), temperature, rtol=1e-5)


def test_the_targets_move_by_tau_towards_the_new_critics(state, batch, update):
    new, _ = update(state, batch, KEY)

    jax.tree.map(
        lambda target, old, critic: np.testing.assert_allclose(
            target, 0.75 * old + 0.25 * critic, rtol=1e-5, atol=1e-6
        ),
        new.target_critic,
        state.target_critic,
        new.critic.params,
    )


def test_the_spread_is_scaled_by_explore_and_0_is_the_mode(state):
    observation = np.ones((2, 2), np.float32)

    action, _ = AGENT.act(state.actor.params, (), observation, KEY, np.array([0, 1], np.float32))

    mean, _ = policy(state.actor.params, observation)
    np.testing.assert_allclose(action[0], np.tanh(mean[0]), rtol=1e-5, atol=1e-6)
    assert np.all(action[1] != action[0])


def test_the_target_entropy_is_minus_the_action_size_unless_given():
    assert AGENT.target_entropy == -2
    assert SAC(SACConfig(), SPEC._replace(action_size=3)).target_entropy == -3
    assert SAC(SACConfig(target_entropy=-0.5), SPEC).target_entropy == -0.5


def test_discrete_actions_are_refused_with_the_remedy():
    with pytest.raises(ConfigError, match=r"action space = 'Discrete': use a Box, or .* dqn"):
        SAC(SACConfig(), SPEC._replace(discrete=True))
