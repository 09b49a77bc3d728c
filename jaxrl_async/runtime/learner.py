"""The learner: one compiled scan over K updates, its state donated from call to call.

This is the only place where devices are spoken of. An agent writes means over B; where the batch
is split over a mesh, XLA inserts the all-reduce.
"""

import collections
import threading
import time
from collections.abc import Mapping
from typing import Any, Generic, TypeVar, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl_async.agents.agent import Agent, Trainable
from jaxrl_async.checks import ConfigError
from jaxrl_async.runtime.metrics import Means
from jaxrl_async.types import Batch, Key, Layout, describe_row

State = TypeVar("State")

MAX_IN_FLIGHT = 2
"""Calls dispatched and not yet waited for. JAX itself would let the host run dozens ahead: acting
then waits behind them on a shared CPU, and stopping waits for all of them."""


def make_mesh(devices: int) -> Mesh:
    """The first ``devices`` devices as one axis, "data".

    Raises:
      ConfigError: there are fewer.
    """
    found = jax.devices()
    if devices > len(found):
        raise ConfigError(f"learner.devices = {devices}: this machine has {len(found)}; use fewer")
    return Mesh(np.array(found[:devices]), ("data",))


def layout_of(agent: Agent) -> Layout:
    """How the agent's transitions are packed, its carry among them."""
    return Layout(agent.spec, describe_row(agent.initial_carry(1)))


def make_train_step(agent: Agent, layout: Layout, mesh: Mesh) -> Any:
    """Jitted ``(state, rows, weight, key) -> (state, metrics [M], td_error [K, B])``.

    Rows are [K, B, width] per dtype, B split over the mesh. ``metrics`` are the means over the K
    updates of those that had a value, in the order of ``metric_names``, then ``skipped``.
    """
    replicated = NamedSharding(mesh, PartitionSpec())
    split = NamedSharding(mesh, PartitionSpec(None, "data"))

    def train_step(state, rows, weight, key):
        def body(state, sample):
            rows, weight = sample
            batch = Batch(layout.unpack(rows), weight)
            return agent.update(state, batch, jax.random.fold_in(key, state.step))

        state, info = jax.lax.scan(body, state, (rows, weight))
        means = [jnp.nanmean(info.metrics[name]) for name in sorted(info.metrics)]
        metrics = jnp.stack([*means, count_skipped(state).astype(jnp.float32)])
        return state, metrics, info.td_error

    return jax.jit(
        train_step,
        donate_argnums=0,
        in_shardings=(replicated, split, split, replicated),
        out_shardings=(replicated, replicated, replicated),
    )


def count_skipped(state: Any) -> jax.Array:
    """Descents not applied so far, over all ``Trainable`` parts of an agent's state."""
    parts = jax.tree.leaves(state, is_leaf=lambda part: isinstance(part, Trainable))
    return sum((p.skipped for p in parts if isinstance(p, Trainable)), jnp.zeros((), jnp.int32))


