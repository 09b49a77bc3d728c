"""A binary tree of sums over the values of slots, and their largest or smallest value."""

import itertools
from collections.abc import Callable
from typing import final

import numpy as np

TOP = 1024
"""Most nodes of the highest level, which is searched as a whole."""


@final
class Tree:
    """Float64 values of slots, 0 at first, and above them the sums of pairs.

    Invariant: every node is the sum of its two children, made anew whenever one of them changes, so
    no rounding error is carried along from change to change.
    """

    def __init__(self, capacity: int):
        levels = max(0, (-(-capacity // TOP) - 1).bit_length())
        top = -(-capacity // 2**levels)
        self._levels = [np.zeros(top * 2**level) for level in range(levels, -1, -1)]

    def __getitem__(self, slots: np.ndarray) -> np.ndarray:
        """Copies of the values at ``slots`` [...]."""
        return self._levels[0][slots]

    @property
    def values(self) -> np.ndarray:
        """Of all slots, and of those that fill up the last node; not to be written."""
        return self._levels[0]

    @property
    def total(self) -> float:
        """The sum of all values."""
        return float(self._levels[-1].sum())

    def set(self, slots: np.ndarray, values: np.ndarray | float) -> None:
        """Writes ``values`` [n] at ``slots`` [n]; of a slot that comes twice the last one stays."""
        self._levels[0][slots] = values
        nodes = slots
        for lower, upper in itertools.pairwise(self._levels):
            # A node that comes twice is made twice, of the same children: cheaper than to sort.
            nodes = nodes >> 1 if len(nodes) < len(upper) else np.arange(len(upper))
            pairs = lower.reshape(-1, 2).take(nodes, axis=0)
            upper[nodes] = pairs[:, 0] + pairs[:, 1]

    def find(self, masses: np.ndarray) -> np.ndarray:
        """The slots [n] at which the running sum of the values first exceeds ``masses`` [n].

        Only of a sum with a positive total, and for masses in [0, total): a slot that holds 0 is
        never found, whatever rounding does to a mass.
        """
        sums = np.cumsum(self._levels[-1])
        # Strictly below the total: sums in another order differ in their last bits.
        inside = np.minimum(masses, np.nextafter(sums[-1], 0.0))
        node = np.searchsorted(sums, inside, side="right")
        rest = inside - np.where(node > 0, sums[node - 1], 0.0)
        for level in self._levels[-2::-1]:
            node = node + node
            left = level.take(node)
            is_right = rest >= left
            node = node + is_right
            left *= is_right
            rest -= left
        values = self._levels[0]
        for i in np.flatnonzero(values.take(node) == 0.0):  # rounding led past the last: seldom
            node[i] = np.flatnonzero(values[: node[i]])[-1]
        return node

    def check_valid(self) -> None:
        """Raises AssertionError where a node isn't the sum of its children."""
        for lower, upper in itertools.pairwise(self._levels):
            np.testing.assert_array_equal(upper, lower[::2] + lower[1::2])


@final
class Extreme:
    """The largest ``key`` of the values of slots, without a tree.

    Invariant: ``count`` slots have the key ``value`` and none a larger one; or ``count`` is 0, none
    has a larger one, and who asks looks through all. That is rare: an item is changed when it is
    drawn, which happens in proportion to its value.
    """

    def __init__(self, key: Callable[[np.ndarray], np.ndarray]):
        self._key, self._value, self._count = key, np.inf, 0

    def changed(self, slots: np.ndarray, old: np.ndarray, new: np.ndarray) -> None:
        """Slots [n], some perhaps twice, held ``old`` [n] and hold ``new`` [n] now."""
        old, new = self._key(old), self._key(new)
        if self._count:
            lost = old == self._value
            if lost.any():
                self._count -= len(np.unique(slots[lost]))
        largest = new.max(initial=-np.inf)
        if largest > self._value:
            self._value, self._count = largest, 0
        if largest == self._value:
            self._count += len(np.unique(slots[new == largest]))

    def of(self, values: np.ndarray) -> float:
        """The largest key of all ``values``."""
        if not self._count:
            keys = self._key(values)
            self._value = keys.max()
            self._count = int(np.count_nonzero(keys == self._value))
        return float(self._value)
