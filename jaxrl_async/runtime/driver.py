"""The two ways to drive the parts of a run: in lockstep, and in threads.

Both make the same calls, ``Actor.step``, ``Prefetcher.fetch``, ``Learner.step``, publication and
evaluation; they differ in who makes them and when.
"""

import contextlib
import time
from collections.abc import Callable

import jax
import numpy as np

from jaxrl_async.config import RunConfig
from jaxrl_async.replay.rate_limiter import Closed
from jaxrl_async.runtime import actor
from jaxrl_async.runtime.evaluator import lanes_for
from jaxrl_async.runtime.params import WAIT_SECONDS
from jaxrl_async.runtime.parts import Parts, acting_placement
from jaxrl_async.runtime.run import Run
from jaxrl_async.runtime.threads import ThreadGroup, short_switch_interval

JOIN_SECONDS = 10.0
"""Given to all threads together to end."""
COMPILE_SECONDS = 600.0
"""Given to a compilation under way, which nothing can interrupt."""


def run_lockstep(config: RunConfig, parts: Parts, run: Run) -> None:
    """Actors and learner in turn: whenever a whole call of updates is owed, it is made."""
    publisher, reporter = run.publisher, run.reporter

    def publish() -> None:
        publisher.publish()
        parts.store.deliver()

    def evaluate() -> None:
        if parts.evaluator is not None:
            snapshot = parts.store.copy(publisher.snapshot())
            with contextlib.suppress(Closed):  # interrupted meanwhile
                reporter.keep(parts.evaluator.evaluate(snapshot, reporter.interrupted))

    def learn() -> None:
        calls = config.learner.updates_per_call
        while parts.limiter.owed() >= calls and parts.limiter.wait_to_update(calls, 0.0):
            batch = parts.prefetcher.fetch()
            parts.prefetcher.report(batch, parts.learner.step(batch.rows, batch.weight))
            parts.prefetcher.write_back(wait=True)  # at once, so that a resume draws the same
            if publisher.is_due():
                publish()

    parts.learner.compile()
    if not run.is_resumed:
        publish()
        evaluate()
    while True:
        if not parts.limiter.is_spent:  # after a resume too, what was due at the stop
            report_lockstep(parts, run, evaluate)
        if parts.limiter.is_spent or reporter.reason is not None:
            break
        # Derived, not kept: so a resumed run goes on with whose turn it is.
        parts.actors[sum(actor.steps for actor in parts.actors) % len(parts.actors)].step()
        learn()
        if publisher.is_due():
            publish()
    run.save()
    publish()
    reporter.record_train()
    if parts.limiter.is_spent and reporter.reason is None:
        evaluate()


def report_lockstep(parts: Parts, run: Run, evaluate: Callable[[], None]) -> None:
    """Rows, evaluations and checkpoints that are due before the end."""
    reporter = run.reporter
    if reporter.record_due():
        parts.learner.finish()
        reporter.record_train()
    if reporter.evaluation_due():
        evaluate()
    if run.save_due():
        run.save()
    reporter.record_timing()
    reporter.check_limits()


def run_threads(config: RunConfig, parts: Parts, run: Run) -> None:
    """Actors, prefetcher, publisher and evaluator in threads; the learner on this one."""
    publisher, group = run.publisher, ThreadGroup()
    for wake in (parts.limiter.close, parts.prefetcher.close, parts.store.close):
        group.on_stop(wake)
    with short_switch_interval():
        try:
            if not run.is_resumed:
                publisher.publish()
                parts.store.deliver()
            warm_up(config, parts)
            if parts.evaluator is not None and not run.is_resumed:
                parts.evaluator.request(parts.store.copy(publisher.snapshot()))
            start_threads(config, parts, group)
            learn(parts, run, group)
            finish(config, parts, run, group)
        except Closed:
            pass  # a thread failed while this one waited; check() says which
        except Exception as error:
            group.fail("main", error)
        finally:
            group.shut()
            parts.learner.wait_for_compiler(COMPILE_SECONDS)
            group.join(JOIN_SECONDS)
    try:
        run.save()
    except Exception as error:
        group.fail("checkpoint", error)
    group.check()


