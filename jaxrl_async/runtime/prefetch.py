"""From the replay to the learner's devices, ahead of the learner."""

import collections
import threading
import time
from typing import NamedTuple, final

import jax
import numpy as np

from jaxrl_async.replay.rate_limiter import Closed, RateLimiter
from jaxrl_async.replay.replay import Source
from jaxrl_async.runtime.metrics import Blocked, Means
from jaxrl_async.runtime.params import WAIT_SECONDS

DEPTH = 2
"""Calls sampled ahead of the learner; 1 with priorities, which should be young."""


class DeviceBatch(NamedTuple):
    """What one call of the learner takes."""

    rows: dict[str, jax.Array]  # dtype -> [K, B, width]
    weight: jax.Array  # [K, B]
    ids: np.ndarray  # [K, B] insertion numbers, on the host
    number: int  # calls sampled before


@final
class Prefetcher:
    """Samples the batches of one call and puts them on the devices.

    In lockstep the learner's thread calls ``fetch``. In threads one thread calls ``run`` and
    another ``next``; at most ``DEPTH`` calls wait between them. The learner's ``report`` brings
    back what priorities are made of; at most as many reports wait as calls were fetched.
    """

    def __init__(
        self,
        replay: Source,
        limiter: RateLimiter,
        *,
        batch_size: int,
        updates_per_call: int,
        sharding: jax.sharding.Sharding,
    ):
        self._replay, self._limiter, self._sharding = replay, limiter, sharding
        self._shape = (updates_per_call, batch_size)
        self._changed = threading.Condition()
        self._ready: collections.deque[DeviceBatch] = collections.deque()
        self._depth = 1 if replay.needs_priorities else DEPTH
        self._reports: collections.deque[tuple[DeviceBatch, jax.Array]] = collections.deque()
        self._fetched = 0  # calls, in this process
        self.refused = 0
        """TD errors that were not finite, and so are no priorities."""
        self._is_closed = False
        self.means = Means()
        """``sample_ms``, ``transfer_ms`` per call, ``age`` in transitions, ``queue`` in calls,
        ``priority_age`` in updates."""
        self.blocked = Blocked()
        """Seconds that the learner waited here."""

    def fetch(self) -> DeviceBatch:
        """Samples and transfers one call.

        The sample is freshly gathered memory that nobody writes again: on the CPU ``device_put``
        may share it with the compiled step instead of copying.
        """
        start = time.perf_counter()
        sample = self._replay.sample(*self._shape)
        sampled = time.perf_counter()
        rows, weight = jax.device_put((sample.rows, sample.weight), self._sharding)
        self.means.add(
            sample_ms=1e3 * (sampled - start),
            transfer_ms=1e3 * (time.perf_counter() - sampled),
        )
        own = sample.ids[sample.ids >= 0]  # those of a dataset have no age
        if own.size:
            self.means.add(age=sample.total - float(own.mean()))
        self._fetched += 1
        return DeviceBatch(rows, weight, sample.ids, self._fetched - 1)

    def report(self, batch: DeviceBatch, td_error: jax.Array) -> None:
        """Takes what a call of the learner made of its batch, perhaps still being computed."""
        if self._replay.needs_priorities:
            td_error.copy_to_host_async()
            self._reports.append((batch, td_error))

    def write_back(self, wait: bool = False) -> None:
        """Gives the replay the priorities that are ready, or all of them."""
        while self._reports and (wait or self._reports[0][1].is_ready()):  # pyright: ignore[reportAttributeAccessIssue]  # untyped in jax
            batch, td_error = self._reports.popleft()
            error = np.asarray(td_error)
            is_finite = np.isfinite(error)
            self.refused += np.count_nonzero(~is_finite)
            self._replay.update_priorities(batch.ids[is_finite], error[is_finite])
            updates = (self._fetched - 1 - batch.number) * self._shape[0]
            self.means.add(priority_age=updates)

    def run(self, stop: threading.Event) -> None:
        """Fetches whatever the limiter lets through, until it is closed or all is done."""
        while not stop.is_set():
            with self._changed:
                if not self._changed.wait_for(self._has_room, WAIT_SECONDS):
                    continue
            try:
                if not self._limiter.wait_to_update(self._shape[0], WAIT_SECONDS):
                    continue
            except Closed:  # all is done; an error would close this after it was noted
                self.close()
                raise
            self.write_back()
            batch = self.fetch()
            with self._changed:
                self._ready.append(batch)
                self._changed.notify_all()

    def _has_room(self) -> bool:
        return len(self._ready) < self._depth or self._is_closed

    def next(self, timeout: float) -> DeviceBatch | None:
        """The oldest waiting call; None: not yet.

        Raises:
          Closed: there will be no more.
        """
        start = time.monotonic()
        with self._changed:
            waiting = len(self._ready)
            self._changed.wait_for(lambda: self._ready or self._is_closed, timeout)
            self.blocked.add(time.monotonic() - start)
            if self._ready:
                batch = self._ready.popleft()
                self.means.add(queue=waiting)
                self._changed.notify_all()
                return batch
            if self._is_closed:
                raise Closed
            return None

    def close(self) -> None:
        """No more calls; those that wait can still be taken."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
