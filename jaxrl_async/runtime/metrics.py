"""What a run says of itself, and under which names.

The streams ``train`` and ``evaluation`` hold what follows from the data, in lockstep the same bytes
each time; ``timing`` holds everything that comes from a clock.

| key | meaning |
|---|---|
| ``train/updates`` | updates made |
| ``train/skipped`` | descents not applied because a loss or gradient was not finite, so far |
| ``train/...`` | the agent's own metrics, means over the updates since the last row |
| ``actor/episodes`` | training episodes ended so far |
| ``actor/return_mean``, ``length_mean``, ``success_mean`` | of those ended since the last row |
| ``actor/explore`` | the exploration last handed to the actors |
| ``actor/lag_mean``, ``lag_p99``, ``lag_max`` | updates since the version that acted, as stored |
| ``actor/lag_env_steps_mean``, ``lag_env_steps_p99``, ``lag_env_steps_max`` | in env steps |
| ``replay/size`` | transitions kept |
| ``replay/age`` | transitions inserted since those last sampled, mean |
| ``replay/priority_age`` | with priorities: updates from a draw until its priorities came back |
| ``replay/priorities_stale``, ``priorities_refused`` | dropped so far: overwritten; not finite |
| ``replay/balance`` | updates due less updates let through: the limiter's balance, NaN if free |
| ``replay/samples`` | transitions sampled so far |
| ``replay/updates_per_env_step`` | updates made over env steps since the warm-up, so far |
| ``evaluation/...`` | see ``runtime/evaluator.py`` |
| ``timing/seconds``, ``remaining_s`` | since the start; to go at this pace |
| ``timing/env_steps_per_s``, ``updates_per_s`` | since the last row |
| ``timing/update_ms`` | device time per update |
| ``timing/sample_ms``, ``transfer_ms`` | per call of the learner |
| ``timing/actors_blocked``, ``learner_blocked`` | share of their time that they waited |
| ``timing/queue`` | calls waiting for the learner, mean when it came for one |
"""

import threading
import time
from collections.abc import Mapping
from typing import Any, final

import numpy as np

from jaxrl_async.types import Chunk, Episode


@final
class Means:
    """Means of named values since the last ``take``. Thread-safe."""

    def __init__(self):
        self._lock = threading.Lock()
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, **values: float) -> None:
        """Counts one value of each name."""
        with self._lock:
            for name, value in values.items():
                total, count = self._sums.get(name, (0.0, 0))
                self._sums[name] = total + value, count + 1

    def state(self) -> dict[str, list[float]]:
        """The sums and counts of the open window."""
        with self._lock:
            return {name: list(pair) for name, pair in self._sums.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes up an open window."""
        with self._lock:
            self._sums = {name: (total, int(count)) for name, (total, count) in state.items()}

    def take(self, *names: str) -> dict[str, float]:
        """Their means since the last call, NaN where there was none."""
        with self._lock:
            found = {name: self._sums.pop(name, (0.0, 0)) for name in names}
        return {
            name: total / count if count else float("nan") for name, (total, count) in found.items()
        }


@final
class Counters:
    """What actors did since the last row, and in all. Thread-safe."""

    def __init__(self):
        self.episodes = 0
        self._lock = threading.Lock()
        self._recent: list[Episode] = []
        self._lags: list[tuple[int, int]] = []  # in updates and env steps

    def add(self, chunk: Chunk, updates: int, env_steps: int) -> None:
        """Counts a chunk that arrived after so many updates and env steps."""
        with self._lock:
            self.episodes += len(chunk.episodes)
            self._recent.extend(chunk.episodes)
            if chunk.version >= 0:
                lag = max(0, updates - chunk.version), env_steps - chunk.version_env_steps
                self._lags.append(lag)

    def state(self) -> dict[str, Any]:
        """The open window and the sums."""
        with self._lock:
            return {
                "episodes": self.episodes,
                "recent": np.array(self._recent, float).reshape(-1, 3),
                "lags": np.array(self._lags, np.int64).reshape(-1, 2),
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes up an open window and the sums."""
        with self._lock:
            self.episodes = state["episodes"]
            self._recent = [Episode(r, int(n), s) for r, n, s in state["recent"].tolist()]
            self._lags = [(updates, steps) for updates, steps in state["lags"].tolist()]

    def take(self) -> dict[str, float]:
        """The values since the last call."""
        with self._lock:
            recent, self._recent = self._recent, []
            lags, self._lags = self._lags, []
            episodes = self.episodes
        columns = np.array(recent, float).reshape(-1, 3).T
        in_updates, in_env_steps = np.array(lags, float).reshape(-1, 2).T
        names = ("return_mean", "length_mean", "success_mean")
        values = {name: mean(column) for name, column in zip(names, columns, strict=True)}
        values |= {
            "episodes": float(episodes),
            "lag_mean": mean(in_updates),
            "lag_p99": float(np.percentile(in_updates, 99)) if lags else float("nan"),
            "lag_max": float(in_updates.max()) if lags else float("nan"),
            "lag_env_steps_mean": mean(in_env_steps),
            "lag_env_steps_p99": float(np.percentile(in_env_steps, 99)) if lags else float("nan"),
            "lag_env_steps_max": float(in_env_steps.max()) if lags else float("nan"),
        }
        return {f"actor/{name}": value for name, value in values.items()}


def mean(values: np.ndarray) -> float:
    """The mean, NaN of nothing."""
    return float(values.mean()) if len(values) else float("nan")


@final
class Blocked:
    """Seconds that threads spent waiting for the other side. Thread-safe."""

    def __init__(self):
        self._lock = threading.Lock()
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        """Counts a wait."""
        with self._lock:
            self._seconds += seconds

    def take(self) -> float:
        """Seconds since the last call."""
        with self._lock:
            seconds, self._seconds = self._seconds, 0.0
        return seconds


@final
class Clock:
    """Rates. Intervals are monotonic; no wall clock."""

    def __init__(self, budget: int):
        self._budget = budget
        self._start = self._last = time.monotonic()
        self._env_steps = self._updates = 0

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._start

    @property
    def since(self) -> float:
        """Seconds since the last ``take``."""
        return time.monotonic() - self._last

    def take(self, env_steps: int, updates: int) -> dict[str, float]:
        """Rates since the last call, and what is left."""
        now = time.monotonic()
        since = max(now - self._last, 1e-9)
        pace = (env_steps - self._env_steps) / since
        # Before the first update nothing says how fast it will go.
        is_known = self._updates > 0 and pace > 0
        values = {
            "seconds": now - self._start,
            "remaining_s": (self._budget - env_steps) / pace if is_known else float("nan"),
            "env_steps_per_s": pace,
            "updates_per_s": (updates - self._updates) / since,
        }
        self._last, self._env_steps, self._updates = now, env_steps, updates
        return {f"timing/{name}": value for name, value in values.items()}
