"""The replay: a store of experience and a sampler that draws from it, behind one lock."""

import copy
import threading
from collections.abc import Mapping
from typing import Any, Protocol, final

import numpy as np

from jaxrl_async.replay.transitions import Store
from jaxrl_async.replay.uniform import Sampler
from jaxrl_async.types import Chunk, Sample, Transition


class Source(Protocol):
    """What batches are drawn from. Thread-safe."""

    def __len__(self) -> int:
        """Rows kept."""
        ...

    @property
    def needs_priorities(self) -> bool:
        """Whether ``update_priorities`` does anything."""
        ...

    def sample(self, batches: int, size: int) -> Sample:
        """``batches`` batches of ``size`` items, in memory that nobody else holds."""
        ...

    def update_priorities(self, ids: np.ndarray, td_error: np.ndarray) -> None:
        """What the learner made of a sample's items ``ids`` [K, B]."""
        ...


@final
class Replay:
    """Experience of one run. Thread-safe.

    Invariant: a sample's items are all of one instant, whole, and in memory of their own. How
    experience is kept is the store's matter, what is drawn the sampler's: ``TransitionStore``,
    ``FrameStore``, ``SequenceStore`` and ``HindsightStore`` go with ``Uniform`` and ``Prioritized``
    alike.
    """

    def __init__(self, store: Store, sampler: Sampler, seed: np.random.SeedSequence):
        self._store, self._sampler = store, sampler
        self._lock = threading.Lock()
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self.stale = 0
        """Priorities that came for rows overwritten meanwhile, and were dropped."""

    def __len__(self) -> int:
        """Rows kept."""
        return len(self._store.ring)

    @property
    def capacity(self) -> int:
        """Most rows kept."""
        return self._store.ring.capacity

    @property
    def needs_priorities(self) -> bool:
        """Whether ``update_priorities`` does anything."""
        return self._sampler.needs_priorities

    def add(self, chunk: Chunk) -> None:
        """Stores a chunk's transitions, all of them or, where one has a wrong shape, none."""
        with self._lock:
            self._append(self._store.pack(chunk))

    def _append(self, rows: Mapping[str, np.ndarray]) -> None:
        first = self._store.ring.total
        drawable = self._store.append(rows)
        self._sampler.added(first, self._store.ring.total, drawable)

    def contents(self) -> Transition:
        """Copies of all that can be drawn, oldest first."""
        with self._lock:
            ring = self._store.ring
            ids = np.arange(ring.oldest, ring.total)
            unmoved = copy.deepcopy(self._rng)  # looking changes no later draw
            rows = self._store.take(ids[self._store.may_draw(ids)], unmoved)
        return self._store.layout.unpack(rows)

    # ---- drawing ----------------------------------------------------------------------------

    def sample(self, batches: int, size: int) -> Sample:
        """``batches`` batches of ``size`` items, in memory that nobody else holds.

        Raises:
          ValueError: nothing is stored yet, or nothing of it can be drawn.
        """
        with self._lock:
            if len(self) == 0:
                raise ValueError("sample from an empty replay: add transitions first")
            ids, weight = self._sampler.draw(self._store, self._rng, batches, size)
            rows = self._store.take(ids, self._rng)
            return Sample(rows, weight, ids, self._store.ring.total)

    def update_priorities(self, ids: np.ndarray, td_error: np.ndarray) -> None:
        """Takes the errors [K, B] of the items ``ids`` [K, B]; stale ones are dropped and counted.

        Raises:
          ValueError: an error is not finite; nothing was changed.
        """
        if not np.all(np.isfinite(td_error)):
            raise ValueError(
                f"{np.count_nonzero(~np.isfinite(td_error))} of {td_error.size} TD errors are not"
                " finite: give back only those that are"
            )
        ids, td_error = np.ravel(ids), np.ravel(td_error)
        with self._lock:
            is_kept = ids >= self._store.ring.oldest
            self.stale += np.count_nonzero(~is_kept)
            self._sampler.update(ids[is_kept], td_error[is_kept])

    def check_valid(self) -> None:
        """Raises AssertionError where store or sampler contradict themselves."""
        with self._lock:
            self._store.check_valid()
            self._sampler.check_valid()

    # ---- saving and restoring ---------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All but the rows: generator, sampler, and how many rows were ever added."""
        with self._lock:
            return {
                "rng": self._rng.bit_generator.state,
                "rows": self._store.ring.total,
                "stale": self.stale,
                "store": self._store.state(),
                "sampler": self._sampler.state(),
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes up ``state()``, after the rows have come by ``restart`` and ``append``."""
        with self._lock:
            self._rng.bit_generator.state = state["rng"]
            self.stale = state["stale"]
            self._store.restore(state["store"])
            self._sampler.restore(state["sampler"])

    def rows(self, start: int, stop: int, most_bytes: int) -> tuple[int, dict[str, np.ndarray]]:
        """Copies of rows from ``start``, or the oldest kept, on; and the number of the first.

        So many as fit into ``most_bytes``, at least one, up to ``stop``.
        """
        with self._lock:
            ring = self._store.ring
            first = max(start, ring.oldest)
            count = min(stop - first, max(1, most_bytes // ring.row_bytes))
            return first, ring.take(np.arange(first, first + count))

    def restart(self, first: int) -> None:
        """Empties the replay; the next row gets the insertion number ``first``."""
        with self._lock:
            self._store.restart(first)
            self._sampler.restart()

    def append(self, rows: Mapping[str, np.ndarray]) -> None:
        """Adds rows as ``rows`` gave them."""
        with self._lock:
            self._append(rows)
