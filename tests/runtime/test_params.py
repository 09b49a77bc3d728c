"""The parameter store against a plain model, and between threads.

Parameters certify themselves: every number in them is their version.
"""

import contextlib
import sys
import threading

import jax
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jaxrl_async.replay.rate_limiter import Closed
from jaxrl_async.runtime.params import ParamStore, Snapshot

NOW, LONG = 0.0, 30.0


def place(index):
    return jax.sharding.SingleDeviceSharding(jax.devices()[index])


def fresh(version, shape=(2, 3)):
    """Parameters of that version on the learner's device."""
    params = {"w": np.full(shape, version), "layers": [np.full(3, version), np.array(version)]}
    return jax.device_put(jax.tree.map(lambda leaf: leaf.astype(np.float32), params), place(0))


@jax.jit
def add(params, updates):
    return jax.tree.map(lambda leaf: leaf + updates, params)


step = jax.jit(add, donate_argnums=0)


def assert_certified(snapshot, index=None):
    """Readable, complete, all of one version, and on that device."""
    for leaf in jax.tree.leaves(snapshot.params):
        assert not leaf.is_deleted()
        assert index is None or (leaf.is_ready() and leaf.devices() == {jax.devices()[index]})
        np.testing.assert_array_equal(np.asarray(leaf), np.float32(snapshot.version))


# ---- one thread ----------------------------------------------------------------------------


class ParamStoreMachine(RuleBasedStateMachine):
    """The model is two snapshots without parameters: what is offered, and what was delivered."""

    @initialize(actors=st.sampled_from([0, 1]), version=st.integers(0, 5))
    def make(self, actors, version):
        self.actors, self.store = actors, ParamStore(place(actors))
        self.version, self.params = version, fresh(version)
        self.offers = 0
        self.offered = self.delivered = None
        self.is_closed = False
        self.returned, self.copies, self.given = [], [], []

    def snapshot(self):
        """The learner's newest; no two have the same env steps and exploration."""
        self.offers += 1
        return Snapshot(self.version, 10 * self.offers, 1 / self.offers, self.params)

    @rule(updates=st.integers(1, 3))
    def make_updates(self, updates):
        donated = self.params
        self.params = step(donated, np.float32(updates))
        self.version += updates

        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(donated))

    @rule()
    def publish(self):
        offer = self.snapshot()

        returned = self.store.publish(offer)

        assert_certified(offer)  # nothing of the learner's was donated
        self.offered = offer._replace(params=None)
        assert returned._replace(params=None) == self.offered
        self.returned = [*self.returned[-2:], returned]

    @rule()
    def copy(self):
        snapshot = self.snapshot()

        copied = self.store.copy(snapshot)

        assert_certified(snapshot)
        assert copied._replace(params=None) == snapshot._replace(params=None)
        self.copies = [*self.copies[-2:], copied]

    @rule()
    def deliver(self):
        try:
            is_delivered = self.store.deliver(NOW)
        except Closed:
            is_delivered = False
            assert self.is_closed

        assert is_delivered == (self.offered is not None)
        if is_delivered:
            self.delivered, self.offered = self.offered, None

    @rule(ahead=st.integers(-2, 2))
    def latest(self, ahead):
        at_least = ahead + (0 if self.delivered is None else self.delivered.version)
        is_there = self.delivered is not None and self.delivered.version >= at_least

        if is_there:
            self.given = [*self.given[-2:], self.store.latest(NOW, at_least)]
            assert self.given[-1]._replace(params=None) == self.delivered
        else:
            with pytest.raises(Closed if self.is_closed else TimeoutError):
                self.store.latest(NOW, at_least)

    @precondition(lambda self: self.copies)
    @rule()
    def donate_a_copy(self):
        step(self.copies.pop().params, np.float32(1))

    @rule()
    def close(self):
        self.store.close()

        self.is_closed = True

    @invariant()
    def what_anyone_has_is_complete_and_of_its_version(self):
        for snapshot in self.returned + self.copies:
            assert_certified(snapshot)
        for snapshot in self.given:
            assert_certified(snapshot, self.actors)
        assert_certified(Snapshot(self.version, 0, 0.0, self.params))

    @invariant()
    def versions_never_fall(self):
        versions = [snapshot.version for snapshot in self.given]
        assert versions == sorted(versions)

    @invariant()
    def what_was_delivered_can_be_read_also_after_the_end(self):
        if self.delivered is not None:
            assert_certified(self.store.latest(NOW), self.actors)
        self.store.check_valid()


def test_any_order_of_calls_gives_what_was_delivered_last_and_never_half_of_it():
    run_state_machine_as_test(
        ParamStoreMachine,
        settings=settings(
            derandomize=True,
            max_examples=50,
            stateful_step_count=30,
            deadline=None,
            database=None,
        ),
    )


@pytest.mark.parametrize("actors", [0, 1])
def test_a_version_below_the_delivered_one_is_found(actors):
    store = ParamStore(place(actors))
    for version in (3, 2):
        store.check_valid()
        store.publish(Snapshot(version, 0, 0.0, fresh(version)))
        if version == 3:
            store.deliver(NOW)

    with pytest.raises(AssertionError):
        store.check_valid()


def test_parameters_that_were_left_on_the_learners_device_are_found():
    store = ParamStore(place(1))
    store.publish(Snapshot(1, 0, 0.0, fresh(1)))
    store.deliver(NOW)
    store.check_valid()

    store._delivered = Snapshot(1, 0, 0.0, fresh(1))

    with pytest.raises(AssertionError):
        store.check_valid()


