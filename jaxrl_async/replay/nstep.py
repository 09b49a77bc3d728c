"""From single steps to n-step windows: the only place where ``discount`` is made.

A window that starts at step t and holds m steps has

    reward   = r_t + gamma r_{t+1} + ... + gamma^{m-1} r_{t+m-1}
    discount = gamma^m, or 0 if the step t+m-1 terminated the episode

with m = n in mid-episode. Where an episode ends, by termination or truncation, all open windows
end with it and m <= n; terminated wins over truncated where an env says both.
"""

from collections.abc import Mapping
from typing import Any, final

import numpy as np

from jaxrl_async.types import (
    CUT,
    GOES_ON,
    TERMINATED,
    TRUNCATED,
    Transition,
    Windows,
    leaves,
    map_leaves,
)


@final
class NStepAccumulator:
    """The open windows of E lanes.

    Slot s of a lane holds the window begun at step t with t mod n = s. Rewards and factors are
    summed in float64 and leave as float32. Everything kept is a copy: envs may reuse their arrays.
    """

    def __init__(self, num_envs: int, n: int, discount: float):
        self._n, self._gamma = n, discount
        self._steps = np.zeros(num_envs, np.int64)  # of the open episode, per lane
        self._age = np.zeros((num_envs, n), np.int64)  # steps in the window; 0: slot is free
        self._reward = np.zeros((num_envs, n))
        self._factor = np.ones((num_envs, n))  # gamma^age
        self._start: Any = None  # (observation, action, extras) at the windows' starts, [E, n, ...]
        self._newest: Any = None  # next observation of the last step, [E, *obs]

    def add(
        self,
        observation: Any,
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        next_observation: Any,
        extras: Any = (),
        stepped: np.ndarray | None = None,
    ) -> Windows:
        """Takes one step of every lane, [E, ...]; gives the windows [k, ...] that it finishes.

        Lanes outside ``stepped`` [E] bool, which only began an episode, have no step.
        """
        lanes = np.arange(len(self._steps)) if stepped is None else np.flatnonzero(stepped)
        start = (observation, action, extras)
        if self._start is None:
            self._start = map_leaves(self._room, start)
        self._newest = map_leaves(np.array, next_observation)
        end = np.where(terminated, TERMINATED, np.where(truncated, TRUNCATED, GOES_ON))
        if self._n == 1:  # each step is a window of its own, in a quarter of the time
            observation, action, extras = map_leaves(np.array, start)
            reward = np.array(reward, np.float32)
            discount = np.where(terminated, 0.0, self._gamma).astype(np.float32)
            single = Transition(observation, action, reward, discount, self._newest, extras)
            windows = Windows(single, np.arange(len(end), dtype=np.int32), end.astype(np.uint8))
            if len(lanes) == len(end):
                return windows
            return map_leaves(lambda leaf: leaf[lanes], windows)

        slot = self._steps[lanes] % self._n
        map_leaves(
            lambda kept, new: kept.__setitem__((lanes, slot), np.asarray(new)[lanes]),
            self._start,
            start,
        )
        self._age[lanes, slot], self._reward[lanes, slot], self._factor[lanes, slot] = 0, 0.0, 1.0
        running = self._age > 0
        running[lanes, slot] = True
        self._reward += np.where(running, self._factor * reward[:, None], 0.0)
        self._factor *= np.where(running, self._gamma, 1.0)
        self._age += running
        self._steps[lanes] += 1

        ended = terminated | truncated
        finished = self._take(running & ((self._age == self._n) | ended[:, None]), end, terminated)
        self._steps[ended] = 0
        return finished

    def flush(self) -> Windows:
        """Cuts all open windows, bootstrapping from the newest observation; at a stop."""
        nothing = np.zeros(len(self._steps), bool)
        if self._start is None:
            raise RuntimeError("nothing was added yet, so there is nothing to flush")
        finished = self._take(self._age > 0, np.full(len(self._steps), CUT), nothing)
        self._steps[:] = 0
        return finished

    def drop(self, lanes: np.ndarray) -> None:
        """Forgets the open windows of ``lanes`` (indices or a mask [E]); after a fault."""
        self._age[lanes] = 0
        self._steps[lanes] = 0

    def state(self) -> dict[str, Any]:
        """The open windows."""
        kept = [] if self._start is None else leaves((self._start, self._newest))
        return {
            "steps": self._steps.copy(),
            "age": self._age.copy(),
            "reward": self._reward.copy(),
            "factor": self._factor.copy(),
            "kept": [leaf.copy() for leaf in kept],
        }

    def restore(self, state: Mapping[str, Any], start: Any, newest: Any) -> None:
        """Takes up the windows of ``state()``.

        Args:
          state: as ``state()`` gave it.
          start: any (observation, action, extras) of one step [E, ...], for the structure.
          newest: any next observation, likewise.
        """
        for name in ("steps", "age", "reward", "factor"):
            getattr(self, f"_{name}")[:] = state[name]
        if state["kept"]:
            kept = iter(state["kept"])
            self._start, self._newest = map_leaves(lambda _: next(kept), (start, newest))

    def _room(self, leaf: Any) -> np.ndarray:
        array = np.asarray(leaf)
        return np.empty((len(array), self._n, *array.shape[1:]), array.dtype)

    def _take(self, finished: np.ndarray, end: np.ndarray, terminated: np.ndarray) -> Windows:
        """The windows at ``finished`` [E, n]; the last of each lane carries ``end`` [E]."""
        lane, slot = np.nonzero(finished)
        oldest_first = np.lexsort((-self._age[lane, slot], lane))
        lane, slot = lane[oldest_first], slot[oldest_first]
        is_last = np.append(lane[1:] != lane[:-1], True)[: len(lane)]
        observation, action, extras = map_leaves(lambda kept: kept[lane, slot], self._start)
        transitions = Transition(
            observation=observation,
            action=action,
            reward=self._reward[lane, slot].astype(np.float32),
            discount=np.where(terminated[lane], 0.0, self._factor[lane, slot]).astype(np.float32),
            next_observation=map_leaves(lambda newest: newest[lane], self._newest),
            extras=extras,
        )
        self._age[lane, slot] = 0
        flags = np.where(is_last, end[lane], GOES_ON).astype(np.uint8)
        return Windows(transitions, lane.astype(np.int32), flags)


def windows_of(
    reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, n: int, gamma: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The windows that begin at each step of a recording, episode after episode.

    The same as ``NStepAccumulator`` gives of one lane, in the order of their starts; those still
    open at the end of the recording end there.

    Args:
      reward: [T].
      terminated: [T] bool.
      truncated: [T] bool.
      n: steps per window.
      gamma: discount of one step.

    Returns:
      Reward [T] float32, discount [T] float32, and the step [T] at which each window ends.
    """
    steps = np.arange(len(reward))
    is_last = terminated.astype(bool) | truncated.astype(bool)
    is_last[-1:] = True
    lasts = np.flatnonzero(is_last)
    last = np.minimum(steps + n - 1, lasts[np.searchsorted(lasts, steps)])
    total = np.zeros(len(reward))
    for k in range(n):
        inside = steps + k <= last
        total[inside] += gamma**k * reward[steps[inside] + k]
    discount = np.where(terminated[last], 0.0, gamma ** (last - steps + 1.0))
    return total.astype(np.float32), discount.astype(np.float32), last
