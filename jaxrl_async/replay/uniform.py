"""Uniform replay: every kept transition is equally likely at each draw, with replacement."""

import threading
from collections.abc import Mapping
from typing import Any, final

import numpy as np

from jaxrl_async.replay.ring import Ring
from jaxrl_async.types import Chunk, Layout, Sample, Transition


@final
class UniformReplay:
    """A ring of packed transitions and the generator that draws from it. Thread-safe.

    Invariant: a sample's rows are all of one instant, whole, and in memory of its own.
    """

    def __init__(self, capacity: int, layout: Layout, seed: np.random.SeedSequence):
        self._layout = layout
        self._ring = Ring(capacity, layout.widths)
        self._lock = threading.Lock()
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def __len__(self) -> int:
        """Transitions kept."""
        return len(self._ring)

    def add(self, chunk: Chunk) -> None:
        """Stores a chunk's transitions, all of them or, where one has a wrong shape, none."""
        rows = self._layout.pack(chunk.windows.transitions)
        with self._lock:
            self._ring.add(rows)

    def contents(self) -> Transition:
        """Copies of all kept transitions, oldest first."""
        with self._lock:
            rows = self._ring.take(np.arange(self._ring.oldest, self._ring.total))
        return self._layout.unpack(rows)

    # ---- saving and restoring ---------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """Most transitions kept."""
        return self._ring.capacity

    def state(self) -> dict[str, Any]:
        """All but the rows: the generator, and how many rows were ever added."""
        with self._lock:
            return {"rng": self._rng.bit_generator.state, "rows": self._ring.total}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes up the generator of ``state()``; the rows come by ``restart`` and ``append``."""
        with self._lock:
            self._rng.bit_generator.state = state["rng"]

    def rows(self, start: int, stop: int, most_bytes: int) -> tuple[int, dict[str, np.ndarray]]:
        """Copies of rows from ``start``, or the oldest kept, on; and the number of the first.

        So many as fit into ``most_bytes``, at least one, up to ``stop``.
        """
        width = sum(np.dtype(dtype).itemsize * n for dtype, n in self._layout.widths.items())
        with self._lock:
            first = max(start, self._ring.oldest)
            count = min(stop - first, max(1, most_bytes // width))
            return first, self._ring.take(np.arange(first, first + count))

    def restart(self, first: int) -> None:
        """Empties the replay; the next row gets the insertion number ``first``."""
        with self._lock:
            self._ring.restart(first)

    def append(self, rows: Mapping[str, np.ndarray]) -> None:
        """Adds packed rows, as ``rows`` gave them."""
        with self._lock:
            self._ring.add(rows)

    # ---- drawing ----------------------------------------------------------------------------

    def sample(self, batches: int, size: int) -> Sample:
        """``batches`` batches of ``size`` transitions, in memory that nobody else holds.

        Raises:
          ValueError: nothing is stored yet.
        """
        weight = np.ones((batches, size), np.float32)
        with self._lock:
            if len(self._ring) == 0:
                raise ValueError("sample from an empty replay: add transitions first")
            oldest, total = self._ring.oldest, self._ring.total
            ids = self._rng.integers(oldest, total, (batches, size), np.int64)
            return Sample(self._ring.take(ids), weight, ids, total)
