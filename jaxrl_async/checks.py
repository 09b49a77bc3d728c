"""Refusals at the door: what configs require of their fields."""

import math
from collections.abc import Callable, Iterable
from typing import Any


class ConfigError(Exception):
    """A setting that cannot work; the message names the field, the value and the remedy.

    Not a ``ValueError``: command-line parsers take those for their own and wrap them.
    """


def require(condition: bool, name: str, value: Any, remedy: str) -> None:
    """Raises ``ConfigError`` unless ``condition`` holds."""
    if not condition:
        raise ConfigError(f"{name} = {value!r}: {remedy}")


def _each(config: Any, names: Iterable[str], valid: Callable[[Any], bool], remedy: str) -> None:
    for name in names:
        value = getattr(config, name)
        require(valid(value), f"{type(config).__name__}.{name}", value, remedy)


def _is_number(value: Any) -> bool:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and math.isfinite(value)


def _is_whole(value: Any, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def whole(config: Any, minimum: int, *names: str) -> None:
    """Requires the named fields of ``config`` to be integers of at least ``minimum``."""
    _each(config, names, lambda v: _is_whole(v, minimum), f"use an integer >= {minimum}")


def at_least(config: Any, minimum: float, *names: str) -> None:
    """Requires the named fields of ``config`` to be finite numbers of at least ``minimum``."""
    _each(config, names, lambda v: _is_number(v) and v >= minimum, f"use a number >= {minimum}")


def positive(config: Any, *names: str) -> None:
    """Requires the named fields of ``config`` to be finite numbers above 0."""
    _each(config, names, lambda v: _is_number(v) and v > 0, "use a number above 0")


def fraction(config: Any, *names: str) -> None:
    """Requires the named fields of ``config`` to be numbers from 0 to 1."""
    _each(config, names, lambda v: _is_number(v) and 0 <= v <= 1, "use a number from 0 to 1")


def one_of(config: Any, choices: Iterable[str], *names: str) -> None:
    """Requires the named fields of ``config`` to be strings among ``choices``."""
    remedy = f"use one of {', '.join(choices)}"
    _each(config, names, lambda v: isinstance(v, str) and v in choices, remedy)


def finite(config: Any, *names: str) -> None:
    """Requires the named fields of ``config`` to be finite numbers."""
    _each(config, names, _is_number, "use a finite number")


def of_type(config: Any, kind: Any, remedy: str, *names: str) -> None:
    """Requires the named fields of ``config`` to be instances of ``kind``."""
    _each(config, names, lambda v: isinstance(v, kind), remedy)


def layer_sizes(config: Any, *names: str) -> None:
    """Requires the named fields of ``config`` to be non-empty tuples of widths."""
    _each(
        config,
        names,
        lambda v: isinstance(v, tuple) and len(v) > 0 and all(_is_whole(w, 1) for w in v),
        "use a tuple of layer widths such as (256, 256)",
    )


def parts_fit(run: Any) -> None:
    """Refuses a ``RunConfig`` whose parts, each possible, cannot work together."""
    _learner_can_learn(run)
    _replay_can_hold(run)
    # Parameters are published in whole calls; an actor bounded more tightly would wait for ever.
    lag, calls = run.actor.max_policy_lag, run.learner.updates_per_call
    published = -(-run.learner.publish_period // calls) * calls
    require(
        lag is None or lag >= published,
        "actor.max_policy_lag",
        lag,
        f"use at least publish_period in whole calls = {published} updates",
    )


def _learner_can_learn(run: Any) -> None:
    learner, ratio = run.learner, run.learner.updates_per_env_step
    require(
        learner.warmup_steps < run.env_steps,
        "learner.warmup_steps",
        learner.warmup_steps,
        f"use fewer than env_steps = {run.env_steps}, or no update would ever be made",
    )
    # Until some lane has made n steps the replay may be empty.
    lanes = run.actor.num_actors * run.actor.envs_per_actor
    first = lanes * (run.replay.n_step - 1) + (run.replay.n_step > 1)
    require(
        learner.warmup_steps >= first,
        "learner.warmup_steps",
        learner.warmup_steps,
        f"use at least num_actors * envs_per_actor * (n_step - 1) + 1 = {first}, before which"
        " perhaps no window is finished",
    )
    require(
        not (run.lockstep and ratio is None),
        "learner.updates_per_env_step",
        None,
        "use a number in lockstep, where nothing else says whose turn it is",
    )
    due = math.inf if ratio is None else (run.env_steps - learner.warmup_steps) * ratio
    require(
        learner.updates_per_call <= due + 1e-6,
        "learner.updates_per_call",
        learner.updates_per_call,
        f"use at most (env_steps - warmup_steps) * updates_per_env_step = {due:g}, or no call"
        " would ever be due",
    )


def _replay_can_hold(run: Any) -> None:
    actor, capacity = run.actor, run.replay.capacity
    require(
        run.learner.batch_size <= capacity,
        "learner.batch_size",
        run.learner.batch_size,
        f"use at most replay.capacity = {capacity}",
    )
    drawn = 3 * run.learner.updates_per_call * run.learner.batch_size
    require(
        run.replay.priority_exponent == 0 or 10 * drawn <= capacity,
        "replay.capacity",
        capacity,
        f"use at least 30 * updates_per_call * batch_size = {10 * drawn} with priorities, or many"
        " would come back for transitions already overwritten",
    )
    # Where an episode ends, up to n windows end in one step; shared frames take more rows there.
    largest = actor.envs_per_actor * (actor.chunk_steps + run.replay.n_step - 1)
    remedy = f"use at least envs_per_actor * (chunk_steps + n_step - 1) = {largest}"
    if run.replay.frame_stack is not None:
        largest = actor.envs_per_actor * actor.chunk_steps * (1 + run.replay.frame_stack)
        remedy = f"use at least envs_per_actor * chunk_steps * (1 + frame_stack) = {largest}"
    require(largest <= capacity, "replay.capacity", capacity, remedy)
    require(
        actor.envs_per_actor * actor.chunk_steps <= run.env_steps,
        "actor.chunk_steps",
        actor.chunk_steps,
        f"use a chunk of at most env_steps = {run.env_steps} env steps over its envs",
    )
