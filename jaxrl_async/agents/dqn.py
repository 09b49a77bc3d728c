"""Deep Q-network, double and dueling by its config.

[1] Mnih et al. 2015, https://doi.org/10.1038/nature14236
[2] van Hasselt et al. 2016, double DQN, https://arxiv.org/abs/1509.06461
[3] Wang et al. 2016, dueling networks, https://arxiv.org/abs/1511.06581

Departs from [1] in Adam for RMSProp, and in counting the target network's period in updates.
"""

import dataclasses
import functools
from typing import Any, Literal, final

import flax.struct
import jax
import jax.numpy as jnp
import optax

from jaxrl_async import checks as check
from jaxrl_async.agents.agent import Trainable, descend, optimizer, trainable
from jaxrl_async.nets.heads import QValues
from jaxrl_async.nets.network import Network
from jaxrl_async.ops import td
from jaxrl_async.ops.distributions import epsilon_greedy, softmax_policy
from jaxrl_async.types import Batch, EnvSpec, Key, Params, UpdateInfo

EXPLORERS = {"epsilon_greedy": epsilon_greedy, "softmax": softmax_policy}
LOSSES = {"huber": td.huber, "squared": td.squared}


@dataclasses.dataclass(frozen=True)
class DQNConfig:
    """Defaults are CleanRL's for classic control, with [2] and the Huber loss of [1]."""

    discount: float = 0.99
    """Gamma, the weight of a reward one step later."""
    learning_rate: float = 2.5e-4
    """Adam's."""
    clip_norm: float | None = 10.0
    """Largest global norm of a gradient; None: not clipped."""
    target_period: int = 50
    """Updates between two steps of the target network."""
    tau: float = 1.0
    """Step of the target network; 1: a copy."""
    double: bool = True
    """The online network selects the next action, the target network evaluates it [2]."""
    dueling: bool = False
    """State value and advantages in two streams [3]."""
    loss: Literal["huber", "squared"] = "huber"
    """Of the TD error."""
    explorer: Literal["epsilon_greedy", "softmax"] = "epsilon_greedy"
    """What exploration is: the chance of a random action, or the temperature of a softmax."""
    exploration: float = 1.0
    """Epsilon, or temperature, at the start."""
    exploration_end: float = 0.05
    """Epsilon, or temperature, after exploration_steps."""
    exploration_steps: int = 10_000
    """Env steps of the linear way from exploration to exploration_end."""
    hidden: tuple[int, ...] = (120, 84)
    """Widths of the hidden layers; dueling gives the last to each stream."""

    def __post_init__(self):
        check.fraction(self, "discount", "tau")
        check.positive(self, "learning_rate", "tau")
        check.whole(self, 1, "target_period")
        check.whole(self, 0, "exploration_steps")
        check.at_least(self, 0, "exploration", "exploration_end")
        check.layer_sizes(self, "hidden")
        check.of_type(self, bool, "use True or False", "double", "dueling")
        check.one_of(self, EXPLORERS, "explorer")
        check.one_of(self, LOSSES, "loss")
        if self.explorer == "epsilon_greedy":
            check.fraction(self, "exploration", "exploration_end")
        if self.clip_norm is not None:
            check.positive(self, "clip_norm")


@flax.struct.dataclass
class DQNState:
    """All that DQN learns."""

    step: jax.Array  # [] int32, updates done
    q: Trainable
    target_q: Params


@final
@dataclasses.dataclass(frozen=True)
class DQN:
    """The algorithm: pure functions of their arguments and of these two constants."""

    config: DQNConfig
    spec: EnvSpec

    def __post_init__(self):
        check.require(
            self.spec.discrete, "env's action space", "Box", "use Discrete, or the agent sac or td3"
        )

    @functools.cached_property
    def q(self) -> Network[jax.Array]:
        """Parameters -> [B, A] values."""
        return Network(QValues(self.spec.action_size, self.config.hidden, self.config.dueling))

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam, clipped as configured."""
        return optimizer(self.config.learning_rate, self.config.clip_norm)

    def init(self, key: Key) -> DQNState:
        """A fresh state."""
        params = self.q.init(key, self.spec.zeros(batch=1))
        return DQNState(
            step=jnp.zeros((), jnp.int32),
            q=trainable(params, self.optimizer),
            target_q=jax.tree.map(jnp.copy, params),
        )

    def actor_params(self, state: DQNState) -> Params:
        """The online network's parameters."""
        return state.q.params

    def explore(self, env_steps: int) -> float:
        """Linear from exploration to exploration_end."""
        c = self.config
        progress = min(1.0, env_steps / c.exploration_steps) if c.exploration_steps else 1.0
        return c.exploration + progress * (c.exploration_end - c.exploration)

    def initial_carry(self, batch: int) -> tuple[()]:
        """Nothing is remembered."""
        return ()

    def act(self, params: Params, carry: tuple[()], observation: Any, key: Key, explore: jax.Array):
        """Actions [B] int32; ``explore`` [B] is each row's epsilon or temperature."""
        explorer = EXPLORERS[self.config.explorer]
        return explorer(key, self.q(params, observation), explore), carry

    def update(self, state: DQNState, batch: Batch, key: Key) -> tuple[DQNState, UpdateInfo]:
        """One step of the network; every ``target_period`` updates one of its target."""
        q, loss, (value, td_error) = descend(
            lambda params: self.q_loss(params, state, batch), state.q, self.optimizer
        )
        step = state.step + 1
        target_q = jax.lax.cond(
            step % self.config.target_period == 0,
            lambda: optax.incremental_update(q.params, state.target_q, self.config.tau),
            lambda: state.target_q,
        )
        metrics = {"q_loss": loss, "q": jnp.mean(value)}
        return DQNState(step, q, target_q), UpdateInfo(metrics, td_error)

    def q_loss(self, params: Params, state: DQNState, batch: Batch):
        """[1] Algorithm 1; with ``double`` the target is [2] Eq. 4."""
        t = batch.transition
        next_q = self.q(state.target_q, t.next_observation)  # [B, A]
        if self.config.double:
            next_q_online = self.q(params, t.next_observation)
            target = td.double_q_target(t.reward, t.discount, next_q, next_q_online)
        else:
            target = td.q_target(t.reward, t.discount, next_q)
        value = td.select(self.q(params, t.observation), t.action)  # [B]
        td_error = target - value
        loss = jnp.mean(batch.weight * LOSSES[self.config.loss](td_error))
        return loss, (value, jnp.abs(td_error))
