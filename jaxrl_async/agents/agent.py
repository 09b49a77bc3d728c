"""What an agent is, and the one way in which agents descend a gradient.

An agent is a frozen dataclass of pure methods; all that it learns is one immutable pytree, its
state. ``SAC(config, spec)`` holds no array, ``SACState`` holds nothing else.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import flax.struct
import jax
import jax.numpy as jnp
import optax

from jaxrl_async.types import Batch, Carry, EnvSpec, Key, Params, UpdateInfo

State = TypeVar("State")


class Agent(Protocol[State]):
    """Pure functions of their arguments. Implementations are frozen, hashable and final.

    ``State`` is a ``flax.struct`` dataclass with a field ``step``, [] int32: the updates done.
    An implementation has the fields ``config`` (with ``discount``, which the accumulator of n-step
    windows is given) and ``spec``.
    """

    @property
    def config(self) -> Any:
        """The agent's settings, a frozen dataclass with a field ``discount``."""
        ...

    @property
    def spec(self) -> EnvSpec:
        """The env that the agent is made for."""
        ...

    def init(self, key: Key) -> State:
        """A fresh state."""
        ...

    def update(self, state: State, batch: Batch, key: Key) -> tuple[State, UpdateInfo]:
        """One update from one batch [B, ...]."""
        ...

    def actor_params(self, state: State) -> Params:
        """The part of the state that acting needs."""
        ...

    def initial_carry(self, batch: int) -> Carry:
        """What acting remembers between steps, [batch, ...]; ``()`` for feed-forward agents."""
        ...

    def act(
        self, params: Params, carry: Carry, observation: Any, key: Key, explore: jax.Array
    ) -> tuple[jax.Array, Carry]:
        """Actions for observations [B, *obs]: [B, A] float32 in [-1, 1], or [B] int32.

        ``explore`` is [B], one value per row, and 0 is the greedy policy for every agent. It is
        epsilon or the softmax temperature for value-based agents, the noise's standard deviation
        for TD3, the factor on the policy's spread for SAC.
        """
        ...

    def explore(self, env_steps: int) -> float:
        """The exploration schedule, on the host: what ``act`` is given after ``env_steps``."""
        ...


@flax.struct.dataclass
class Trainable:
    """Parameters and the optimizer's state that belongs to them."""

    params: Params
    opt_state: optax.OptState
    skipped: jax.Array  # [] int32, descents not applied: loss or gradient norm was not finite


def trainable(params: Params, optimizer: optax.GradientTransformation) -> Trainable:
    """Fresh optimizer state for ``params``."""
    return Trainable(params, optimizer.init(params), jnp.zeros((), jnp.int32))


def descend(
    loss_fn: Callable[[Params], tuple[jax.Array, Any]],
    trainable: Trainable,
    optimizer: optax.GradientTransformation,
) -> tuple[Trainable, jax.Array, Any]:
    """One optimizer step on ``loss_fn(params) -> (loss, aux)``.

    Where the loss or the gradients' global norm is not finite, parameters and optimizer state stay
    as they were and ``skipped`` counts.

    Returns:
      The new ``Trainable``, the loss [] and ``aux``.
    """
    (loss, aux), gradients = jax.value_and_grad(loss_fn, has_aux=True)(trainable.params)
    finite = jnp.isfinite(loss) & jnp.isfinite(optax.tree.norm(gradients))

    def apply(params: Params, opt_state: optax.OptState) -> tuple[Params, optax.OptState]:
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    params, opt_state = apply_if(finite, apply, (trainable.params, trainable.opt_state))
    return Trainable(params, opt_state, trainable.skipped + ~finite), loss, aux


def apply_if(finite: jax.Array, apply: Callable[..., Any], kept: tuple[Any, ...]) -> Any:
    """``apply(*kept)``, or ``kept`` where ``finite`` [] is false.

    On a CPU a branch is cheapest: it works in place, where for a selection XLA copies Adam's
    moments in each round of the scan. An accelerator would ask the host which branch to take.
    """
    return jax.lax.platform_dependent(
        *kept,
        cpu=lambda *kept: jax.lax.cond(finite, apply, lambda *kept: kept, *kept),
        default=lambda *kept: jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), apply(*kept), kept
        ),
    )


def optimizer(learning_rate: float, clip_norm: float | None) -> optax.GradientTransformation:
    """Adam, behind clipping by the global norm unless ``clip_norm`` is None."""
    adam = optax.adam(learning_rate)
    return adam if clip_norm is None else optax.chain(optax.clip_by_global_norm(clip_norm), adam)
