"""Everything a run says: records, evaluations, the best policy, and when to stop."""

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, final

import numpy as np

from jaxrl_async.config import RunConfig
from jaxrl_async.recorders import CSVRecorder, Recorder, Stream
from jaxrl_async.runtime.directory import RunDirectory
from jaxrl_async.runtime.evaluator import Evaluation
from jaxrl_async.runtime.metrics import Clock
from jaxrl_async.runtime.parts import Parts
from jaxrl_async.runtime.policy import BEST

TIMING_SECONDS = 1.0
"""Between two rows of the stream ``timing``."""


class Callback(Protocol):
    """Called on the main thread only. What it raises ends the run and reaches the caller."""

    def on_record(self, stream: Stream, env_steps: int, values: Mapping[str, float]) -> bool | None:
        """After each row; True stops the run."""
        ...

    def on_evaluation(self, evaluation: Evaluation) -> bool | None:
        """After each evaluation, when the best policy is kept; True stops the run."""
        ...


@final
class Reporter:
    """Writes rows, keeps the best policy, calls the callbacks, and knows when to stop.

    Main thread only.
    """

    def __init__(
        self,
        config: RunConfig,
        parts: Parts,
        directory: RunDirectory,
        recorder: Recorder,
        files: CSVRecorder,
        callbacks: Sequence[Callback],
        interrupted: threading.Event,
    ):
        self._config, self._parts, self._directory = config, parts, directory
        self._recorder, self._files, self._callbacks = recorder, files, callbacks
        self.interrupted = interrupted
        """Set by Ctrl-C."""
        self.clock = Clock(config.env_steps)
        self.evaluations: list[Evaluation] = []
        """Of this process."""
        self.history: list[dict[str, float]] = []
        """Of the whole run, as recorded."""
        self.best_score, self.best_env_steps = -math.inf, 0
        self.reason: str | None = None
        """Why the run is to stop early; None: it is not."""
        self._recorded_at = self._evaluated_at = 0

    # ---- what is due ------------------------------------------------------------------------

    def record_due(self) -> bool:
        """Whether a multiple of ``record_period`` was passed since the last call that said so."""
        env_steps, period = self._parts.limiter.env_steps, self._config.record_period
        is_due = env_steps // period > self._recorded_at // period
        if is_due:
            self._recorded_at = env_steps
        return is_due

    def evaluation_due(self) -> bool:
        """The same of ``evaluation.period``; never for 0."""
        env_steps, period = self._parts.limiter.env_steps, self._config.evaluation.period
        is_due = period > 0 and env_steps // period > self._evaluated_at // period
        if is_due:
            self._evaluated_at = env_steps
        return is_due

    def check_limits(self) -> None:
        """Sets ``reason`` where a bound of ``StopConfig`` is reached, or after Ctrl-C."""
        stop, learner = self._config.stop, self._parts.learner
        if self.interrupted.is_set():
            self.stop("interrupted")
        if stop.updates is not None and learner.updates >= stop.updates:
            self.stop(f"{stop.updates:,} updates made")
        if stop.seconds is not None and self.clock.seconds >= stop.seconds:
            self.stop(f"{stop.seconds:g} s passed")

    def stop(self, reason: str) -> None:
        """Asks for the end of the run; the first reason stays."""
        self.reason = self.reason or reason

    # ---- saving and restoring ---------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What was reported, and how far the files have got."""
        return {
            "recorded_at": self._recorded_at,
            "evaluated_at": self._evaluated_at,
            "history": {
                key: np.array([row[key] for row in self.history], float)
                for key in (self.history[0] if self.history else ())
            },
            "best": np.array([self.best_score, self.best_env_steps], float),
            "files": self._files.offsets(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes up an earlier report; rows written after it was saved are removed."""
        self._recorded_at, self._evaluated_at = state["recorded_at"], state["evaluated_at"]
        columns = state["history"]
        count = len(next(iter(columns.values()))) if columns else 0
        self.history = [{k: float(v[i]) for k, v in columns.items()} for i in range(count)]
        self.best_score, self.best_env_steps = float(state["best"][0]), int(state["best"][1])
        self._files.truncate(state["files"])
        self.clock.take(self._parts.limiter.env_steps, self._parts.learner.done)

    # ---- rows -------------------------------------------------------------------------------

    def record_train(self) -> None:
        """One row of what follows from the data."""
        parts = self._parts
        env_steps, updates = parts.limiter.env_steps, parts.learner.done
        since_warmup = env_steps - self._config.learner.warmup_steps
        values = {"train/updates": float(updates)}
        values |= {f"train/{k}": v for k, v in parts.learner.take_metrics().items()}
        values |= parts.counters.take()
        values["actor/explore"] = parts.store.latest().explore
        values["replay/size"] = float(len(parts.replay))
        values["replay/age"] = parts.prefetcher.means.take("age")["age"]
        if parts.replay.needs_priorities:
            values |= self._priorities()
        values["replay/balance"] = parts.limiter.balance
        values["replay/samples"] = float(parts.limiter.updates * self._config.learner.batch_size)
        values["replay/updates_per_env_step"] = (
            updates / since_warmup if since_warmup > 0 else math.nan
        )
        self._record("train", env_steps, values)

    def _priorities(self) -> dict[str, float]:
        prefetcher = self._parts.prefetcher
        return {
            "replay/priority_age": prefetcher.means.take("priority_age")["priority_age"],
            "replay/priorities_stale": float(self._parts.replay.stale),
            "replay/priorities_refused": float(prefetcher.refused),
        }

    def record_timing(self, period: float = TIMING_SECONDS) -> None:
        """One row of what comes from the clock, if the last is ``period`` seconds old."""
        parts, since = self._parts, self.clock.since
        if since < period:
            return
        blocked = parts.sink.blocked.take() / max(since, 1e-9) / len(parts.actors)
        values = self.clock.take(parts.limiter.env_steps, parts.learner.done)
        found = parts.learner.means.take("update_ms")
        found |= parts.prefetcher.means.take("sample_ms", "transfer_ms", "queue")
        found["actors_blocked"] = min(1.0, blocked)
        found["learner_blocked"] = min(1.0, parts.prefetcher.blocked.take() / max(since, 1e-9))
        values |= {f"timing/{name}": value for name, value in found.items()}
        self._record("timing", parts.limiter.env_steps, values)

    def _record(self, stream: Stream, env_steps: int, values: Mapping[str, float]) -> None:
        self._recorder.record(stream, env_steps, values)
        for callback in self._callbacks:
            if callback.on_record(stream, env_steps, values):
                self.stop(f"{type(callback).__name__} said so")

    def keep(self, evaluation: Evaluation) -> None:
        """Records an evaluation, and keeps its policy if it is the best so far; NaN never is."""
        env_steps = evaluation.snapshot.env_steps
        self.evaluations.append(evaluation)
        self.history.append({"env_steps": float(env_steps), **evaluation.values()})
        if evaluation.score > self.best_score:
            self.best_score, self.best_env_steps = evaluation.score, env_steps
            self._directory.save_policy(BEST, self._parts, evaluation.snapshot, evaluation.score)
        self._record("evaluation", env_steps, evaluation.values())
        wanted = self._config.stop.score
        if wanted is not None and evaluation.score >= wanted:
            self.stop(f"score {evaluation.score:,.1f} reached {wanted:,.1f}")
        for callback in self._callbacks:
            if callback.on_evaluation(evaluation):
                self.stop(f"{type(callback).__name__} said so")
