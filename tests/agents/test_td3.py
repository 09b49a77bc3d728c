"""TD3's losses against plain numpy, its delayed updates, and its preset DDPG."""

import dataclasses

import chex
import jax
import numpy as np
import pytest

from jaxrl_async.agents import AGENTS
from jaxrl_async.agents.td3 import TD3, TD3Config, ddpg
from jaxrl_async.checks import ConfigError
from jaxrl_async.types import ArraySpec, Batch, EnvSpec, Transition

B, A = 3, 2
KEY = jax.random.key(3)
SPEC = EnvSpec(ArraySpec((2,), "float32"), A, discrete=False)
# noise of 1 clipped at .3, so that both the noise and the clipping show
AGENT = TD3(TD3Config(hidden=(4,), target_noise=1.0, target_noise_clip=0.3, tau=0.25), SPEC)


@pytest.fixture(scope="module")
def state():
    """A fresh state whose targets differ from what they follow."""
    init = jax.jit(AGENT.init)
    state, other = init(jax.random.key(0)), init(jax.random.key(1))
    return dataclasses.replace(
        state, target_actor=other.actor.params, target_critic=other.critic.params
    )


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


@pytest.fixture(scope="module")
def states_and_metrics(state, batch):
    """What three updates in a row make of ``state``."""
    update, states, metrics = jax.jit(AGENT.update), [state], []
    for _ in range(3):
        new, info = update(states[-1], batch, KEY)
        states.append(new)
        metrics.append(info.metrics)
    return states, metrics


def dense(layer, x):
    return x @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"])


def policy(params, observation):
    """Actions [B, A], written out."""
    layers = params["params"]
    x = np.maximum(dense(layers["MLP_0"]["Dense_0"], observation), 0)
    return np.tanh(dense(layers["Dense_0"], x))


def critics(params, observation, action):
    """Values [N, B], written out one critic after the other."""
    x = np.concatenate([observation, action], axis=1)
    values = []
    for i in range(2):
        layers = jax.tree.map(lambda leaf, i=i: leaf[i], params["params"]["VmapCritic_0"])
        hidden = np.maximum(dense(layers["MLP_0"]["Dense_0"], x), 0)
        values.append(dense(layers["Dense_0"], hidden)[:, 0])
    return np.array(values)


def test_the_critic_loss_equals_numpys(state, batch):
    t = batch.transition

    loss, (q, td_error) = jax.jit(AGENT.critic_loss)(state.critic.params, state, batch, KEY)

    noise = np.clip(np.asarray(jax.random.normal(KEY, (B, A))), -0.3, 0.3)
    next_action = np.clip(policy(state.target_actor, t.next_observation) + noise, -1, 1)
    next_q = critics(state.target_critic, t.next_observation, next_action).min(axis=0)
    target = t.reward + t.discount * next_q
    expected_q = critics(state.critic.params, t.observation, t.action)
    expected = (batch.weight * (target - expected_q) ** 2 / 2).mean(axis=1).sum()
    np.testing.assert_allclose(q, expected_q, rtol=1e-4, atol=1e-5)
    expected_error = np.abs(target - expected_q).mean(axis=0)
    np.testing.assert_allclose(td_error, expected_error, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


def test_the_policy_ascends_the_first_critic_only(state, batch):
    loss, _ = jax.jit(AGENT.actor_loss)(state.actor.params, state, batch)

    observation = batch.transition.observation
    q = critics(state.critic.params, observation, policy(state.actor.params, observation))
    np.testing.assert_allclose(loss, -q[0].mean(), rtol=1e-4)


def test_policy_and_targets_change_every_actor_period_and_critics_always(states_and_metrics):
    states, metrics = states_and_metrics

    for number in (1, 2, 3):  # actor_period is 2
        old, new = states[number - 1], states[number]
        with pytest.raises(AssertionError):
            chex.assert_trees_all_equal(new.critic.params, old.critic.params)
        if number != 2:
            chex.assert_trees_all_equal(
                (new.actor, new.target_actor, new.target_critic),
                (old.actor, old.target_actor, old.target_critic),
            )
    with pytest.raises(AssertionError):
        chex.assert_trees_all_equal(states[2].actor.params, states[1].actor.params)
    no_value = [np.isnan(metric["actor_loss"]) for metric in metrics]
    assert no_value == [True, False, True]


def test_both_targets_move_by_tau_towards_what_they_follow(states_and_metrics):
    before, after = states_and_metrics[0][1], states_and_metrics[0][2]

    jax.tree.map(
        lambda target, old, new: np.testing.assert_allclose(
            target, 0.75 * old + 0.25 * new, rtol=1e-5, atol=1e-6
        ),
        (after.target_actor, after.target_critic),
        (before.target_actor, before.target_critic),
        (after.actor.params, after.critic.params),
    )


def test_exploration_is_noise_of_a_constant_deviation(state):
    observation, spread = np.ones((2, 2), np.float32), np.array([0, 0.1], np.float32)

    action, _ = AGENT.act(state.actor.params, (), observation, KEY, spread)

    noise = spread[:, None] * np.asarray(jax.random.normal(KEY, (2, A)))
    expected = np.clip(policy(state.actor.params, observation) + noise, -1, 1)
    np.testing.assert_allclose(action, expected, rtol=1e-5, atol=1e-6)
    assert AGENT.explore(0) == AGENT.explore(10**6) == 0.1


def test_ddpg_is_one_critic_without_delay_or_target_noise():
    preset = AGENTS["ddpg"]

    agent = preset.agent(dataclasses.replace(preset.config, hidden=(4,)), SPEC)
    state = jax.eval_shape(agent.init, KEY)

    assert preset.agent is TD3 and preset.config == ddpg()
    assert preset.config.actor_period == 1 and preset.config.target_noise == 0
    assert all(leaf.shape[0] == 1 for leaf in jax.tree.leaves(state.critic.params))
    assert all(leaf.shape[0] == 1 for leaf in jax.tree.leaves(state.target_critic))


def test_discrete_actions_are_refused_with_the_remedy():
    with pytest.raises(ConfigError, match=r"action space = 'Discrete': use a Box, or .* dqn"):
        TD3(TD3Config(), SPEC._replace(discrete=True))
