"""Prioritized draws: what surprised most is drawn most often.

Schaul et al. 2016, https://arxiv.org/abs/1511.05952, the proportional variant (section 3.3).
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, final

import numpy as np

from jaxrl_async.replay.sum_tree import Extreme, Tree
from jaxrl_async.replay.transitions import Store

EPSILON = 1e-6
"""Added to the size of a TD error, so that an item without any can be drawn again."""


@final
class Prioritized:
    """Draws item i with probability P(i) = p_i^alpha / sum_k p_k^alpha, p_i = |delta_i| + epsilon.

    A new item has the largest priority of those kept, or 1. Each batch of B is stratified: one draw
    from each of B equal shares of the whole mass. The importance weight of a draw is

        w_i = (N P(i))^-beta / max_j w_j = (p_j_min / p_i)^(alpha beta)

    with the maximum over the B draws of its batch, or over all items kept: N and the sum cancel.
    """

    needs_priorities = True

    def __init__(
        self,
        capacity: int,
        *,
        exponent: float,
        importance: Callable[[int], float],
        norm: Literal["batch", "buffer"] = "batch",
    ):
        """No items.

        Args:
          capacity: of the store.
          exponent: alpha.
          importance: beta, as a function of the batches drawn before.
          norm: what the maximum in the weights is over.
        """
        self._capacity, self._exponent, self._importance = capacity, exponent, importance
        self._sums = Tree(capacity)
        self._largest = Extreme(lambda mass: mass)
        self._smallest = Extreme(reversed_mass) if norm == "buffer" else None
        self.batches = 0
        """Drawn so far."""

    def added(self, first: int, stop: int, drawable: np.ndarray) -> None:
        """New items get the largest priority; rows that are none, nothing."""
        written = np.arange(first, stop)
        if self._sums[written % self._capacity].any():  # what is overwritten counts no more
            self._set(written, 0.0)
        self._set(drawable, self._largest.of(self._sums.values) or 1.0)

    def restart(self) -> None:
        """No items any more."""
        self._set(np.arange(self._capacity), 0.0)

    def draw(
        self, store: Store, rng: np.random.Generator, batches: int, size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """See ``Sampler``; what cannot be drawn any more loses its priority when met."""
        strata = (np.arange(size) + rng.random((batches, size))) / size
        ids = self._find(store, strata.ravel())
        while (gone := ~store.may_draw(ids)).any():
            self._set(ids[gone], 0.0)
            ids[gone] = self._find(store, rng.random(np.count_nonzero(gone)))
        ids = ids.reshape(batches, size)
        mass = self._sums[ids % self._capacity]
        beta = [self._importance(self.batches + k) for k in range(batches)]
        self.batches += batches
        least = (
            mass.min(axis=1, initial=np.inf)
            if self._smallest is None
            else -self._smallest.of(self._sums.values)
        )
        weight = (np.broadcast_to(least, batches)[:, None] / mass) ** np.array(beta)[:, None]
        return ids, weight.astype(np.float32)

    def _find(self, store: Store, shares: np.ndarray) -> np.ndarray:
        """The items at these shares, in [0, 1), of the whole mass."""
        total = self._sums.total
        if not total > 0:
            raise ValueError(
                f"none of the {len(store.ring)} rows kept can be drawn: raise learner.warmup_steps"
            )
        oldest = store.ring.oldest
        return oldest + (self._sums.find(shares * total) - oldest) % self._capacity

    def update(self, ids: np.ndarray, td_error: np.ndarray) -> None:
        """See ``Sampler``; of an item that comes twice the last error counts."""
        self._set(ids, (np.abs(td_error.astype(np.float64)) + EPSILON) ** self._exponent)

    def _set(self, ids: np.ndarray, mass: np.ndarray | float) -> None:
        slots = ids % self._capacity
        old = self._sums[slots]
        self._sums.set(slots, mass)
        new = self._sums[slots]
        self._largest.changed(slots, old, new)
        if self._smallest is not None:
            self._smallest.changed(slots, old, new)

    def state(self) -> dict[str, Any]:
        """The mass of every slot, and the batches drawn."""
        return {"batches": self.batches, "mass": self._sums[np.arange(self._capacity)]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes them up."""
        self.batches = state["batches"]
        self._set(np.arange(self._capacity), state["mass"])

    def check_valid(self) -> None:
        """Raises AssertionError where the tree or an extreme isn't what the masses make."""
        self._sums.check_valid()
        mass = self._sums.values
        assert np.all(np.isfinite(mass) & (mass >= 0))
        assert self._largest.of(mass) == mass.max()
        if self._smallest is not None:
            assert -self._smallest.of(mass) == mass[mass > 0].min(initial=np.inf)


def reversed_mass(mass: np.ndarray) -> np.ndarray:
    """Large where the mass is small; empty slots last."""
    return np.where(mass > 0.0, -mass, -np.inf)
