"""Temporal-difference targets and errors.

Every target takes ``discount`` = gamma^n (1 - terminated), made once where experience is made
(``replay/nstep.py``), so no agent sees a done flag or a power of gamma.
"""

import chex
import jax
import jax.numpy as jnp


def bootstrap(reward: jax.Array, discount: jax.Array, value: jax.Array) -> jax.Array:
    """The n-step return ``r + discount * value``; where discount is 0, value is not read.

    A network may say inf or NaN of a state after the end, and 0 * inf would be NaN.

    Args:
      reward: [B] n-step reward.
      discount: [B] gamma^n, 0 where the episode terminated.
      value: [B] value of the next observation.

    Returns:
      [B]
    """
    chex.assert_rank([reward, discount, value], 1)
    chex.assert_equal_shape([reward, discount, value])
    return reward + jnp.where(discount == 0, 0.0, discount * value)


def q_target(reward: jax.Array, discount: jax.Array, next_q: jax.Array) -> jax.Array:
    """Q-learning's target ``r + discount * max_a Q(s', a)``.

    Mnih et al. 2013, the y of Eq. 2, https://arxiv.org/abs/1312.5602.

    Args:
      reward: [B] n-step reward.
      discount: [B] gamma^n, 0 where the episode terminated.
      next_q: [B, A] target network at the next observation.

    Returns:
      [B] target, with gradients stopped.
    """
    chex.assert_rank([reward, discount, next_q], [1, 1, 2])
    return jax.lax.stop_gradient(bootstrap(reward, discount, jnp.max(next_q, axis=-1)))


def double_q_target(
    reward: jax.Array, discount: jax.Array, next_q: jax.Array, next_q_online: jax.Array
) -> jax.Array:
    """Double Q-learning's target ``r + discount * Q_target(s', argmax_a Q_online(s', a))``.

    Van Hasselt et al. 2016, Eq. 4, https://arxiv.org/abs/1509.06461.

    Args:
      reward: [B] n-step reward.
      discount: [B] gamma^n, 0 where the episode terminated.
      next_q: [B, A] target network at the next observation: it evaluates.
      next_q_online: [B, A] online network there: it selects.

    Returns:
      [B] target, with gradients stopped.
    """
    chex.assert_rank([reward, discount, next_q, next_q_online], [1, 1, 2, 2])
    chex.assert_equal_shape([next_q, next_q_online])
    value = select(next_q, jnp.argmax(next_q_online, axis=-1))
    return jax.lax.stop_gradient(bootstrap(reward, discount, value))


def clipped_double_q_target(
    reward: jax.Array,
    discount: jax.Array,
    next_q: jax.Array,
    bonus: jax.Array | float = 0.0,
) -> jax.Array:
    """The target from the smallest of several critics ``r + discount * (min_i Q_i + bonus)``.

    Fujimoto et al. 2018 (TD3), Eq. 10, https://arxiv.org/abs/1802.09477; with the bonus
    -alpha log pi(a'|s') it is Haarnoja et al. 2018 (SAC), Eq. 3 and 5,
    https://arxiv.org/abs/1812.05905.

    Args:
      reward: [B] n-step reward.
      discount: [B] gamma^n, 0 where the episode terminated.
      next_q: [N, B] target critics at the next observation and action.
      bonus: [B] or a scalar, added to the value of the next state.

    Returns:
      [B] target, with gradients stopped.
    """
    chex.assert_rank([reward, discount, next_q], [1, 1, 2])
    chex.assert_rank(bonus, {0, 1})
    next_value = jnp.min(next_q, axis=0) + bonus
    return jax.lax.stop_gradient(bootstrap(reward, discount, next_value))


def select(q: jax.Array, action: jax.Array) -> jax.Array:
    """The values [B] of the actions taken, from ``q`` [B, A] and ``action`` [B] integers."""
    chex.assert_rank([q, action], [2, 1])
    chex.assert_type(action, int)
    return jnp.take_along_axis(q, action[:, None], axis=-1)[:, 0]


def squared(error: jax.Array) -> jax.Array:
    """Half the square, elementwise."""
    return 0.5 * jnp.square(error)


def huber(error: jax.Array, threshold: float = 1.0) -> jax.Array:
    """Half the square up to ``threshold``, linear beyond, elementwise.

    Mnih et al. 2015 clip the error to [-1, 1], whose integral this is:
    https://doi.org/10.1038/nature14236, Methods.
    """
    size = jnp.abs(error)
    quadratic = jnp.minimum(size, threshold)
    return 0.5 * jnp.square(quadratic) + threshold * (size - quadratic)


def ensemble_squared_error(
    q: jax.Array, target: jax.Array, weight: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The critics' loss: half the weighted mean square of each, summed over the critics.

    Args:
      q: [N, B] predictions.
      target: [B], the same for every critic.
      weight: [B] importance weights.

    Returns:
      The loss [], and the size of the TD error |target - q| [B], its mean over critics.
    """
    chex.assert_rank([q, target, weight], [2, 1, 1])
    chex.assert_equal_shape([q[0], target, weight])
    error = target - q  # [N, B]
    return jnp.sum(jnp.mean(weight * squared(error), axis=1)), jnp.mean(jnp.abs(error), axis=0)