class Sleepless(threading.Condition):
    """Refuses to sleep where nobody would wake the sleeper."""

    def wait(self, timeout=None):
        raise AssertionError(f"sleeps for {timeout} s")


@pytest.mark.parametrize("call", [ParamStore.latest, ParamStore.deliver])
def test_nobody_sleeps_for_ever_who_comes_after_the_end(call):
    store = ParamStore(place(0))
    store._changed = Sleepless()
    store.close()

    with pytest.raises(Closed):
        call(store)


# ---- threads -------------------------------------------------------------------------------


def in_threads(*bodies):
    """Runs the bodies in threads; returns the threads and what they raised."""
    raised = []

    def guard(body):
        try:
            body()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guard, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    return threads, raised


def join(threads):
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()


class CountingCondition(threading.Condition):
    """Knows when so many sleep."""

    def __init__(self, sleepers):
        super().__init__()
        self.awaited, self.all_sleep = sleepers, threading.Event()

    def wait(self, timeout=None):
        self.awaited -= 1  # under the lock, which the sleeper gives up only asleep
        if self.awaited == 0:
            self.all_sleep.set()
        return super().wait(timeout)


def test_close_wakes_all_who_wait_and_gives_the_others_what_was_delivered():
    store = ParamStore(place(1))
    store._changed = CountingCondition(sleepers=3)
    store.publish(Snapshot(4, 0, 0.0, fresh(4)))
    store.deliver(NOW)

    # longer than `join` waits: at its own timeout a sleeper would see the end too
    wait = 2 * LONG
    threads, raised = in_threads(*(lambda n=n: store.latest(wait, at_least=n) for n in (5, 6, 7)))
    assert store._changed.all_sleep.wait(LONG)
    assert raised == []
    store.close()
    join(threads)

    assert [type(error) for error in raised] == [Closed] * 3
    assert_certified(store.latest(NOW, at_least=4), 1)


def test_a_delivery_wakes_those_for_whom_it_is_new_enough():
    store = ParamStore(place(1))
    store._changed = CountingCondition(sleepers=3)
    got = []

    threads, raised = in_threads(
        *(lambda n=n: got.append((n, store.latest(LONG, at_least=n).version)) for n in (0, 2, 3))
    )
    assert store._changed.all_sleep.wait(LONG)
    store.publish(Snapshot(2, 0, 0.0, fresh(2)))
    store.deliver(NOW)
    join(threads[:2])
    assert sorted(got) == [(0, 2), (2, 2)]
    store.publish(Snapshot(5, 0, 0.0, fresh(5)))
    store.deliver(NOW)
    join(threads)

    assert sorted(got) == [(0, 2), (2, 2), (3, 5)]
    assert raised == []


def test_while_a_transfer_is_under_way_the_last_version_is_given_and_a_new_one_can_be_offered(
    monkeypatch,
):
    store = ParamStore(place(1))
    store.publish(Snapshot(1, 0, 0.0, fresh(1)))
    store.deliver(NOW)
    begun, finish, wait = threading.Event(), threading.Event(), jax.block_until_ready

    def long_transfer(params):
        begun.set()
        assert finish.wait(LONG)
        return wait(params)

    monkeypatch.setattr(jax, "block_until_ready", long_transfer)
    store.publish(Snapshot(2, 0, 0.0, fresh(2)))
    threads, raised = in_threads(lambda: store.deliver(LONG))
    assert begun.wait(LONG)

    assert_certified(store.latest(NOW), 1)
    assert store.latest(NOW).version == 1
    store.publish(Snapshot(3, 0, 0.0, fresh(3)))
    with pytest.raises(TimeoutError):
        store.latest(NOW, at_least=2)

    finish.set()
    join(threads)
    assert raised == []
    assert store.latest(NOW).version == 2
    assert store.deliver(NOW)
    assert_certified(store.latest(NOW, at_least=3), 1)


def test_three_readers_never_see_half_of_2000_versions_that_are_donated_as_soon_as_published():
    last, store, stop = 2_000, ParamStore(place(1)), threading.Event()
    before = sys.getswitchinterval()
    seen = [[-1], [-1], [-1]]

    def ends_all(body):
        """Where one fails, the others do not wait for it."""
        try:
            body()
        except BaseException:
            stop.set()
            store.close()
            raise

    def deliverer():
        with contextlib.suppress(Closed):  # the ordinary end of who waits
            store.run(stop)

    def learner():
        params = fresh(0, shape=(32, 32))
        for version in range(last + 1):
            store.publish(Snapshot(version, 2 * version, 0.0, params))
            params = step(params, np.float32(1))
            if version % 100 == 0:  # so that at least 21 are delivered
                store.latest(LONG, at_least=version)

    def reader(index):
        while not stop.is_set() and seen[index][-1] < last:
            # the first looks all the time, the others wait for something new
            at_least = 0 if index == 0 else seen[index][-1] + 1
            snapshot = store.latest(LONG, at_least)
            assert snapshot.version >= max(at_least, seen[index][-1])
            assert snapshot.env_steps == 2 * snapshot.version
            assert_certified(snapshot, 1)
            seen[index].append(snapshot.version)

    bodies = [deliverer, learner, *(lambda i=i: reader(i) for i in range(3))]
    sys.setswitchinterval(1e-6)
    try:
        threads, raised = in_threads(*(lambda body=body: ends_all(body) for body in bodies))
        join(threads[1:])
    finally:
        sys.setswitchinterval(before)
        stop.set()
        store.close()
        join(threads)

    assert raised == []
    assert [versions[-1] for versions in seen] == [last] * 3
