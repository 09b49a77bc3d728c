"""The one compiled call that chooses actions: for actors, evaluation and saved policies alike."""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, final

import jax
import numpy as np

from jaxrl_async.agents.agent import Agent
from jaxrl_async.runtime.params import ParamSource, Snapshot
from jaxrl_async.types import Carry, map_leaves

Act = Callable[..., tuple[jax.Array, Carry]]


def make_act(agent: Agent) -> Act:
    """``(params, carry, observation, key, step, explore) -> (actions, carry)``, compiled.

    The key of a step is folded inside, which saves a dispatch. ``step`` is an ``np.int32`` and
    ``explore`` float32 [B]: a Python number would be traced a second time.
    """

    def act(params, carry, observation, key, step, explore):
        return agent.act(params, carry, observation, jax.random.fold_in(key, step), explore)

    return jax.jit(act)


def begin(carry: Carry, fresh: Carry, mask: np.ndarray) -> Carry:
    """``carry`` [E, ...] with the rows in ``mask`` [E], where an episode begins, made ``fresh``."""
    return map_leaves(
        lambda old, new: np.where(mask.reshape(-1, *[1] * (np.ndim(new) - 1)), new, old),
        carry,
        fresh,
    )


def ladder(exponent: float, first: int, count: int, total: int) -> Callable[[float], np.ndarray]:
    """Exploration per lane: explore ** (1 + exponent i / (N - 1)) for lane i of N.

    Horgan et al. 2018 (Ape-X), section 4.1, https://arxiv.org/abs/1803.00933, where the exponent
    is 7; finite also for N = 1.

    Args:
      exponent: how far the ladder reaches; 0: all lanes alike.
      first: number of the actor's first lane among all lanes.
      count: lanes of the actor.
      total: lanes of all actors, N.

    Returns:
      A function from the run's exploration to that of each of the actor's lanes, [count] float32.
    """
    powers = 1.0 + exponent * np.arange(first, first + count) / max(1, total - 1)
    return lambda explore: (explore**powers).astype(np.float32)


Acted: TypeAlias = tuple[np.ndarray, Carry, Snapshot]
"""Actions [E, ...] on the host, the new carry, and the snapshot that acted."""


class ActingPolicy(Protocol):
    """What an actor asks for actions."""

    def ask(
        self, carry: Carry, observation: Any, explore: Callable[[float], np.ndarray], step: int
    ) -> Callable[[], Acted]:
        """Begins to choose actions; the function that it returns waits for them."""
        ...


@final
class LocalPolicy:
    """A call of its own on the newest parameters; the wait for its result releases the GIL."""

    def __init__(
        self, act: Act, source: ParamSource, key: jax.Array, oldest: Callable[[], int] | None = None
    ):
        """Takes what it calls.

        Args:
          act: see ``make_act``.
          source: of the parameters.
          key: of the exploration, on the actors' device.
          oldest: the oldest version that may act now; an actor behind it waits. None: any.
        """
        self._act, self._source, self._key = act, source, key
        self._oldest = oldest or (lambda: 0)

    def ask(
        self, carry: Carry, observation: Any, explore: Callable[[float], np.ndarray], step: int
    ) -> Callable[[], Acted]:
        """Calls the newest version; ``explore`` gives each lane its share."""
        snapshot = self._source.latest(at_least=self._oldest())
        lanes = explore(snapshot.explore)
        actions, carry = self._act(
            snapshot.params, carry, observation, self._key, np.int32(step), lanes
        )
        return lambda: (np.asarray(actions), carry, snapshot)
