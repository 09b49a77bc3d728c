"""Soft actor-critic with a learned temperature.

[1] Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905 (equation numbers are of v2)

Departs from [1] in one point: the temperature loss is linear in log alpha, so that its gradient
does not vanish as alpha becomes small.
"""

import dataclasses
import functools
from typing import Any, final

import flax.struct
import jax
import jax.numpy as jnp
import optax

from jaxrl_async import checks as check
from jaxrl_async.agents.agent import Trainable, descend, optimizer, trainable
from jaxrl_async.nets.ensemble import CriticEnsemble
from jaxrl_async.nets.heads import TanhNormalPolicy
from jaxrl_async.nets.network import Network
from jaxrl_async.ops import td
from jaxrl_async.ops.distributions import TanhNormal
from jaxrl_async.types import Batch, EnvSpec, Key, Params, UpdateInfo


@dataclasses.dataclass(frozen=True)
class SACConfig:
    """Defaults are Table 1 of [1]."""

    discount: float = 0.99
    """Gamma, the weight of a reward one step later."""
    learning_rate: float = 3e-4
    """Adam's, of policy, critics and temperature."""
    clip_norm: float | None = None
    """Largest global norm of a gradient; None: not clipped."""
    tau: float = 0.005
    """Step of the target critics towards the critics at each update."""
    initial_temperature: float = 1.0
    """Alpha at the start."""
    target_entropy: float | None = None
    """Entropy that the temperature is adjusted towards; None: minus the action size."""
    num_critics: int = 2
    """Critics whose minimum is believed."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of policy and critics."""

    def __post_init__(self):
        check.fraction(self, "discount", "tau")
        check.positive(self, "learning_rate", "initial_temperature")
        check.whole(self, 1, "num_critics")
        check.layer_sizes(self, "hidden")
        if self.target_entropy is not None:
            check.finite(self, "target_entropy")
        if self.clip_norm is not None:
            check.positive(self, "clip_norm")


@flax.struct.dataclass
class SACState:
    """All that SAC learns."""

    step: jax.Array  # [] int32, updates done
    actor: Trainable
    critic: Trainable  # every leaf has a leading axis N
    target_critic: Params
    log_alpha: Trainable


@final
@dataclasses.dataclass(frozen=True)
class SAC:
    """The algorithm: pure functions of their arguments and of these two constants."""

    config: SACConfig
    spec: EnvSpec

    def __post_init__(self):
        check.require(
            not self.spec.discrete, "env's action space", "Discrete", "use a Box, or the agent dqn"
        )

    @functools.cached_property
    def policy(self) -> Network[TanhNormal]:
        """Parameters -> distribution over actions."""
        return Network(TanhNormalPolicy(self.spec.action_size, self.config.hidden))

    @functools.cached_property
    def critic(self) -> Network[jax.Array]:
        """Parameters -> [N, B] values."""
        return Network(CriticEnsemble(self.config.num_critics, self.config.hidden))

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        """The same for policy, critics and temperature."""
        return optimizer(self.config.learning_rate, self.config.clip_norm)

    @property
    def target_entropy(self) -> float:
        """As configured, or minus the action size: [1], Table 1."""
        given = self.config.target_entropy
        return -float(self.spec.action_size) if given is None else given

    def init(self, key: Key) -> SACState:
        """A fresh state."""
        actor_key, critic_key = jax.random.split(key)
        observation = self.spec.zeros(batch=1)
        action = jnp.zeros((1, self.spec.action_size))
        critic_params = self.critic.init(critic_key, observation, action)
        log_alpha = jnp.log(jnp.asarray(self.config.initial_temperature, jnp.float32))
        return SACState(
            step=jnp.zeros((), jnp.int32),
            actor=trainable(self.policy.init(actor_key, observation), self.optimizer),
            critic=trainable(critic_params, self.optimizer),
            target_critic=jax.tree.map(jnp.copy, critic_params),
            log_alpha=trainable(log_alpha, self.optimizer),
        )

    def actor_params(self, state: SACState) -> Params:
        """The policy's parameters."""
        return state.actor.params

    def explore(self, env_steps: int) -> float:
        """1: the policy's own spread."""
        return 1.0

    def initial_carry(self, batch: int) -> tuple[()]:
        """Nothing is remembered."""
        return ()

    def act(self, params: Params, carry: tuple[()], observation: Any, key: Key, explore: jax.Array):
        """Actions [B, A], each row's spread scaled by ``explore`` [B]."""
        return self.policy(params, observation).sample(key, explore), carry

    def update(self, state: SACState, batch: Batch, key: Key) -> tuple[SACState, UpdateInfo]:
        """Critics and their targets, then policy and temperature against the new critics."""
        critic_key, actor_key = jax.random.split(key)

        critic, critic_loss, (q, td_error) = descend(
            lambda params: self.critic_loss(params, state, batch, critic_key),
            state.critic,
            self.optimizer,
        )
        target_critic = optax.incremental_update(
            critic.params, state.target_critic, self.config.tau
        )
        state = dataclasses.replace(
            state, step=state.step + 1, critic=critic, target_critic=target_critic
        )

        actor, actor_loss, entropy = descend(
            lambda params: self.actor_loss(params, state, batch, actor_key),
            state.actor,
            self.optimizer,
        )
        log_alpha, _, _ = descend(
            lambda log_alpha: self.temperature_loss(log_alpha, entropy),
            state.log_alpha,
            self.optimizer,
        )
        metrics = {
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
            "q": jnp.mean(q),
            "entropy": entropy,
            "temperature": jnp.exp(log_alpha.params),
        }
        return dataclasses.replace(state, actor=actor, log_alpha=log_alpha), UpdateInfo(
            metrics, td_error
        )

    def critic_loss(self, params: Params, state: SACState, batch: Batch, key: Key):
        """[1] Eq. 5, with the smaller of two target critics as in its section 6."""
        t = batch.transition
        next_policy = self.policy(state.actor.params, t.next_observation)
        next_action, next_log_prob = next_policy.sample_and_log_prob(key)
        next_q = self.critic(state.target_critic, t.next_observation, next_action)  # [N, B]
        bonus = -jnp.exp(state.log_alpha.params) * next_log_prob
        target = td.clipped_double_q_target(t.reward, t.discount, next_q, bonus)

        q = self.critic(params, t.observation, t.action)  # [N, B]
        loss, td_error = td.ensemble_squared_error(q, target, batch.weight)
        return loss, (q, td_error)

    def actor_loss(self, params: Params, state: SACState, batch: Batch, key: Key):
        """[1] Eq. 7; its aux is the entropy of the policy on this batch."""
        observation = batch.transition.observation
        action, log_prob = self.policy(params, observation).sample_and_log_prob(key)
        q = self.critic(state.critic.params, observation, action)  # [N, B]
        alpha = jnp.exp(state.log_alpha.params)
        return jnp.mean(alpha * log_prob - jnp.min(q, axis=0)), -jnp.mean(log_prob)

    def temperature_loss(self, log_alpha: jax.Array, entropy: jax.Array):
        """[1] Eq. 18, linear in log alpha: its gradient is entropy - target entropy."""
        return log_alpha * jax.lax.stop_gradient(entropy - self.target_entropy), None
