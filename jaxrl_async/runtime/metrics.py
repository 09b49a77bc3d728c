"""What a run says of itself, and under which names.

Four prefixes for what follows from the data, each with its place in the streams ``train`` and
``evaluation``; ``timing/`` for all that comes from a clock.

| key | meaning |
|---|---|
| ``train/updates`` | updates made |
| ``train/skipped`` | descents not applied because a loss or gradient was not finite, so far |
| ``train/...`` | the agent's own metrics, means over the updates since the last row |
| ``actor/episodes`` | training episodes ended so far |
| ``actor/return_mean``, ``length_mean``, ``success_mean`` | of those ended since the last row |
| ``actor/explore`` | the exploration last handed to the actors |
| ``actor/lag`` | updates between the newest version and the oldest that acted, mean over chunks |
| ``replay/size`` | transitions kept |
| ``replay/balance`` | updates due less updates made: the rate limiter's balance |
| ``evaluation/...`` | see ``runtime/evaluator.py`` |
| ``timing/seconds``, ``remaining_s`` | since the start; to go at this pace |
| ``timing/env_steps_per_s``, ``updates_per_s`` | since the last row |
| ``timing/acting_s``, ``learning_s``, ``evaluating_s`` | where the time went so far |
"""

import contextlib
import time
from collections.abc import Iterator
from typing import final

import numpy as np

from jaxrl_async.types import Chunk, Episode


@final
class Counters:
    """What actors did since the last row, and in all. Only one thread may call it."""

    def __init__(self):
        self.episodes = 0
        self._recent: list[Episode] = []
        self._lags: list[int] = []

    def add(self, chunk: Chunk, updates: int) -> None:
        """Counts a chunk that arrived when ``updates`` were made."""
        self.episodes += len(chunk.episodes)
        self._recent.extend(chunk.episodes)
        if chunk.version >= 0:
            self._lags.append(updates - chunk.version)

    def take(self) -> dict[str, float]:
        """The values since the last call."""
        columns = np.array(self._recent, float).reshape(-1, 3).T
        lags = np.array(self._lags, float)
        self._recent, self._lags = [], []
        means = [mean(column) for column in columns]
        names = ("return_mean", "length_mean", "success_mean")
        values = dict(zip(names, means, strict=True)) | {"episodes": self.episodes}
        return {f"actor/{name}": float(value) for name, value in values.items()} | {
            "actor/lag": mean(lags)
        }


def mean(values: np.ndarray) -> float:
    """The mean, NaN of nothing."""
    return float(values.mean()) if len(values) else float("nan")


@final
class Clock:
    """Where the seconds go. Intervals are monotonic; no wall clock."""

    def __init__(self, budget: int):
        self._budget = budget
        self._start = self._last = time.monotonic()
        self._env_steps = self._updates = 0
        self._spent = {"acting": 0.0, "learning": 0.0, "evaluating": 0.0}

    @contextlib.contextmanager
    def measure(self, activity: str) -> Iterator[None]:
        """Adds what the body takes to one of the activities."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._spent[activity] += time.monotonic() - start

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._start

    def due(self, period: float) -> bool:
        """Whether ``period`` seconds passed since the last ``take``."""
        return time.monotonic() - self._last >= period

    def take(self, env_steps: int, updates: int) -> dict[str, float]:
        """Rates since the last call, sums since the start."""
        now = time.monotonic()
        since = max(now - self._last, 1e-9)
        pace = env_steps / max(now - self._start, 1e-9)
        values = {
            "seconds": now - self._start,
            "remaining_s": (self._budget - env_steps) / pace if pace else float("nan"),
            "env_steps_per_s": (env_steps - self._env_steps) / since,
            "updates_per_s": (updates - self._updates) / since,
            **{f"{name}_s": seconds for name, seconds in self._spent.items()},
        }
        self._last, self._env_steps, self._updates = now, env_steps, updates
        return {f"timing/{name}": value for name, value in values.items()}
