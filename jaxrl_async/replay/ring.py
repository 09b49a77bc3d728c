"""The packed ring: one contiguous row per transition and dtype, oldest overwritten first."""

import math
import os
import pathlib
import tempfile
from collections.abc import Mapping
from typing import final

import numpy as np

from jaxrl_async.checks import ConfigError


@final
class Ring:
    """Rows by insertion number.

    Invariant: row number i, counted from the first ever added, lies in slot i mod capacity as long
    as ``oldest <= i < total``. Insertion numbers are 64-bit and never reused, so a number kept
    while its slot was overwritten is recognized; they are cursor arithmetic, not stored.
    """

    def __init__(self, capacity: int, widths: Mapping[str, int], path: str | None = None):
        """Empty.

        Args:
          capacity: rows kept.
          widths: dtype -> columns.
          path: directory on whose disk the rows lie, through the system's page cache, so that a
            ring may be larger than the memory; None: in memory.

        Raises:
          ConfigError: the directory cannot be written to, or its disk has no room.
        """
        self.capacity = capacity
        self.total = 0  # rows ever added
        self._first = 0  # number of the first that is known; above 0 after a restart
        self._rows = {
            dtype: allocate((capacity, width), dtype, path) for dtype, width in widths.items()
        }

    def __len__(self) -> int:
        """Rows kept."""
        return min(self.total - self._first, self.capacity)

    @property
    def oldest(self) -> int:
        """The smallest insertion number still kept."""
        return self.total - len(self)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all dtypes."""
        return sum(kept.itemsize * kept.shape[1] for kept in self._rows.values())

    def add(self, rows: Mapping[str, np.ndarray]) -> None:
        """Appends rows ``dtype -> [k, width]``, k <= capacity.

        Raises:
          ValueError: more rows than the ring holds, of which some would be lost unseen.
        """
        count = len(next(iter(rows.values())))
        if count > self.capacity:
            raise ValueError(f"{count} rows at once into a ring of {self.capacity}: add fewer")
        start = self.total % self.capacity
        before_seam = min(count, self.capacity - start)
        for dtype, new in rows.items():
            kept = self._rows[dtype]
            kept[start : start + before_seam] = new[:before_seam]
            kept[: count - before_seam] = new[before_seam:]
        self.total += count

    def restart(self, first: int) -> None:
        """Empties the ring; the next row added gets the insertion number ``first``."""
        self._first = self.total = first

    def take(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """Copies of the rows with these insertion numbers [...]: ``dtype -> [..., width]``."""
        return {dtype: self.take_one(dtype, ids) for dtype in self._rows}

    def take_one(self, dtype: str, ids: np.ndarray) -> np.ndarray:
        """The same of one dtype only: [..., width]."""
        # Of rows that are kept, wrapping takes one subtraction at most; a division takes longer
        # than all else here but the gather itself.
        start_of_lap = self.oldest - self.oldest % self.capacity
        return self._rows[dtype].take(ids - start_of_lap, axis=0, mode="wrap")

    def check_valid(self) -> None:
        """Raises AssertionError where the counts cannot be."""
        assert 0 <= self._first <= self.total
        assert self._first <= self.oldest
        assert len(self) <= self.capacity


def allocate(shape: tuple[int, int], dtype: str, path: str | None) -> np.ndarray:
    """Zeros, in memory or in a file on the disk of the directory ``path``.

    The file has no name: no other run can come upon it, and nothing of it outlives the process.

    Raises:
      ConfigError: the directory cannot be written to, or its disk has no room.
    """
    if path is None:
        return np.zeros(shape, dtype)
    try:
        pathlib.Path(path).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            if hasattr(os, "posix_fallocate"):  # else a full disk ends the process in mid-run
                os.posix_fallocate(file.fileno(), 0, math.prod(shape) * np.dtype(dtype).itemsize)
            return np.memmap(file, dtype, "w+", shape=shape)
    except OSError as error:
        raise ConfigError(
            f"replay.path = {path!r}: {error}; name a directory that can be written to, on a disk"
            " with room for replay.capacity rows"
        ) from error
