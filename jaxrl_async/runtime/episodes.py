"""The open episodes of an actor's lanes."""

from collections.abc import Mapping
from typing import Any, final

import numpy as np

from jaxrl_async.envs.stepper import Step
from jaxrl_async.types import Episode


@final
class Episodes:
    """Of each lane: how many episodes have begun, and return, length and actions of the open one.

    Those that end are kept until ``take`` gives them away.
    """

    def __init__(self, lanes: int, *, keeps_actions: bool):
        """None has begun; actions are kept where a resume shall play them again."""
        self.begun = np.zeros(lanes, np.int64)
        self.played: list[list[np.ndarray]] = [[] for _ in range(lanes)]
        self._keeps_actions = keeps_actions
        self._return, self._length = np.zeros(lanes), np.zeros(lanes, np.int64)
        self._finished: list[Episode] = []

    def begin(self, mask: np.ndarray) -> None:
        """One has begun in each lane of ``mask`` [E] bool."""
        self.begun += mask
        self._return[mask], self._length[mask] = 0.0, 0
        for lane in np.flatnonzero(mask):
            self.played[lane] = []

    def add(self, action: np.ndarray, step: Step) -> None:
        """Takes a step of all lanes, made with ``action`` [E, ...]."""
        if self._keeps_actions:
            for lane, played in enumerate(self.played):
                played.append(action[lane])
        self._return += step.reward
        self._length += step.stepped
        for lane in np.flatnonzero(step.terminated | step.truncated):
            episode_return, success = float(self._return[lane]), float(step.success[lane])
            self._finished.append(Episode(episode_return, int(self._length[lane]), success))
        if step.began.any():
            self.begin(step.began)

    def take(self) -> tuple[Episode, ...]:
        """Those that ended since the last call."""
        finished, self._finished = tuple(self._finished), []
        return finished

    def state(self) -> dict[str, Any]:
        """The open ones, and those not yet given away; ``begun`` is the actor's to keep."""
        return {
            "played": [np.array(actions) for actions in self.played],
            "return": self._return.copy(),
            "length": self._length.copy(),
            "finished": [list(episode) for episode in self._finished],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes them up."""
        self.played = [list(actions) for actions in state["played"]]
        self._return[:], self._length[:] = state["return"], state["length"]
        self._finished = [Episode(r, int(n), s) for r, n, s in state["finished"]]
