"""The two ways to drive the parts of a run: in lockstep, and in threads.

Both make the same calls, ``Actor.step``, ``Prefetcher.fetch``, ``Learner.step``, publication and
evaluation; they differ in who makes them and when.
"""

import contextlib
import time

import jax
import numpy as np

from jaxrl_async.config import RunConfig
from jaxrl_async.replay.rate_limiter import Closed
from jaxrl_async.runtime.evaluator import lanes_for
from jaxrl_async.runtime.params import WAIT_SECONDS, Snapshot
from jaxrl_async.runtime.parts import Parts, acting_placement
from jaxrl_async.runtime.reporter import Reporter
from jaxrl_async.runtime.threads import ThreadGroup, short_switch_interval

EXPLORE_PERIOD = 1_000
"""Env steps after which the exploration schedule reaches the actors where no update does."""
JOIN_SECONDS = 10.0
"""Given to all threads together to end."""


class Publisher:
    """Hands parameters to the actors when they are due. Main thread only."""

    def __init__(self, config: RunConfig, parts: Parts):
        self._period, self._parts = config.learner.publish_period, parts
        self._last = Snapshot(0, 0, 0.0, None)

    def snapshot(self) -> Snapshot:
        """The newest parameters; their buffers live until the learner's next step."""
        parts, env_steps = self._parts, self._parts.limiter.env_steps
        params = parts.agent.actor_params(parts.learner.state)
        return Snapshot(parts.learner.updates, env_steps, parts.agent.explore(env_steps), params)

    def publish(self) -> None:
        """Offers the newest parameters now."""
        self._last = self.snapshot()
        self._parts.store.publish(self._last)

    def is_due(self) -> bool:
        """Whether enough updates were made, or the exploration schedule has moved on."""
        since = self._parts.learner.updates - self._last.version
        moved = self._parts.limiter.env_steps - self._last.env_steps
        return since >= self._period or moved >= EXPLORE_PERIOD


def run_lockstep(config: RunConfig, parts: Parts, reporter: Reporter) -> None:
    """Actors and learner in turn: whenever a whole call of updates is owed, it is made."""
    publisher = Publisher(config, parts)

    def publish() -> None:
        publisher.publish()
        parts.store.deliver()

    def evaluate() -> None:
        if parts.evaluator is not None:
            snapshot = parts.store.copy(publisher.snapshot())
            reporter.keep(parts.evaluator.evaluate(snapshot))

    def learn() -> None:
        calls = config.learner.updates_per_call
        while parts.limiter.owed() >= calls and parts.limiter.wait_to_update(calls, 0.0):
            batch = parts.prefetcher.fetch()
            parts.learner.step(batch.rows, batch.weight)
            if publisher.is_due():
                publish()

    parts.learner.compile()
    publish()
    evaluate()
    turn = 0
    while not parts.limiter.is_spent and reporter.reason is None:
        parts.actors[turn].step()
        turn = (turn + 1) % len(parts.actors)
        learn()
        if publisher.is_due():
            publish()
        if not parts.limiter.is_spent:
            report_lockstep(parts, reporter, evaluate)
    parts.learner.finish()
    publish()
    reporter.record_train()
    if parts.limiter.is_spent:
        evaluate()


def report_lockstep(parts: Parts, reporter: Reporter, evaluate) -> None:
    """Rows and evaluations that are due before the end."""
    if reporter.record_due():
        parts.learner.finish()
        reporter.record_train()
    if reporter.evaluation_due():
        evaluate()
    reporter.record_timing()
    reporter.check_limits()


