"""Uniform replay: every kept transition is equally likely at each draw, with replacement."""

from typing import final

import numpy as np

from jaxrl_async.replay.ring import Ring
from jaxrl_async.types import Chunk, Layout, Sample, Transition


@final
class UniformReplay:
    """A ring of packed transitions and the generator that draws from it."""

    def __init__(self, capacity: int, layout: Layout, seed: np.random.SeedSequence):
        self._layout = layout
        self._ring = Ring(capacity, layout.widths)
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def __len__(self) -> int:
        """Transitions kept."""
        return len(self._ring)

    def add(self, chunk: Chunk) -> None:
        """Stores a chunk's transitions, all of them or, where one has a wrong shape, none."""
        self._ring.add(self._layout.pack(chunk.windows.transitions))

    def contents(self) -> Transition:
        """Copies of all kept transitions, oldest first."""
        ids = np.arange(self._ring.oldest, self._ring.total)
        return self._layout.unpack(self._ring.take(ids))

    def sample(self, batches: int, size: int) -> Sample:
        """``batches`` batches of ``size`` transitions, in memory that nobody else holds.

        Raises:
          ValueError: nothing is stored yet.
        """
        if len(self._ring) == 0:
            raise ValueError("sample from an empty replay: add transitions first")
        oldest, total = self._ring.oldest, self._ring.total
        ids = self._rng.integers(oldest, total, (batches, size), np.int64)
        return Sample(self._ring.take(ids), np.ones((batches, size), np.float32), ids)