@final
class Learner(Generic[State]):
    """Owns the agent's state. Only one thread may call it."""

    def __init__(
        self,
        agent: Agent[State],
        state: State,
        *,
        batch_size: int,
        updates_per_call: int,
        key: Key,
        mesh: Mesh,
    ):
        """Takes a copy of ``state``, laid out as the compiled step gives it back.

        Donation would delete the caller's arrays, and a state laid out otherwise would compile the
        step a second time at its second call.
        """
        replicated = NamedSharding(mesh, PartitionSpec())
        self.batch_sharding = NamedSharding(mesh, PartitionSpec(None, "data"))
        self.updates = 0  # dispatched
        self._agent, self._layout = agent, layout_of(agent)
        self._shape = (updates_per_call, batch_size)
        copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree), out_shardings=replicated)
        self._state: State = copy(state)
        self._key = jax.device_put(key, replicated)
        self._step = make_train_step(agent, self._layout, mesh)
        self._compiling = threading.Lock()
        self._compiled: jax.stages.Compiled | None = None
        self._in_flight: collections.deque[tuple[jax.Array, float]] = collections.deque()
        self._finished_at = 0.0
        self.means = Means()
        """``update_ms``, device time per update."""
        self.metric_names = self._metric_names()
        self._sum = np.zeros(len(self.metric_names))
        self._count = np.zeros(len(self.metric_names), np.int64)
        self._skipped = 0

    @property
    def state(self) -> State:
        """The newest state, perhaps still being computed; the next ``step`` deletes it."""
        return self._state

    @property
    def done(self) -> int:
        """Updates known to be finished."""
        return self.updates - len(self._in_flight) * self._shape[0]

    def compile(self) -> None:
        """Compiles the step, once, for the only shapes that it is ever called with."""
        with self._compiling:
            if self._compiled is None:
                rows, weight = self._sample_shapes(self._shape)
                lowered = self._step.lower(self._state, rows, weight, self._key)
                self._compiled = lowered.compile()

    def wait_for_compiler(self, timeout: float) -> None:
        """Returns when no compilation is under way, or after ``timeout`` seconds."""
        if self._compiling.acquire(timeout=timeout):
            self._compiling.release()

    def flops_per_update(self) -> float:
        """Floating-point operations of one update by XLA's count, which takes a loop once."""
        self.compile()
        assert self._compiled is not None
        return float((self._compiled.cost_analysis() or {})["flops"])

    def step(self, rows: dict[str, jax.Array], weight: jax.Array) -> jax.Array:
        """K updates on rows ``dtype -> [K, B, width]``; returns their td_error [K, B].

        Returns as soon as the call is dispatched; at most ``MAX_IN_FLIGHT`` are unfinished.
        """
        self.compile()
        assert self._compiled is not None
        self._wait_until(MAX_IN_FLIGHT - 1)
        self._state, metrics, td_error = self._compiled(self._state, rows, weight, self._key)
        metrics.copy_to_host_async()
        # In this order `done`, which actors read meanwhile, is never too large.
        self._in_flight.append((metrics, time.perf_counter()))
        self.updates += self._shape[0]
        return td_error

    def finish(self) -> None:
        """Waits for all that was dispatched."""
        self._wait_until(0)

    def take_metrics(self) -> dict[str, float]:
        """Means over the calls finished since the last one, each a mean over its K updates.

        NaN where no update had a value.
        """
        with np.errstate(invalid="ignore"):
            means = self._sum / self._count
        self._sum[:], self._count[:] = 0.0, 0
        return dict(zip(self.metric_names, means.tolist(), strict=True)) | {
            "skipped": float(self._skipped)
        }

    def window(self) -> dict[str, Any]:
        """The open window of ``take_metrics``; call ``finish`` first."""
        return {"sum": self._sum.copy(), "count": self._count.copy(), "skipped": self._skipped}

    def restore(self, state: State, updates: int, window: Mapping[str, Any]) -> None:
        """Takes up an earlier learner's state, made with this one's sharding."""
        self._state, self.updates = state, updates
        self._sum[:], self._count[:] = window["sum"], window["count"]
        self._skipped = int(window["skipped"])

    def _wait_until(self, in_flight: int) -> None:
        while len(self._in_flight) > in_flight:
            metrics, dispatched = self._in_flight.popleft()
            is_seen_ending = not metrics.is_ready()  # pyright: ignore[reportAttributeAccessIssue]  # untyped in jax
            *means, skipped = np.asarray(metrics)  # waits, the GIL released
            begun, self._finished_at = max(dispatched, self._finished_at), time.perf_counter()
            if is_seen_ending:  # else it ended before anybody looked, and nobody knows when
                self.means.add(update_ms=1e3 * (self._finished_at - begun) / self._shape[0])
            has_value = ~np.isnan(means)
            self._sum += np.where(has_value, means, 0.0)
            self._count += has_value
            self._skipped = int(skipped)

    def _sample_shapes(self, shape: tuple[int, ...]) -> tuple[dict[str, Any], Any]:
        rows = {
            dtype: jax.ShapeDtypeStruct((*shape, width), dtype)
            for dtype, width in self._layout.widths.items()
        }
        return rows, jax.ShapeDtypeStruct(shape, np.float32)

    def _metric_names(self) -> list[str]:
        rows, weight = self._sample_shapes(self._shape[1:])

        def update(state, rows, weight, key):
            return self._agent.update(state, Batch(self._layout.unpack(rows), weight), key)[1]

        return sorted(jax.eval_shape(update, self._state, rows, weight, self._key).metrics)
