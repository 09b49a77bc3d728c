"""Rows that know their lane and episode: a ring with ``Lanes`` beside it."""

from collections.abc import Mapping
from typing import Any, final

import numpy as np

from jaxrl_async.replay.lanes import Episodes, Lanes
from jaxrl_async.replay.ring import Ring
from jaxrl_async.types import Chunk

MARKS = 3
"""Columns of int32 added to each row: its lane, rows of its episode before it, whether it ends."""


@final
class Steps:
    """The rows of single steps, and which of them follow each other. Not thread-safe.

    The marks lie in the rows, so a saved row says all that its lane needs to know of it.
    """

    def __init__(self, capacity: int, widths: Mapping[str, int], path: str | None = None):
        self._widths, self._int32 = dict(widths), widths.get("int32", 0)
        self.ring = Ring(capacity, {**widths, "int32": self._int32 + MARKS}, path)
        self.lanes, self._episodes = Lanes(capacity), Episodes()

    def enter(self, chunk: Chunk, rows_per_episode: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Lanes [k] of a chunk's steps, and of each how many steps of its episode came before [k].

        Raises:
          ValueError: with ``rows_per_episode`` more for each, they might not fit into the ring.
        """
        most = len(chunk.windows.end) * (1 + rows_per_episode)
        if most > self.ring.capacity:
            raise ValueError(f"{most} rows at once into a ring of {self.ring.capacity}: add fewer")
        return self._episodes.enter(chunk)

    def mark(
        self, rows: dict[str, np.ndarray], lane: np.ndarray, since: np.ndarray, ends: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Rows ``dtype -> [k, width]`` with their marks."""
        marks = np.stack([lane, since, ends], axis=1).astype(np.int32)
        steps = rows.get("int32", np.zeros((len(lane), 0), np.int32))
        return rows | {"int32": np.concatenate([steps, marks], axis=1)}

    def append(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Adds marked rows; their insertion numbers [k]."""
        first = self.ring.total
        self.ring.add(rows)
        lane, since, ends = rows["int32"][:, self._int32 :].T
        self.lanes.add(lane, since == 0, ends > 0)
        return np.arange(first, self.ring.total)

    def since_begin(self, ids: np.ndarray) -> np.ndarray:
        """How many rows of its episode came before each of the rows ``ids`` [...], kept or not."""
        return self.ring.take_one("int32", ids)[..., self._int32 + 1]

    def take(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """Copies of rows ``ids`` [...] without their marks: ``dtype -> [..., width]``."""
        rows = self.ring.take(ids)
        return {
            dtype: np.ascontiguousarray(rows[dtype][..., :width])
            for dtype, width in self._widths.items()
        }

    def restart(self, first: int) -> None:
        """Empties all; the next row gets the insertion number ``first``."""
        self.ring.restart(first)
        self.lanes.restart(first)

    def state(self) -> dict[str, Any]:
        """Which episodes are open."""
        return self._episodes.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes them up."""
        self._episodes.restore(state)

    def check_valid(self) -> None:
        """Raises AssertionError where rows contradict each other."""
        self.ring.check_valid()
        self.lanes.check_valid()


class StepStore:
    """What all stores of single steps have in common; see ``Store``."""

    def __init__(self, capacity: int, widths: Mapping[str, int], path: str | None):
        self._steps = Steps(capacity, widths, path)
        self.ring, self._lanes = self._steps.ring, self._steps.lanes

    def restart(self, first: int) -> None:
        """See ``Store``."""
        self._steps.restart(first)

    def state(self) -> dict[str, Any]:
        """See ``Store``."""
        return self._steps.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """See ``Store``."""
        self._steps.restore(state)

    def check_valid(self) -> None:
        """See ``Store``."""
        self._steps.check_valid()
