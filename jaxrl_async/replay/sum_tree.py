"""A tree of wide nodes over the values of slots: their sum, or their largest or smallest value."""

import itertools
from typing import final

import numpy as np

WIDTH = 32
"""Children of a node. One level per bit would take 20 rounds of numpy calls where this takes 3."""
TOP = 1024
"""Most nodes of the highest level, which is searched as a whole."""


@final
class Tree:
    """Float64 values of slots, and of each node above them what ``combine`` makes of its children.

    Invariant: every node is combined anew from all its children whenever one of them changes, so
    no rounding error is carried along from change to change.
    """

    def __init__(self, capacity: int, combine: np.ufunc = np.add, empty: float = 0.0):
        """``combine``: np.add, maximum or minimum; ``empty``, its neutral value, in all slots."""
        self._combine = combine
        self._levels = [np.full(padded(capacity), empty)]
        while len(self._levels[-1]) > TOP:
            self._levels.append(np.full(padded(len(self._levels[-1]) // WIDTH), empty))

    def __getitem__(self, slots: np.ndarray) -> np.ndarray:
        """Copies of the values at ``slots`` [...]."""
        return self._levels[0][slots]

    @property
    def total(self) -> float:
        """All values combined."""
        return float(self._combine.reduce(self._levels[-1]))

    def set(self, slots: np.ndarray, values: np.ndarray | float) -> None:
        """Writes ``values`` [n] at ``slots`` [n]; of a slot that comes twice the last one stays."""
        self._levels[0][slots] = values
        nodes = slots
        for lower, upper in itertools.pairwise(self._levels):
            nodes = np.unique(nodes // WIDTH)
            upper[nodes] = self._combine.reduce(lower.reshape(-1, WIDTH)[nodes], axis=1)

    def find(self, masses: np.ndarray) -> np.ndarray:
        """The slots [n] at which the running sum of the values first exceeds ``masses`` [n].

        Only of a sum with a positive total, and for masses in [0, total): a slot that holds 0 is
        never found, whatever rounding does to a mass.
        """
        sums = np.cumsum(self._levels[-1])
        node = np.searchsorted(sums, below(masses, sums[-1]), side="right")
        rest = masses - np.where(node > 0, sums[node - 1], 0.0)
        for level in self._levels[-2::-1]:
            sums = np.cumsum(level.reshape(-1, WIDTH)[node], axis=1)
            child = (sums <= below(rest, sums[:, -1])[:, None]).sum(axis=1)
            before = sums[np.arange(len(child)), child - 1]  # child 0: overwritten below
            rest = rest - np.where(child > 0, before, 0.0)
            node = node * WIDTH + child
        return node

    def check_valid(self) -> None:
        """Raises AssertionError where a node isn't what its children combine to."""
        for lower, upper in itertools.pairwise(self._levels):
            expected = self._combine.reduce(lower.reshape(-1, WIDTH), axis=1)
            np.testing.assert_array_equal(upper[: len(expected)], expected)


def padded(count: int) -> int:
    """The next multiple of WIDTH."""
    return -(-count // WIDTH) * WIDTH


def below(masses: np.ndarray, totals: np.ndarray | float) -> np.ndarray:
    """The masses, strictly below the totals: sums in another order differ in their last bits."""
    return np.minimum(masses, np.nextafter(totals, 0.0))