def run_threads(config: RunConfig, parts: Parts, reporter: Reporter) -> None:
    """Actors, prefetcher, publisher and evaluator in threads; the learner on this one."""
    publisher, group = Publisher(config, parts), ThreadGroup()
    for wake in (parts.limiter.close, parts.prefetcher.close, parts.store.close):
        group.on_stop(wake)
    with short_switch_interval():
        try:
            publisher.publish()
            parts.store.deliver()
            warm_up(config, parts)
            if parts.evaluator is not None:
                parts.evaluator.request(parts.store.copy(publisher.snapshot()))
            start_threads(parts, publisher, group)
            learn(parts, publisher, group, reporter)
            finish(config, parts, publisher, group, reporter)
        finally:
            group.join(JOIN_SECONDS)
        group.check()


def warm_up(config: RunConfig, parts: Parts) -> None:
    """Compiles the policy for each number of rows that will occur, before threads could race to."""
    snapshot = parts.store.latest()
    key = jax.device_put(jax.random.key(0), acting_placement(config))
    rows = {config.actor.envs_per_actor}
    if parts.evaluator is not None:
        rows.add(lanes_for(config.evaluation.episodes))
    for count in rows:
        observation, carry = parts.agent.spec.zeros(count), parts.agent.initial_carry(count)
        explore = np.zeros(count, np.float32)
        parts.act(snapshot.params, carry, observation, key, np.int32(0), explore)


def start_threads(parts: Parts, publisher: Publisher, group: ThreadGroup) -> None:
    """Starts everybody; the learner's step is compiled while the actors collect the warm-up."""

    def prefetch() -> None:
        parts.learner.compile()
        parts.prefetcher.run(group.stop)

    group.start("publisher", lambda: parts.store.run(group.stop))
    group.start("prefetcher", prefetch)
    for index, actor in enumerate(parts.actors):
        group.start(f"actor-{index}", lambda actor=actor: actor.run(group.stop))
    if parts.evaluator is not None:
        evaluator = parts.evaluator
        group.start("evaluator", lambda: evaluator.run(group.stop))


def learn(parts: Parts, publisher: Publisher, group: ThreadGroup, reporter: Reporter) -> None:
    """Takes what the prefetcher has ready until the updates of the budget are made."""
    while reporter.reason is None:
        group.check()
        try:
            batch = parts.prefetcher.next(WAIT_SECONDS)
        except Closed:
            group.check()
            return
        if batch is not None:
            parts.learner.step(batch.rows, batch.weight)
        if publisher.is_due():
            publisher.publish()
        report(parts, publisher, reporter)


def report(parts: Parts, publisher: Publisher, reporter: Reporter) -> None:
    """What is due meanwhile; nothing here waits for a device."""
    if reporter.record_due():
        reporter.record_train()
    if parts.evaluator is not None:
        if reporter.evaluation_due() and not parts.limiter.is_spent:
            parts.evaluator.request(parts.store.copy(publisher.snapshot()))
        for evaluation in parts.evaluator.results():
            reporter.keep(evaluation)
    reporter.record_timing()
    reporter.check_limits()


def wait_for_delivery(parts: Parts, group: ThreadGroup) -> None:
    """Until the actors' device has the newest version; the publisher's thread brings it there."""
    while True:
        group.check()
        with contextlib.suppress(TimeoutError):
            parts.store.latest(WAIT_SECONDS, at_least=parts.learner.updates)
            return


def finish(
    config: RunConfig,
    parts: Parts,
    publisher: Publisher,
    group: ThreadGroup,
    reporter: Reporter,
) -> None:
    """Publishes the last version and, if the budget was reached, waits for its evaluation."""
    parts.learner.finish()
    publisher.publish()
    wait_for_delivery(parts, group)
    reporter.record_train()
    if parts.evaluator is None:
        return
    if reporter.reason is None:
        parts.evaluator.request(parts.store.copy(publisher.snapshot()))
        deadline = time.monotonic() + config.evaluation.time_limit
        while not parts.evaluator.wait(WAIT_SECONDS) and time.monotonic() < deadline:
            group.check()
            reporter.record_timing()
            if reporter.reason is not None:  # interrupted meanwhile
                break
    for evaluation in parts.evaluator.results():
        reporter.keep(evaluation)
