"""The thread group: first error wins, everybody ends."""

import sys
import threading

import pytest

from jaxrl_async.replay.rate_limiter import Closed
from jaxrl_async.runtime.threads import (
    SWITCH_INTERVAL,
    ShutdownTimeoutError,
    ThreadGroup,
    short_switch_interval,
)

LONG = 30.0


def test_the_first_error_stops_all_and_is_raised_with_the_threads_name():
    group, failed = ThreadGroup(), threading.Event()
    error = ValueError("the simulator is gone")

    def fails():
        raise error

    def waits():
        assert group.stop.wait(LONG)
        failed.set()
        raise KeyError("a consequence")

    group.start("learner", waits)
    group.start("actor-1", fails)
    assert failed.wait(LONG)
    group.join(LONG)

    with pytest.raises(ValueError, match="the simulator is gone") as raised:
        group.check()
    assert raised.value is error
    assert error.__notes__ == [
        "raised in thread 'actor-1'",
        "then thread 'learner' failed: KeyError('a consequence')",
    ]


def test_what_threads_wait_on_is_closed_at_a_stop():
    group, queue = ThreadGroup(), threading.Event()
    group.on_stop(queue.set)
    group.start("waits", lambda: queue.wait(LONG))

    group.join(LONG)

    group.check()
    assert threading.active_count() == 1


def test_closed_is_an_ordinary_end():
    group = ThreadGroup()

    def ends():
        raise Closed

    group.start("ends", ends)
    group.join(LONG)

    group.check()


def test_a_stuck_thread_is_named_with_its_stack():
    group, release = ThreadGroup(), threading.Event()

    def stuck_in_a_simulator():
        release.wait(LONG)

    group.start("actor-3", stuck_in_a_simulator)
    with pytest.raises(ShutdownTimeoutError, match=r"1 threads .* 0.05 s") as raised:
        group.join(0.05)
    release.set()
    group.join(LONG)

    assert "actor-3:" in str(raised.value)
    assert "stuck_in_a_simulator" in str(raised.value)


def test_the_switch_interval_is_restored_by_the_last_one_out():
    before = sys.getswitchinterval()

    with short_switch_interval():
        with short_switch_interval():
            assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL)
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL)

    assert sys.getswitchinterval() == before
