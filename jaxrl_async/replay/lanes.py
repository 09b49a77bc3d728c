"""Which rows of a ring follow each other: the kept history of every lane, episode by episode."""

import bisect
from collections.abc import Mapping
from typing import Any, final

import numpy as np

from jaxrl_async.types import Chunk

OPEN = -1
"""Stop of an episode that has not ended."""
IDS, BEGIN, STOP = range(3)


@final
class Lanes:
    """Rows of several lanes lie mixed in one ring; here each finds its neighbours.

    Invariant: the rows of a lane have positions 0, 1, 2, ... in the order in which they came, and
    insertion numbers that rise with them, so if a row is kept, all later ones of its lane are. An
    episode is the positions from its ``begin`` to before its ``stop``; it never spans two lanes,
    and while it is open its stop is where the lane's next row will be.
    """

    def __init__(self, capacity: int, first: int = 0):
        """No lanes.

        Args:
          capacity: of the ring.
          first: insertion number of the row that comes next.
        """
        self._capacity, self._next = capacity, first
        self._lane = np.full(capacity, OPEN, np.int32)  # by slot
        self._position = np.zeros(capacity, np.int64)  # by slot
        # [3, lanes, room]: insertion number of each position, and its episode's begin and stop, by
        # position modulo room, which grows with the longest history.
        self._history = np.zeros((3, 0, 64), np.int64)
        self._count = np.zeros(0, np.int64)  # rows ever, by lane

    @property
    def _room(self) -> int:
        return self._history.shape[2]

    def restart(self, first: int) -> None:
        """Forgets all; the next row has the insertion number ``first``."""
        self.__init__(self._capacity, first)

    def add(self, lane: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> None:
        """Continues the lanes by rows in the order of their insertion.

        Args:
          lane: [k] the lane of each row; new ones may appear.
          begins: [k] bool, whether an episode begins with it, which cuts one still open.
          ends: [k] bool, whether its episode ends with it.
        """
        first, self._next = self._next, self._next + len(lane)
        slots = np.arange(first, self._next) % self._capacity
        self._lane[slots] = lane
        if len(lane) and lane.max() >= len(self._count):
            self._add_lanes(int(lane.max()) + 1)
        for number in np.unique(lane).tolist():
            rows = np.flatnonzero(lane == number)
            position = self._count[number] + np.arange(len(rows))
            self._position[slots[rows]] = position
            self._make_room(number, int(position[-1]) + 1)
            self._extend(number, first + rows, position, begins[rows], ends[rows])

    def _extend(
        self,
        lane: int,
        ids: np.ndarray,
        position: np.ndarray,
        begins: np.ndarray,
        ends: np.ndarray,
    ) -> None:
        room, count = self._room, int(self._count[lane])
        last = (count - 1) % room
        is_open = count > 0 and self._history[STOP, lane, last] == OPEN
        if is_open and begins[0]:
            self._close(lane, int(self._history[BEGIN, lane, last]), count)
        begins = begins.copy()
        begins[0] |= not is_open
        begins[1:] |= ends[:-1]
        carried = self._history[BEGIN, lane, last] if is_open else 0
        begin = np.maximum.accumulate(np.where(begins, position, carried))
        self._history[IDS, lane, position % room] = ids
        self._history[BEGIN, lane, position % room] = begin
        self._history[STOP, lane, position % room] = OPEN
        self._count[lane] = position[-1] + 1
        stops = np.append(begins[1:], False) | ends
        for start, stop in zip(begin[stops].tolist(), position[stops].tolist(), strict=True):
            self._close(lane, start, stop + 1)

    def _close(self, lane: int, begin: int, stop: int) -> None:
        room = self._room
        positions = np.arange(max(begin, int(self._count[lane]) - room), stop)
        self._history[STOP, lane, positions % room] = stop

    def _add_lanes(self, lanes: int) -> None:
        more = lanes - len(self._count)
        self._count = np.append(self._count, np.zeros(more, np.int64))
        fresh = np.zeros((3, more, self._room), np.int64)
        self._history = np.concatenate([self._history, fresh], axis=1)

    def _make_room(self, lane: int, stop: int) -> None:
        """Room for positions to ``stop`` of the lane without losing a row that is kept."""
        room, count = self._room, int(self._count[lane])
        lost = stop - room - 1  # the newest position that would be written over
        if lost < count and (lost < 0 or self._history[IDS, lane, lost % room] < self._kept_from):
            return
        wider = 1 << (stop - self._oldest(lane) - 1).bit_length()
        history = np.zeros((3, len(self._count), wider), np.int64)
        for number, n in enumerate(self._count.tolist()):
            positions = np.arange(max(0, n - room), n)
            history[:, number, positions % wider] = self._history[:, number, positions % room]
        self._history = history

    @property
    def _kept_from(self) -> int:
        return self._next - self._capacity

    def _oldest(self, lane: int) -> int:
        """Position of the lane's oldest row that is kept."""
        room, count = self._room, int(self._count[lane])
        known = range(max(0, count - room), count)
        return known.start + bisect.bisect_left(
            known, self._kept_from, key=lambda p: self._history[IDS, lane, p % room]
        )

    # ---- neighbours, for many rows at once --------------------------------------------------

    def lane_of(self, ids: np.ndarray) -> np.ndarray:
        """The lanes [...] of kept rows ``ids`` [...]."""
        return self._lane[ids % self._capacity]

    def position_of(self, ids: np.ndarray) -> np.ndarray:
        """Their positions [...]."""
        return self._position[ids % self._capacity]

    def begin_of(self, ids: np.ndarray) -> np.ndarray:
        """The positions [...] at which their episodes begin; perhaps no longer kept."""
        return self._history[BEGIN, self.lane_of(ids), self.position_of(ids) % self._room]

    def kept_begin_of(self, ids: np.ndarray) -> np.ndarray:
        """The positions [...] of the oldest steps of their episodes that are kept."""
        lane, begin = self.lane_of(ids), self.begin_of(ids)
        oldest = np.array([self._oldest(number) for number in range(len(self._count))])
        return np.maximum(begin, oldest[lane])

    def stop_of(self, ids: np.ndarray) -> np.ndarray:
        """The positions [...] before which their episodes end, so far."""
        lane = self.lane_of(ids)
        stop = self._history[STOP, lane, self.position_of(ids) % self._room]
        return np.where(stop == OPEN, self._count[lane], stop)

    def has_ended(self, ids: np.ndarray) -> np.ndarray:
        """Whether their episodes have ended, bool [...]."""
        return self._history[STOP, self.lane_of(ids), self.position_of(ids) % self._room] != OPEN

    def at(self, lane: np.ndarray, position: np.ndarray) -> np.ndarray:
        """The insertion numbers of the rows at such positions, which must be kept."""
        return self._history[IDS, lane, position % self._room]

    def is_kept(self, lane: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Whether the rows at these positions [...], none newer than all, are kept; bool."""
        room = self._room
        is_known = (position >= 0) & (position >= self._count[lane] - room)
        return is_known & (self._history[IDS, lane, position % room] >= self._kept_from)

    def check_valid(self) -> None:
        """Raises AssertionError where a kept row doesn't lie in its lane and episode."""
        ids = np.arange(max(0, self._kept_from), self._next)
        ids = ids[self._lane[ids % self._capacity] != OPEN]
        lane, position = self.lane_of(ids), self.position_of(ids)
        np.testing.assert_array_equal(self.at(lane, position), ids)
        assert self.is_kept(lane, position).all()
        assert np.all(self.begin_of(ids) <= position)
        assert np.all(position < self.stop_of(ids))


@final
class Episodes:
    """Numbers the lanes of all actors, and knows of each which episode is open.

    An episode begins after one that ended, and where an actor's envs are of another incarnation:
    after a fault or a resume the steps in between were never seen.
    """

    def __init__(self):
        self._numbers: dict[tuple[int, int], int] = {}  # (actor, its lane) -> lane
        # lane -> incarnation of its open episode, and steps of it so far
        self._open: dict[int, tuple[int, int]] = {}

    def enter(self, chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
        """The lanes [k] of a chunk's windows, and the steps [k] of their episodes before them."""
        lane, end = chunk.windows.lane.tolist(), chunk.windows.end.tolist()
        number, since = np.zeros(len(lane), np.int32), np.zeros(len(lane), np.int32)
        for i, (of_actor, how) in enumerate(zip(lane, end, strict=True)):
            key = (chunk.actor, of_actor)
            number[i] = n = self._numbers.setdefault(key, len(self._numbers))
            incarnation, steps = self._open.pop(n, (chunk.incarnation, 0))
            since[i] = steps if incarnation == chunk.incarnation else 0
            if not how:
                self._open[n] = chunk.incarnation, int(since[i]) + 1
        return number, since

    def state(self) -> dict[str, Any]:
        """Lanes and open episodes."""
        numbers = [[*key, number] for key, number in self._numbers.items()]
        return {"numbers": numbers, "open": [[n, *open_] for n, open_ in self._open.items()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes them up."""
        self._numbers = {(actor, lane): number for actor, lane, number in state["numbers"]}
        self._open = {lane: (incarnation, steps) for lane, incarnation, steps in state["open"]}