def warm_up(config: RunConfig, parts: Parts) -> None:
    """Compiles the policy for each number of rows that will occur, before threads could race to."""
    snapshot = parts.store.latest()
    key = jax.device_put(jax.random.key(0), acting_placement(config))
    rows = {config.actor.envs_per_actor // config.actor.groups}
    if parts.evaluator is not None:
        rows.add(lanes_for(config.evaluation.episodes))
    for count in rows:
        observation, carry = parts.agent.spec.zeros(count), parts.agent.initial_carry(count)
        explore = np.zeros(count, np.float32)
        parts.act(snapshot.params, carry, observation, key, np.int32(0), explore)


def start_threads(config: RunConfig, parts: Parts, group: ThreadGroup) -> None:
    """Starts everybody; the learner's step is compiled while the actors collect the warm-up."""

    def prefetch() -> None:
        if not group.stop.is_set():
            parts.learner.compile()
        parts.prefetcher.run(group.stop)

    group.start("publisher", lambda: parts.store.run(group.stop))
    group.start("prefetcher", prefetch)
    for index in range(config.actor.num_actors):
        actors = parts.actors[index * config.actor.groups :][: config.actor.groups]
        group.start(f"actor-{index}", lambda actors=actors: actor.run(actors, group.stop))
    if parts.evaluator is not None:
        evaluator = parts.evaluator
        group.start("evaluator", lambda: evaluator.run(group.stop))


def learn(parts: Parts, run: Run, group: ThreadGroup) -> None:
    """Takes what the prefetcher has ready until the updates of the budget are made."""
    publisher, reporter = run.publisher, run.reporter
    while reporter.reason is None:
        group.check()
        try:
            batch = parts.prefetcher.next(0.0)
            if batch is None:
                parts.learner.finish()  # nothing better to do, and the counts become exact
                batch = parts.prefetcher.next(WAIT_SECONDS)
        except Closed:
            group.check()
            return
        if batch is not None:
            parts.prefetcher.report(batch, parts.learner.step(batch.rows, batch.weight))
        if publisher.is_due():
            publisher.publish()
        report(parts, run)


def report(parts: Parts, run: Run) -> None:
    """What is due meanwhile; nothing here waits for a device, but for a checkpoint."""
    publisher, reporter = run.publisher, run.reporter
    is_spent = parts.limiter.is_spent  # then `finish` has the last word
    if not is_spent and reporter.record_due():
        reporter.record_train()
    if parts.evaluator is not None:
        if not is_spent and reporter.evaluation_due():
            parts.evaluator.request(parts.store.copy(publisher.snapshot()))
        for evaluation in parts.evaluator.results():
            reporter.keep(evaluation)
    if not is_spent and run.save_due():
        run.save()
    reporter.record_timing()
    reporter.check_limits()


def wait_for_delivery(parts: Parts, group: ThreadGroup) -> None:
    """Until the actors' device has the newest version; the publisher's thread brings it there."""
    while True:
        group.check()
        with contextlib.suppress(TimeoutError):
            parts.store.latest(WAIT_SECONDS, at_least=parts.learner.updates)
            return


def finish(config: RunConfig, parts: Parts, run: Run, group: ThreadGroup) -> None:
    """Publishes the last version and, if the budget was reached, waits for its evaluation."""
    publisher, reporter = run.publisher, run.reporter
    parts.learner.finish()
    publisher.publish()
    wait_for_delivery(parts, group)
    reporter.record_train()
    if parts.evaluator is None:
        return
    if reporter.reason is None:
        parts.evaluator.request(parts.store.copy(publisher.snapshot()))
        allowed = parts.evaluator.unfinished * config.evaluation.time_limit
        deadline = time.monotonic() + allowed + JOIN_SECONDS
        while not parts.evaluator.wait(WAIT_SECONDS) and time.monotonic() < deadline:
            group.check()
            reporter.record_timing()
            reporter.check_limits()
            if reporter.reason is not None:
                break
    for evaluation in parts.evaluator.results():
        reporter.keep(evaluation)
