"""Five environments of one screen or less, whose values and best actions are known.

Each agent learns from a fixed batch of all that can happen. A failure says what is broken: the
value function, its dependence on the observation, discounting, the policy, or its dependence on
the observation. After Andy Jones, "Debugging Reinforcement Learning Systems".
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_async.agents import AGENTS
from jaxrl_async.checks import ConfigError
from jaxrl_async.types import ArraySpec, Batch, EnvSpec, Transition

B, UPDATES = 64, 500
GAMMA = 0.9

FASTER: dict[str, dict[str, Any]] = {  # besides what all are given
    "dqn": {"target_period": 1},
    "sac": {"initial_temperature": 0.01, "target_entropy": -4.0},  # little noise, little bonus
}

every_agent = pytest.mark.parametrize(  # ddpg's code is td3's
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name == "ddpg" else name for name in AGENTS],
)


@functools.cache
def make(name: str) -> Any:
    preset = AGENTS[name]
    changes = {"hidden": (32,), "learning_rate": 5e-3, "tau": 0.05} | FASTER.get(name, {})
    config = dataclasses.replace(preset.config, **changes)
    observation = ArraySpec((1,), "float32")
    try:
        return preset.agent(config, EnvSpec(observation, 1, discrete=False))
    except ConfigError:
        return preset.agent(config, EnvSpec(observation, 2, discrete=True))


@functools.cache
def compiled(name: str) -> Any:
    """The init, and many updates on one batch, whose TD error is that of the first."""

    def train(state, batch, key):
        def body(state, _):
            state, info = make(name).update(state, batch, jax.random.fold_in(key, state.step))
            return state, info.td_error

        state, td_error = jax.lax.scan(body, state, length=UPDATES)
        return state, td_error[0]

    return jax.jit(make(name).init), jax.jit(train)


class Probe:
    """A batch [B] in which observations and actions are spread evenly, and what is learned."""

    def __init__(self, name: str):
        self.name, self.agent = name, make(name)
        rng = np.random.default_rng(0)
        self.sign = np.where(np.arange(B) % 2 == 0, 1, -1).astype(np.float32)
        self.zeros, self.ones = np.zeros(B, np.float32), np.ones(B, np.float32)
        if self.agent.spec.discrete:
            self.action = (np.arange(B) // 2 % 2).astype(np.int32)
        else:
            self.action = rng.uniform(-1, 1, (B, 1)).astype(np.float32)

    def reward_near(self, best: np.ndarray) -> np.ndarray:
        """Reward of being at +.5 or -.5, as ``best`` [B] says by its sign; 1 is the highest."""
        if self.agent.spec.discrete:
            return (self.action == (best > 0)).astype(np.float32)
        return 1 - np.square(self.action[:, 0] - best)

    def batch(self, observation, reward, discount, next_observation) -> Batch:
        transition = Transition(
            observation[:, None], self.action, reward, discount, next_observation[:, None]
        )
        return Batch(transition, self.ones)

    def learn(self, observation, reward, discount=None, next_observation=None) -> None:
        """Trains; by default every transition ends its episode."""
        discount = self.zeros if discount is None else discount
        next_observation = self.zeros if next_observation is None else next_observation
        self.batched = self.batch(observation, reward, discount, next_observation)
        init, train = compiled(self.name)
        self.state, _ = train(init(jax.random.key(0)), self.batched, jax.random.key(1))

    def values(self) -> np.ndarray:
        """Q [B] of the batch's observations and actions: what it lacks to a reward above all."""
        observation = self.batched.transition.observation[:, 0]
        above = self.batch(observation, 10 * self.ones, self.zeros, self.zeros)
        _, train = compiled(self.name)
        return 10 - np.asarray(train(self.state, above, jax.random.key(2))[1])

    def greedy(self, *observations: float) -> np.ndarray:
        """The actions without exploration, those of two actions as -.5 and .5."""
        params = self.agent.actor_params(self.state)
        observation = jnp.array(observations, jnp.float32)[:, None]
        carry = self.agent.initial_carry(len(observations))
        explore = jnp.zeros(len(observations))
        action, _ = self.agent.act(params, carry, observation, jax.random.key(3), explore)
        return np.asarray(action) - 0.5 if self.agent.spec.discrete else np.asarray(action)[:, 0]


@every_agent
def test_a_constant_reward_is_the_value_of_everything(name):
    probe = Probe(name)

    probe.learn(probe.zeros, reward=probe.ones)

    np.testing.assert_allclose(probe.values(), 1, atol=0.05)


@every_agent
def test_a_reward_that_depends_on_the_observation_is_told_apart(name):
    probe = Probe(name)

    probe.learn(probe.sign, reward=probe.sign)

    np.testing.assert_allclose(probe.values(), probe.sign, atol=0.1)


@every_agent
def test_a_reward_one_step_later_is_discounted_once(name):
    probe = Probe(name)
    first = probe.sign > 0  # observation 1, reward 0, then -1; there reward 1, and the end

    probe.learn(
        probe.sign,
        reward=np.where(first, probe.zeros, probe.ones),
        discount=np.where(first, GAMMA * probe.ones, probe.zeros),
        next_observation=np.where(first, -probe.ones, probe.zeros),
    )

    # the second is worth 1, the first 0 + .9 * 1
    np.testing.assert_allclose(probe.values(), np.where(first, GAMMA, 1), atol=0.1)


@every_agent
def test_the_action_with_the_highest_reward_is_found(name):
    probe = Probe(name)

    probe.learn(probe.zeros, reward=probe.reward_near(0.5 * probe.ones))

    np.testing.assert_allclose(probe.greedy(0), [0.5], atol=0.25)
    np.testing.assert_allclose(probe.values(), probe.batched.transition.reward, atol=0.1)


@every_agent
def test_the_best_action_is_found_for_each_observation(name):
    probe = Probe(name)

    probe.learn(probe.sign, reward=probe.reward_near(0.5 * probe.sign))

    np.testing.assert_allclose(probe.greedy(1, -1), [0.5, -0.5], atol=0.25)
    np.testing.assert_allclose(probe.values(), probe.batched.transition.reward, atol=0.1)
