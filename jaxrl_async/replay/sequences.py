"""Sequences of consecutive steps, for agents that remember."""

from collections.abc import Mapping
from typing import final

import numpy as np

from jaxrl_async.checks import ConfigError
from jaxrl_async.replay.steps import StepStore
from jaxrl_async.types import Chunk, Layout


@final
class SequenceStore(StepStore):
    """Items of T consecutive steps of one lane and one episode: ``dtype -> [..., T, width]``.

    An episode of L steps has a sequence from every ``period``-th step on that is followed by T - 1
    more: with a period of 1 there are L - T + 1. Neighbours overlap by T - period steps, as in R2D2
    (Kapturowski et al. 2019, https://openreview.net/forum?id=r1lyTjAqYX, section 2.3). Burning in
    is the agent's matter, which finds its carry before each step in ``extras``.
    """

    def __init__(
        self,
        capacity: int,
        layout: Layout,
        *,
        length: int,
        period: int = 1,
        path: str | None = None,
    ):
        """Empty.

        Args:
          capacity: steps kept.
          layout: of one step, a window with n = 1.
          length: T, steps per sequence.
          period: steps from one sequence's start to the next one's.
          path: see ``Ring``.

        Raises:
          ConfigError: no sequence would ever fit.
        """
        if not 1 <= period <= length <= capacity:
            raise ConfigError(
                f"sequences of {length} steps, one every {period}, in a replay of {capacity}:"
                " use 1 <= period <= length <= capacity"
            )
        self.layout, self._length, self._period = layout, length, period
        super().__init__(capacity, layout.widths, path)

    def pack(self, chunk: Chunk) -> dict[str, np.ndarray]:
        """See ``Store``; windows of one step only."""
        rows = self.layout.pack(chunk.windows.transitions)
        return self._steps.mark(rows, *self._steps.enter(chunk), chunk.windows.end > 0)

    def append(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """See ``Store``: the sequences that these steps complete."""
        ids = self._steps.append(rows)
        lane, start = self._lanes.lane_of(ids), self._lanes.position_of(ids) - self._length + 1
        inside = (start >= self._lanes.begin_of(ids)) & self._lanes.is_kept(lane, start)
        starts = self._lanes.at(lane[inside], start[inside])
        return starts[self.may_draw(starts)]

    def may_draw(self, ids: np.ndarray) -> np.ndarray:
        """See ``Store``: where a sequence starts that is all there."""
        position = self._lanes.position_of(ids)
        is_start = self._steps.since_begin(ids) % self._period == 0
        return is_start & (position + self._length <= self._lanes.stop_of(ids))

    def take(self, ids: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """See ``Store``; with an axis of T steps before the last."""
        lane, position = self._lanes.lane_of(ids), self._lanes.position_of(ids)
        steps = position[..., None] + np.arange(self._length)
        return self._steps.take(self._lanes.at(lane[..., None], steps))
