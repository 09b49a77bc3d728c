"""From features to values, actions and distributions over them."""

from typing import Any, final

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_async.nets.torso import MLP, flatten
from jaxrl_async.ops.distributions import TanhNormal

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0  # the SAC authors' bounds


@final
class QValues(nn.Module):
    """Action values [B, A]; dueling as in Wang et al. 2016, Eq. 9, arXiv 1511.06581."""

    action_size: int
    hidden: tuple[int, ...]
    dueling: bool = False

    @nn.compact
    def __call__(self, observation: Any) -> jax.Array:
        """The values of an observation pytree [B, *obs]."""
        x = flatten(observation)
        if not self.dueling:
            return nn.Dense(self.action_size)(MLP(self.hidden)(x))
        x = MLP(self.hidden[:-1])(x)
        value = nn.Dense(1)(MLP(self.hidden[-1:])(x))
        advantage = nn.Dense(self.action_size)(MLP(self.hidden[-1:])(x))
        return value + advantage - jnp.mean(advantage, axis=-1, keepdims=True)


@final
class TanhNormalPolicy(nn.Module):
    """A squashed Gaussian over actions [B, A]."""

    action_size: int
    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, observation: Any) -> TanhNormal:
        """The distribution at an observation pytree [B, *obs]."""
        x = MLP(self.hidden)(flatten(observation))
        mean, log_std = jnp.split(nn.Dense(2 * self.action_size)(x), 2, axis=-1)
        return TanhNormal(mean, jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX))


@final
class DeterministicPolicy(nn.Module):
    """Actions [B, A] in (-1, 1)."""

    action_size: int
    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, observation: Any) -> jax.Array:
        """The actions at an observation pytree [B, *obs]."""
        return jnp.tanh(nn.Dense(self.action_size)(MLP(self.hidden)(flatten(observation))))
