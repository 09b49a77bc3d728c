"""What a checkpoint holds of a run, gathered from its parts and given back to them."""

from typing import Any

import jax

from jaxrl_async.runtime.params import Snapshot
from jaxrl_async.runtime.parts import Parts
from jaxrl_async.runtime.publisher import Publisher
from jaxrl_async.runtime.reporter import Reporter


def arrays(parts: Parts, publisher: Publisher) -> dict[str, Any]:
    """What lies on devices: the agent's state, and the parameters that actors have."""
    return {"agent": parts.learner.state, "published": publisher.last.params}


def gather(parts: Parts, publisher: Publisher, reporter: Reporter) -> dict[str, Any]:
    """Everything else, of one instant: what was counted is stored, and what was stored counted.

    Call ``learner.finish`` first.
    """
    with parts.sink.quiet():
        counts = {"env_steps": parts.limiter.env_steps, **parts.replay.state()}
    last = publisher.last
    return {
        **counts,
        "capacity": parts.replay.capacity,
        "dataset": parts.dataset.state() if parts.dataset else None,
        "updates": parts.learner.done,
        "window": parts.learner.window(),
        "means": parts.prefetcher.means.state(),
        "counters": parts.counters.state(),
        "actors": [actor.state() for actor in parts.actors],
        "published": [last.version, last.env_steps, last.explore],
        "reporter": reporter.state(),
    }


def give_back(
    run: dict[str, Any],
    saved: dict[str, Any],
    parts: Parts,
    publisher: Publisher,
    reporter: Reporter,
) -> None:
    """The inverse of ``gather`` and ``arrays``, before anything else is done with the parts."""
    parts.replay.restore(run)
    if parts.dataset is not None:
        parts.dataset.restore(run["dataset"])
    parts.limiter.restore(run["env_steps"], run["updates"])
    parts.learner.restore(saved["agent"], run["updates"], run["window"])
    parts.prefetcher.means.restore(run["means"])
    parts.counters.restore(run["counters"])
    for actor, state in zip(parts.actors, run["actors"], strict=True):
        actor.restore(state)
    version, env_steps, explore = run["published"]
    publisher.publish(Snapshot(version, env_steps, explore, saved["published"]))
    parts.store.deliver()
    reporter.restore(run["reporter"])


def like(parts: Parts) -> dict[str, Any]:
    """Arrays of the shapes and places that ``arrays`` will have."""
    state = parts.learner.state
    return {"agent": state, "published": jax.tree.map(lambda x: x, parts.agent.actor_params(state))}
