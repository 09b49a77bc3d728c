"""Uniform draws: every item is equally likely at each draw, with replacement."""

from collections.abc import Mapping
from typing import Any, Protocol, final

import numpy as np

from jaxrl_async.replay.transitions import Store

ROUNDS = 8
"""Redraws of what cannot be drawn, before all that can is listed."""


class Sampler(Protocol):
    """Which rows of a store are drawn. Not thread-safe: ``Replay`` holds its lock."""

    @property
    def needs_priorities(self) -> bool:
        """Whether ``update`` does anything."""
        ...

    def added(self, first: int, stop: int, drawable: np.ndarray) -> None:
        """Rows ``first`` to ``stop`` were written; the rows ``drawable`` [n] can now be drawn."""
        ...

    def restart(self) -> None:
        """The store was emptied."""
        ...

    def draw(
        self, store: Store, rng: np.random.Generator, batches: int, size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Insertion numbers [K, B] int64 and importance weights [K, B] float32."""
        ...

    def update(self, ids: np.ndarray, td_error: np.ndarray) -> None:
        """New priorities for rows ``ids`` [n], all of them kept."""
        ...

    def check_valid(self) -> None:
        """Raises AssertionError where the sampler contradicts itself."""
        ...

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs to draw the same."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse, when all rows are there again."""
        ...


@final
class Uniform:
    """Keeps nothing and weighs all alike."""

    needs_priorities = False

    def added(self, first: int, stop: int, drawable: np.ndarray) -> None:
        """Nothing to keep."""

    def restart(self) -> None:
        """Nothing."""

    def draw(
        self, store: Store, rng: np.random.Generator, batches: int, size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """See ``Sampler``; what cannot be drawn is drawn again, which keeps the rest alike."""
        oldest, total = store.ring.oldest, store.ring.total
        ids = rng.integers(oldest, total, (batches, size), np.int64)
        for _ in range(ROUNDS):
            wrong = ~store.may_draw(ids)
            if not wrong.any():
                break
            ids[wrong] = rng.integers(oldest, total, np.count_nonzero(wrong), np.int64)
        else:
            right = np.arange(oldest, total)
            right = right[store.may_draw(right)]
            if len(right) == 0:
                raise ValueError(
                    f"none of the {total - oldest} rows kept can be drawn yet: raise"
                    " learner.warmup_steps"
                )
            wrong = ~store.may_draw(ids)
            ids[wrong] = rng.choice(right, np.count_nonzero(wrong))
        return ids, np.ones((batches, size), np.float32)

    def update(self, ids: np.ndarray, td_error: np.ndarray) -> None:
        """Nothing to update."""

    def check_valid(self) -> None:
        """Nothing to contradict."""

    def state(self) -> dict[str, Any]:
        """Nothing to keep."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Nothing to take up."""
