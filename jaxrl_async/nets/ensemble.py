"""Critics of state and action, several at once."""

from typing import Any, final

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_async.nets.torso import MLP, flatten


@final
class Critic(nn.Module):
    """Q(s, a): [B]."""

    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, observation: Any, action: jax.Array) -> jax.Array:
        """The values at an observation pytree [B, *obs] and actions [B, A]."""
        x = jnp.concatenate([flatten(observation), action], axis=-1)
        return nn.Dense(1)(MLP(self.hidden)(x))[:, 0]


@final
class CriticEnsemble(nn.Module):
    """N critics of the same inputs as one network: [N, B]; every parameter has a leading N."""

    num_critics: int
    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, observation: Any, action: jax.Array) -> jax.Array:
        """The values of all critics at an observation pytree [B, *obs] and actions [B, A]."""
        critics = nn.vmap(
            Critic,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=0,
            axis_size=self.num_critics,
        )
        # To each critic a copy: of shared inputs XLA makes one product, whose layout the next layer
        # cannot take, and so copies every activation.
        inputs = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (self.num_critics, *x.shape)), (observation, action)
        )
        return critics(self.hidden)(*inputs)
