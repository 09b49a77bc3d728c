"""Twin delayed deep deterministic policy gradient, and its preset DDPG.

[1] Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477
[2] Lillicrap et al. 2016, DDPG, https://arxiv.org/abs/1509.02971

Departs from [2] in the preset DDPG: exploration noise is Gaussian, as in [1], not
Ornstein-Uhlenbeck, and critics are not regularized.
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
from jaxrl_async.nets.heads import DeterministicPolicy
from jaxrl_async.nets.network import Network
from jaxrl_async.ops import td
from jaxrl_async.ops.distributions import gaussian_noise
from jaxrl_async.types import Batch, EnvSpec, Key, Params, UpdateInfo


@dataclasses.dataclass(frozen=True)
class TD3Config:
    """Defaults are those of the authors' published code for [1]."""

    discount: float = 0.99
    """Gamma, the weight of a reward one step later."""
    learning_rate: float = 3e-4
    """Adam's, of policy and critics."""
    clip_norm: float | None = None
    """Largest global norm of a gradient; None: not clipped."""
    tau: float = 0.005
    """Step of the target networks at each policy update."""
    exploration_noise: float = 0.1
    """Standard deviation of the noise on actions, of a half-range of 1."""
    target_noise: float = 0.2
    """Standard deviation of the noise on the target policy's actions."""
    target_noise_clip: float = 0.5
    """Largest noise on the target policy's actions."""
    num_critics: int = 2
    """Critics whose minimum is the target; the policy ascends the first."""
    actor_period: int = 2
    """Critic updates per update of policy and targets."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of policy and critics."""

    def __post_init__(self):
        check.fraction(self, "discount", "tau")
        check.positive(self, "learning_rate")
        check.at_least(self, 0, "exploration_noise", "target_noise", "target_noise_clip")
        check.whole(self, 1, "num_critics", "actor_period")
        check.layer_sizes(self, "hidden")
        if self.clip_norm is not None:
            check.positive(self, "clip_norm")


def ddpg() -> TD3Config:
    """[2] as a special case: one critic, no delay, no target noise."""
    return TD3Config(num_critics=1, actor_period=1, target_noise=0.0)


@flax.struct.dataclass
class TD3State:
    """All that TD3 learns."""

    step: jax.Array  # [] int32, critic updates done
    actor: Trainable
    critic: Trainable  # every leaf has a leading axis N
    target_actor: Params
    target_critic: Params


@final
@dataclasses.dataclass(frozen=True)
class TD3:
    """The algorithm: pure functions of their arguments and of these two constants."""

    config: TD3Config
    spec: EnvSpec

    def __post_init__(self):
        check.require(
            not self.spec.discrete, "env's action space", "Discrete", "use a Box, or the agent dqn"
        )

    @functools.cached_property
    def policy(self) -> Network[jax.Array]:
        """Parameters -> actions."""
        return Network(DeterministicPolicy(self.spec.action_size, self.config.hidden))

    @functools.cached_property
    def critic(self) -> Network[jax.Array]:
        """Parameters -> [N, B] values."""
        return Network(CriticEnsemble(self.config.num_critics, self.config.hidden))

    @functools.cached_property
    def first_critic(self) -> Network[jax.Array]:
        """The one critic that the policy ascends."""
        return Network(CriticEnsemble(1, self.config.hidden))

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        """The same for policy and critics."""
        return optimizer(self.config.learning_rate, self.config.clip_norm)

    def init(self, key: Key) -> TD3State:
        """A fresh state."""
        actor_key, critic_key = jax.random.split(key)
        observation = self.spec.zeros(batch=1)
        action = jnp.zeros((1, self.spec.action_size))
        actor_params = self.policy.init(actor_key, observation)
        critic_params = self.critic.init(critic_key, observation, action)
        return TD3State(
            step=jnp.zeros((), jnp.int32),
            actor=trainable(actor_params, self.optimizer),
            critic=trainable(critic_params, self.optimizer),
            target_actor=jax.tree.map(jnp.copy, actor_params),
            target_critic=jax.tree.map(jnp.copy, critic_params),
        )

    def actor_params(self, state: TD3State) -> Params:
        """The policy's parameters."""
        return state.actor.params

    def explore(self, env_steps: int) -> float:
        """The noise's standard deviation, the same throughout."""
        return self.config.exploration_noise

    def initial_carry(self, batch: int) -> tuple[()]:
        """Nothing is remembered."""
        return ()

    def act(self, params: Params, carry: tuple[()], observation: Any, key: Key, explore: jax.Array):
        """Actions [B, A], each row with noise of standard deviation ``explore`` [B]."""
        return gaussian_noise(key, self.policy(params, observation), explore), carry

    def update(self, state: TD3State, batch: Batch, key: Key) -> tuple[TD3State, UpdateInfo]:
        """Critics; every ``actor_period`` updates also policy and targets: [1], Algorithm 1."""
        critic, critic_loss, (q, td_error) = descend(
            lambda params: self.critic_loss(params, state, batch, key),
            state.critic,
            self.optimizer,
        )
        state = dataclasses.replace(state, step=state.step + 1, critic=critic)

        state, actor_loss = jax.lax.cond(
            state.step % self.config.actor_period == 0,
            lambda: self.update_actor(state, batch),
            lambda: (state, jnp.nan),  # NaN: no value this time
        )
        metrics = {"critic_loss": critic_loss, "actor_loss": actor_loss, "q": jnp.mean(q)}
        return state, UpdateInfo(metrics, td_error)

    def update_actor(self, state: TD3State, batch: Batch) -> tuple[TD3State, jax.Array]:
        """One step of the policy and of all targets."""
        actor, actor_loss, _ = descend(
            lambda params: self.actor_loss(params, state, batch), state.actor, self.optimizer
        )
        tau = self.config.tau
        target_actor = optax.incremental_update(actor.params, state.target_actor, tau)
        target_critic = optax.incremental_update(state.critic.params, state.target_critic, tau)
        state = dataclasses.replace(
            state, actor=actor, target_actor=target_actor, target_critic=target_critic
        )
        return state, actor_loss

    def critic_loss(self, params: Params, state: TD3State, batch: Batch, key: Key):
        """[1] Eq. 10 with the smoothed target policy of its section 5.3."""
        t = batch.transition
        clip = self.config.target_noise_clip
        noise = self.config.target_noise * jax.random.normal(key, t.action.shape)
        next_action = self.policy(state.target_actor, t.next_observation)
        next_action = jnp.clip(next_action + jnp.clip(noise, -clip, clip), -1.0, 1.0)
        next_q = self.critic(state.target_critic, t.next_observation, next_action)  # [N, B]
        target = td.clipped_double_q_target(t.reward, t.discount, next_q)

        q = self.critic(params, t.observation, t.action)  # [N, B]
        loss, td_error = td.ensemble_squared_error(q, target, batch.weight)
        return loss, (q, td_error)

    def actor_loss(self, params: Params, state: TD3State, batch: Batch):
        """Minus the first critic's value of the policy's actions: [1], Algorithm 1."""
        observation = batch.transition.observation
        action = self.policy(params, observation)
        first = jax.tree.map(lambda leaf: leaf[:1], state.critic.params)
        return -jnp.mean(self.first_critic(first, observation, action)), None
