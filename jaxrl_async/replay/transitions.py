"""The plain way to keep experience: one packed row per finished n-step window."""

from collections.abc import Mapping
from typing import Any, Protocol, final

import numpy as np

from jaxrl_async.replay.ring import Ring
from jaxrl_async.types import Chunk, Layout


class Store(Protocol):
    """How experience is kept in the rows of a ring, and given back. Not thread-safe.

    ``Replay`` owns one and holds its lock around every call.
    """

    @property
    def ring(self) -> Ring:
        """The rows as they are kept, by insertion number."""
        ...

    @property
    def layout(self) -> Layout:
        """Of the rows that ``take`` gives."""
        ...

    def pack(self, chunk: Chunk) -> dict[str, np.ndarray]:
        """A chunk as rows of the ring; ValueError for what does not fit, changing nothing."""
        ...

    def append(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Adds rows; the insertion numbers [n] that can be drawn from now on."""
        ...

    def restart(self, first: int) -> None:
        """Empties the store; the next row gets the insertion number ``first``."""
        ...

    def may_draw(self, ids: np.ndarray) -> np.ndarray:
        """Which of these kept rows [...] an item can be made of; bool [...]."""
        ...

    def take(self, ids: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """The items that rows ``ids`` [...] stand for: ``dtype -> [..., width]``, fresh memory."""
        ...

    def state(self) -> dict[str, Any]:
        """What the rows do not say, and a resumed run needs."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse."""
        ...

    def check_valid(self) -> None:
        """Raises AssertionError where the store contradicts itself."""
        ...


@final
class TransitionStore:
    """Whole transitions, of any n; each row can be drawn as long as it is kept."""

    def __init__(self, capacity: int, layout: Layout, path: str | None = None):
        self.layout = layout
        self.ring = Ring(capacity, layout.widths, path)

    def pack(self, chunk: Chunk) -> dict[str, np.ndarray]:
        """See ``Store``."""
        return self.layout.pack(chunk.windows.transitions)

    def append(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """See ``Store``."""
        first = self.ring.total
        self.ring.add(rows)
        return np.arange(first, self.ring.total)

    def restart(self, first: int) -> None:
        """See ``Store``."""
        self.ring.restart(first)

    def may_draw(self, ids: np.ndarray) -> np.ndarray:
        """See ``Store``."""
        return np.ones(ids.shape, bool)

    def take(self, ids: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """See ``Store``."""
        return self.ring.take(ids)

    def state(self) -> dict[str, Any]:
        """See ``Store``."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """See ``Store``."""

    def check_valid(self) -> None:
        """See ``Store``."""
        self.ring.check_valid()
