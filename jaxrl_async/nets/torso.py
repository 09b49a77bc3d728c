"""From observations to features."""

from typing import Any, final

import flax.linen as nn
import jax
import jax.numpy as jnp


def flatten(observation: Any) -> jax.Array:
    """One float32 vector per row, [B, D], of an observation pytree [B, *obs] of any dtype."""
    parts = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(observation)]
    return jnp.concatenate([part.astype(jnp.float32) for part in parts], axis=-1)


@final
class MLP(nn.Module):
    """Dense layers, each followed by a ReLU: [B, D] -> [B, hidden[-1]]."""

    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """The features."""
        for width in self.hidden:
            x = nn.relu(nn.Dense(width)(x))
        return x
