"""The threads of a run: named, supervised, and all of them joined."""

import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import final

from jaxrl_async.replay.rate_limiter import Closed

SWITCH_INTERVAL = 0.0005
"""Seconds after which a running Python thread lets another have the GIL, during a run. With
Python's 5 ms, one env in pure Python delays the learner's wake-up by as much as an update takes."""


class ShutdownTimeoutError(RuntimeError):
    """Threads that did not end in time; the message has their names and stacks."""


@final
class ThreadGroup:
    """Starts threads, keeps the first exception, and ends them all.

    Invariant: whatever ends one thread other than its own return or ``Closed`` sets ``stop`` and
    wakes all that wait, so no thread waits for one that is gone. None is a daemon: a daemon thread
    inside JAX at the interpreter's exit aborts the process.
    """

    def __init__(self):
        self.stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._wakers: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def on_stop(self, wake: Callable[[], None]) -> None:
        """``wake`` is called once the group stops: it closes a queue that threads wait on."""
        self._wakers.append(wake)

    def start(self, name: str, body: Callable[[], None]) -> None:
        """Runs ``body`` in a thread of that name."""
        thread = threading.Thread(target=self._guard, args=(name, body), name=name)
        thread.start()
        self._threads.append(thread)

    def _guard(self, name: str, body: Callable[[], None]) -> None:
        try:
            body()
        except Closed:
            pass  # the ordinary end of who waited
        except BaseException as error:
            self.fail(name, error)

    def fail(self, name: str, error: BaseException) -> None:
        """Keeps the first error, to be raised by ``check``; later ones become notes of it."""
        with self._lock:
            if self._error is None:
                self._error = error
                error.add_note(f"raised in thread {name!r}")
            elif error is not self._error:
                self._error.add_note(f"then thread {name!r} failed: {error!r}")
        self.shut()

    def shut(self) -> None:
        """Asks all threads to end, and wakes those that wait; may be called more than once."""
        self.stop.set()
        for wake in self._wakers:
            wake()

    def check(self) -> None:
        """Raises the first error of any thread, in the caller's."""
        if self._error is not None:
            raise self._error

    def join(self, timeout: float) -> None:
        """Ends and joins all threads.

        Raises:
          ShutdownTimeoutError: some did not end within ``timeout`` seconds.
        """
        self.shut()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        stuck = [thread for thread in self._threads if thread.is_alive()]
        if stuck:
            frames = sys._current_frames()
            stacks = "".join(
                f"\n{thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
                for thread in stuck
                if thread.ident in frames
            )
            raise ShutdownTimeoutError(
                f"{len(stuck)} threads did not end within {timeout:g} s:{stacks}"
            ) from self._error


class _Switching:
    """How many runs of this process want the short switch interval, and what it was before."""

    lock = threading.Lock()
    users = 0
    before = 0.0


@contextlib.contextmanager
def short_switch_interval() -> Iterator[None]:
    """The switch interval is the process's: the first run sets it, the last one out restores it."""
    with _Switching.lock:
        if _Switching.users == 0:
            _Switching.before = sys.getswitchinterval()
            sys.setswitchinterval(min(SWITCH_INTERVAL, _Switching.before))
        _Switching.users += 1
    try:
        yield
    finally:
        with _Switching.lock:
            _Switching.users -= 1
            if _Switching.users == 0:
                sys.setswitchinterval(_Switching.before)
