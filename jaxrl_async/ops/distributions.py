"""Distributions over actions: sample, log-probability, mode; and the value-based explorers.

One spread per row: ``explore`` is [B], 0 is greedy in all of them.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

HALF_LOG_TAU = 0.9189385332046727  # log(2 pi) / 2


class TanhNormal(NamedTuple):
    """A Gaussian squashed into (-1, 1): a = tanh(u), u ~ N(mean, exp(log_std)^2).

    Haarnoja et al. 2018, appendix C, https://arxiv.org/abs/1812.05905. Log-probabilities are
    taken of u, never recovered from a: atanh of a saturated action is infinite.
    """

    mean: jax.Array  # [B, A]
    log_std: jax.Array  # [B, A]

    def mode(self) -> jax.Array:
        """The greedy action [B, A], the squashed mean."""
        return jnp.tanh(self.mean)

    def sample(self, key: jax.Array, explore: jax.Array) -> jax.Array:
        """Actions [B, A], the spread of each row scaled by ``explore`` [B]."""
        chex.assert_rank([self.mean, explore], [2, 1])
        noise = jax.random.normal(key, self.mean.shape)
        return jnp.tanh(self.mean + explore[:, None] * jnp.exp(self.log_std) * noise)

    def sample_and_log_prob(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Actions [B, A], differentiable in the parameters, and their log-probabilities [B]."""
        noise = jax.random.normal(key, self.mean.shape)
        u = self.mean + jnp.exp(self.log_std) * noise
        # The noise itself, not (u - mean) / std: a small std is lost beside a mean in float32.
        return jnp.tanh(u), self._log_prob(u, noise)

    def log_prob(self, u: jax.Array) -> jax.Array:
        """Log pi(tanh(u)) [B] for ``u`` [B, A] before the squashing; Eq. 26 there."""
        chex.assert_rank(u, 2)
        chex.assert_equal_shape([u, self.mean])
        return self._log_prob(u, (u - self.mean) * jnp.exp(-self.log_std))

    def _log_prob(self, u: jax.Array, noise: jax.Array) -> jax.Array:
        gaussian = -0.5 * jnp.square(noise) - self.log_std - HALF_LOG_TAU
        return jnp.sum(gaussian - log_tanh_jacobian(u), axis=-1)


def log_tanh_jacobian(u: jax.Array) -> jax.Array:
    """log(1 - tanh(u)^2), elementwise, as 2 (log 2 - u - softplus(-2u)), which never is log 0."""
    return 2.0 * (jnp.log(2.0) - u - jax.nn.softplus(-2.0 * u))


def epsilon_greedy(key: jax.Array, q: jax.Array, explore: jax.Array) -> jax.Array:
    """The best action, or with probability ``explore`` [B] a uniformly random one: [B] int32."""
    chex.assert_rank([q, explore], [2, 1])
    coin_key, action_key = jax.random.split(key)
    uniform = jax.random.randint(action_key, q.shape[:1], 0, q.shape[1], jnp.int32)
    random = jax.random.uniform(coin_key, q.shape[:1]) < explore
    return jnp.where(random, uniform, jnp.argmax(q, axis=-1).astype(jnp.int32))


def softmax_policy(key: jax.Array, q: jax.Array, explore: jax.Array) -> jax.Array:
    """An action drawn from softmax(q / explore), ``explore`` [B] the temperature: [B] int32.

    Drawn as argmax(q + explore * Gumbel noise), which at temperature 0 is the best action.
    """
    chex.assert_rank([q, explore], [2, 1])
    noise = jax.random.gumbel(key, q.shape)
    return jnp.argmax(q + explore[:, None] * noise, axis=-1).astype(jnp.int32)


def gaussian_noise(key: jax.Array, action: jax.Array, explore: jax.Array) -> jax.Array:
    """``action`` [B, A] plus noise of standard deviation ``explore`` [B], clipped to [-1, 1]."""
    chex.assert_rank([action, explore], [2, 1])
    noise = jax.random.normal(key, action.shape)
    return jnp.clip(action + explore[:, None] * noise, -1.0, 1.0)
