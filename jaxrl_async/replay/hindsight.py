"""Hindsight experience replay: what was reached, taken for what was wanted.

Andrychowicz et al. 2017, https://arxiv.org/abs/1707.01495.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, final

import numpy as np

from jaxrl_async.checks import ConfigError
from jaxrl_async.replay.steps import StepStore
from jaxrl_async.types import Chunk, Column, EnvSpec, Layout

Strategy = Literal["future", "final", "episode"]
GOALS = ("achieved_goal", "desired_goal")


@final
class HindsightStore(StepStore):
    """Transitions of which a share is given another goal, one that its episode reached.

    ``future``: what was achieved at a later step, or at this one; ``final``: at the last step,
    where the episode has ended; ``episode``: at any step still kept. Reward and termination are
    computed anew, by the env; where it cannot compute termination, the step's own stays.
    """

    def __init__(
        self,
        capacity: int,
        spec: EnvSpec,
        *,
        strategy: Strategy,
        share: float,
        discount: float,
        compute_reward: Callable[[Any, Any, Any], Any],
        compute_terminated: Callable[[Any, Any, Any], Any] | None = None,
        path: str | None = None,
    ):
        """Empty.

        Args:
          capacity: steps kept.
          spec: of an env whose observation has ``achieved_goal`` and ``desired_goal``.
          strategy: where the other goal comes from.
          share: of the items drawn that get one; 0.8 is the paper's k = 4 of 5.
          discount: gamma.
          compute_reward: ``(achieved [n, ...], desired [n, ...], {}) -> [n]``.
          compute_terminated: ``(achieved [...], desired [...], {}) -> bool``, of one step.
          path: see ``Ring``.

        Raises:
          ConfigError: the observation has no goals.
        """
        names = [name for name, _ in spec.observation] if is_dict(spec.observation) else []
        if not set(GOALS) <= set(names):
            raise ConfigError(
                f"replay.hindsight = {strategy!r}: the env's observation has {names or 'no names'};"
                f" use an env whose observation is a Dict with {' and '.join(GOALS)}"
            )
        self.layout = Layout(spec)
        self._strategy, self._share, self._gamma = strategy, share, discount
        self._compute_reward, self._compute_terminated = compute_reward, compute_terminated
        columns = self.layout.columns()
        self._achieved: Column = columns.next_observation["achieved_goal"]
        self._desired: tuple[Column, Column] = (
            columns.observation["desired_goal"],
            columns.next_observation["desired_goal"],
        )
        self._reward: Column = columns.reward
        self._discount: Column = columns.discount
        super().__init__(capacity, self.layout.widths, path)

    def pack(self, chunk: Chunk) -> dict[str, np.ndarray]:
        """See ``Store``; windows of one step only."""
        rows = self.layout.pack(chunk.windows.transitions)
        return self._steps.mark(rows, *self._steps.enter(chunk), chunk.windows.end > 0)

    def append(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """See ``Store``."""
        return self._steps.append(rows)

    def may_draw(self, ids: np.ndarray) -> np.ndarray:
        """See ``Store``."""
        return np.ones(ids.shape, bool)

    def take(self, ids: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """See ``Store``."""
        shape, ids = ids.shape, ids.ravel()
        rows = self._steps.take(ids)
        chosen = rng.random(len(ids)) < self._share
        if self._strategy == "final":
            chosen &= self._lanes.has_ended(ids)
        chosen = np.flatnonzero(chosen)
        self._relabel(rows, chosen, self._goals(ids[chosen], rng))
        return {dtype: packed.reshape(*shape, packed.shape[-1]) for dtype, packed in rows.items()}

    def _goals(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Goals [n, width] that the episodes of these steps reached."""
        lane, position = self._lanes.lane_of(ids), self._lanes.position_of(ids)
        stop = self._lanes.stop_of(ids)
        if self._strategy == "final":
            then = stop - 1
        elif self._strategy == "future":
            then = rng.integers(position, stop)
        else:
            then = rng.integers(self._lanes.kept_begin_of(ids), stop)
        rows = self.ring.take_one(self._achieved.dtype, self._lanes.at(lane, then))
        return rows[:, self._achieved.columns]

    def _relabel(self, rows: dict[str, np.ndarray], chosen: np.ndarray, goals: np.ndarray) -> None:
        """Writes the goals, and what follows from them, into the rows ``chosen`` [n]."""
        if len(chosen) == 0:
            return
        for column in self._desired:
            rows[column.dtype][chosen, column.columns] = goals
        shape = (len(chosen), *self._achieved.shape)
        achieved = rows[self._achieved.dtype][chosen, self._achieved.columns].reshape(shape)
        desired = goals.reshape(shape)
        reward = np.asarray(self._compute_reward(achieved, desired, {}), np.float32)
        if reward.shape != (len(chosen),):
            raise ValueError(
                f"compute_reward gave {list(reward.shape)} for goals {list(shape)}: make it give"
                " one reward for each row"
            )
        rows["float32"][chosen, self._reward.columns] = reward[:, None]
        if self._compute_terminated is not None:
            is_over = [
                bool(self._compute_terminated(a, d, {}))
                for a, d in zip(achieved, desired, strict=True)
            ]
            discount = np.where(is_over, 0.0, self._gamma)
            rows["float32"][chosen, self._discount.columns] = discount[:, None]


def is_dict(observation: Any) -> bool:
    """Whether a spec's observation has named parts."""
    return not hasattr(observation, "dtype")
