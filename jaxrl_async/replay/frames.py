"""Stacked pixels kept as single frames: one new frame per step instead of two whole stacks."""

import math
from collections.abc import Mapping
from typing import final

import numpy as np

from jaxrl_async.checks import ConfigError
from jaxrl_async.replay.steps import StepStore
from jaxrl_async.types import TERMINATED, Chunk, EnvSpec, Layout

LEADING = 4
"""Kind of a row that holds a frame of an episode's first observation; a step's is how it ends."""
KIND = 0
"""Its column of int32."""


@final
class FrameStore(StepStore):
    """Transitions whose observation is the last S frames, each frame kept once.

    The row of a step holds its action, its reward, how it ended, and the one frame that is new in
    its *next* observation; so it can be drawn as soon as it is there. An episode begins with S rows
    that hold the frames of its first observation. The stacks of a step are the S frames before its
    own and the S frames up to its own, of its lane and episode only. Windows of n steps are made
    when they are drawn: they end where the episode ends, or at the newest step.
    """

    def __init__(
        self,
        capacity: int,
        spec: EnvSpec,
        *,
        stack: int,
        n_step: int,
        discount: float,
        path: str | None = None,
    ):
        """Empty.

        Args:
          capacity: rows kept: steps, and ``stack`` more per episode.
          spec: of the env; its observation has an axis of ``stack`` frames, the first or the last.
          stack: S, frames per observation.
          n_step: steps per window.
          discount: gamma.
          path: see ``Ring``.

        Raises:
          ConfigError: the observation isn't such a stack.
        """
        self.layout = Layout(spec)
        self._axis = stack_axis(spec, stack)
        self._frame = tuple(n for i, n in enumerate(spec.observation.shape) if i != self._axis)
        self._dtype, self._discrete = spec.observation.dtype, spec.discrete
        self._stack, self._n, self._gamma = stack, n_step, discount
        self._widths = {
            self._dtype: math.prod(self._frame),
            "int32": 2 if spec.discrete else 1,
            "float32": 1 if spec.discrete else 1 + spec.action_size,
        }
        super().__init__(capacity, self._widths, path)

    # ---- adding -----------------------------------------------------------------------------

    def pack(self, chunk: Chunk) -> dict[str, np.ndarray]:
        """See ``Store``; windows of one step only."""
        t, end = chunk.windows.transitions, chunk.windows.end
        self.layout.check(t)
        before, after = self._frames(t.observation), self._frames(t.next_observation)
        if not np.array_equal(before[:, 1:], after[:, :-1]):
            raise ValueError(
                f"a next observation is not the observation moved on by one of {self._stack}"
                " frames: set replay.frame_stack only for envs that stack them"
            )
        lane, since = self._steps.enter(chunk, self._stack)
        begins = since == 0
        step = np.arange(len(end)) + self._stack * np.cumsum(begins)  # the row of each step
        count = len(end) + self._stack * np.count_nonzero(begins)
        rows = {dtype: np.zeros((count, width), dtype) for dtype, width in self._widths.items()}
        rows[self._dtype][step] = after[:, -1]
        rows["int32"][step, KIND] = end
        rows["float32"][step, 0] = t.reward
        actions = rows["int32" if self._discrete else "float32"][:, 1:]
        actions[step] = t.action.reshape(len(end), actions.shape[1])
        of_row = np.zeros(count, np.int32)  # the step that each row belongs to
        of_row[step] = np.arange(len(end))
        for i in np.flatnonzero(begins).tolist():
            leading = slice(step[i] - self._stack, step[i])
            rows[self._dtype][leading], rows["int32"][leading, KIND] = before[i], LEADING
            of_row[leading] = i
        is_step = rows["int32"][:, KIND] != LEADING
        row_since = since[of_row] + self._stack  # an episode's rows, the leading ones among them
        row_since[~is_step] = np.tile(np.arange(self._stack), np.count_nonzero(begins))
        return self._steps.mark(rows, lane[of_row], row_since, is_step & (end[of_row] > 0))

    def _frames(self, observation: np.ndarray) -> np.ndarray:
        """[k, *obs] as [k, S, pixels]."""
        stacked = np.moveaxis(observation, 1 + self._axis, 1)
        return stacked.reshape(len(stacked), self._stack, math.prod(self._frame))

    def append(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """See ``Store``."""
        return self._steps.append(rows)[rows["int32"][:, KIND] != LEADING]

    # ---- drawing ----------------------------------------------------------------------------

    def may_draw(self, ids: np.ndarray) -> np.ndarray:
        """See ``Store``: steps all of whose frames are still kept."""
        kind = self.ring.take_one("int32", ids)[..., KIND]
        lane, position = self._lanes.lane_of(ids), self._lanes.position_of(ids)
        return (kind != LEADING) & self._lanes.is_kept(lane, position - self._stack)

    def take(self, ids: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """See ``Store``."""
        shape, ids = ids.shape, ids.ravel()
        lane, position = self._lanes.lane_of(ids), self._lanes.position_of(ids)
        steps = np.minimum(self._n, self._lanes.stop_of(ids) - position)
        reward, discount = self._window(lane, position, steps)
        of_action = self.ring.take_one("int32" if self._discrete else "float32", ids)
        scalars = np.stack([reward, discount], axis=1)
        rows = {self._dtype: self._stacks(lane, position, steps)}
        if self._discrete:
            rows |= {"int32": of_action[:, 1:2], "float32": scalars}
        else:
            rows["float32"] = np.concatenate([of_action[:, 1:], scalars], axis=1)
        return {dtype: packed.reshape(*shape, packed.shape[-1]) for dtype, packed in rows.items()}

    def _window(
        self, lane: np.ndarray, position: np.ndarray, steps: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Reward [k] and discount [k] of windows of so many ``steps`` [k]."""
        reward = np.zeros(len(lane))
        for k in range(self._n):
            inside = steps > k
            then = self._lanes.at(lane[inside], position[inside] + k)
            reward[inside] += self._gamma**k * self.ring.take_one("float32", then)[:, 0]
        last = self._lanes.at(lane, position + steps - 1)
        is_terminal = self.ring.take_one("int32", last)[:, KIND] == TERMINATED
        discount = np.where(is_terminal, 0.0, self._gamma**steps)
        return reward.astype(np.float32), discount.astype(np.float32)

    def _stacks(self, lane: np.ndarray, position: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Packed observations and next ones [k, 2 S pixels]: the only leaves of their dtype.

        One gather gives both where the stack is the first axis; it is most of what a draw costs.
        """
        starts = np.stack([position, position + steps], axis=1)
        at = starts[:, :, None] + np.arange(-self._stack, 0)  # [k, 2, S]
        frames = self.ring.take_one(self._dtype, self._lanes.at(lane[:, None, None], at))
        if self._axis > 0:
            frames = np.moveaxis(frames.reshape(*at.shape, *self._frame), 2, 2 + self._axis)
        return frames.reshape(len(lane), 2 * self._stack * math.prod(self._frame))


def stack_axis(spec: EnvSpec, stack: int) -> int:
    """The axis of the observation that holds ``stack`` frames: the first, else the last."""
    shape = getattr(spec.observation, "shape", ())
    if len(shape) < 2 or stack not in (shape[0], shape[-1]):
        raise ConfigError(
            f"replay.frame_stack = {stack}: no first or last axis of an observation"
            f" {spec.observation} has so many frames; use an env that stacks its frames, e.g. by"
            " gymnasium.wrappers.FrameStackObservation, or None"
        )
    if spec.observation.dtype in ("int32", "float32"):
        raise ConfigError(
            f"replay.frame_stack = {stack}: frames of {spec.observation.dtype} are not shared; use"
            " uint8 pixels"
        )
    return 0 if shape[0] == stack else len(shape) - 1
