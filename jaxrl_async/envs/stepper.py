"""Vector envs of any autoreset mode, stepped alike."""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple, final

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from jaxrl_async.checks import ConfigError
from jaxrl_async.envs.spaces import as_declared
from jaxrl_async.types import map_leaves


class Step(NamedTuple):
    """What one step of all lanes did."""

    next_observation: Any  # [E, *obs] true successors, never of another episode
    reward: np.ndarray  # [E]
    terminated: np.ndarray  # [E] bool
    truncated: np.ndarray  # [E] bool
    stepped: np.ndarray  # [E] bool; False where the step was spent on a reset
    observation: Any  # [E, *obs] to act on next
    began: np.ndarray  # [E] bool; an episode begins there
    success: np.ndarray  # [E] ``is_success``; NaN where the env does not say


@final
class Stepper:
    """Steps a vector env as ``env.metadata["autoreset_mode"]`` says that it wants to be stepped.

    Disabled: lanes whose episode has ended are reset here, each with a seed of its own. Same step:
    the env has reset them when ``step`` returns, and gives the true successor in ``final_obs``.
    Next step: the env spends its next step on the reset; that step is no transition.
    """

    def __init__(self, env: gym.vector.VectorEnv, seed_of: Callable[[int], int]):
        """Takes the env.

        Args:
          env: the vector env.
          seed_of: the seed of the episode that begins in a lane. An env that resets itself is
            seeded only once, with that of its first lane.

        Raises:
          ConfigError: the env does not say how it resets.
        """
        self._env, self._seed_of = env, seed_of
        self._mode = mode_of(env)
        self._resets = np.zeros(env.num_envs, bool)  # lanes that the next step will only reset

    @property
    def num_envs(self) -> int:
        """Lanes, E."""
        return self._env.num_envs

    def reset(self, mask: np.ndarray | None = None) -> Any:
        """Observations [E, *obs] after an episode has begun in all lanes, or those in ``mask``.

        Only an env that does not reset itself can be reset by a mask.
        """
        if self._mode != AutoresetMode.DISABLED:
            self._resets[:] = False
            observation, _ = self._env.reset(seed=self._seed_of(0))
            return as_declared(observation)
        mask = np.ones(self.num_envs, bool) if mask is None else mask
        seeds: list[int | None] = [None] * self.num_envs
        for lane in np.flatnonzero(mask).tolist():
            seeds[lane] = self._seed_of(lane)
        # Gymnasium pops the mask out of the dict it is given: each reset gets a new one.
        observation, _ = self._env.reset(
            seed=seeds,  # pyright: ignore[reportArgumentType]  # vector envs take one a lane
            options={"reset_mask": mask},
        )
        return as_declared(observation)

    def step(self, action: np.ndarray) -> Step:
        """One step with the env's actions [E, ...]; where an episode ended, the next begins."""
        found, reward, terminated, truncated, infos = self._env.step(action)
        found = as_declared(found)
        stepped, began = ~self._resets, self._resets
        terminated, truncated = terminated.astype(bool), truncated.astype(bool)
        ended = stepped & (terminated | truncated)
        after = observation = found
        success = success_of(infos, self.num_envs)
        if self._mode == AutoresetMode.NEXT_STEP:
            self._resets = ended
        elif ended.any():
            began = ended
            if self._mode == AutoresetMode.SAME_STEP:
                after = with_final(found, infos, ended)
                final = success_of(infos.get("final_info", {}), self.num_envs)
                success = np.where(ended, final, success)
            else:
                observation = self.reset(ended)
        return Step(
            after,
            np.where(stepped, reward, 0.0),
            terminated & stepped,
            truncated & stepped,
            stepped,
            observation,
            began,
            success,
        )


def mode_of(env: gym.vector.VectorEnv) -> AutoresetMode:
    """The autoreset mode that the env states.

    Raises:
      ConfigError: it states none that Gymnasium knows.
    """
    stated = env.metadata.get("autoreset_mode")
    if isinstance(stated, AutoresetMode):
        return stated
    with contextlib.suppress(ValueError):
        return AutoresetMode(stated)
    raise ConfigError(
        f"env = {type(env).__name__}, whose metadata['autoreset_mode'] is {stated!r}: which of its"
        " steps are resets cannot be known; set it to the gymnasium.vector.AutoresetMode that holds"
    )


def success_of(infos: Any, lanes: int) -> np.ndarray:
    """``is_success`` of each lane [E]; NaN where it is not given."""
    if "is_success" not in infos:
        return np.full(lanes, np.nan)
    given = infos.get("_is_success", np.ones(lanes, bool))
    return np.where(given, np.asarray(infos["is_success"], np.float64), np.nan)


def with_final(observation: Any, infos: dict[str, Any], ended: np.ndarray) -> Any:
    """Observations [E, *obs] with the last ones of the lanes whose episode ``ended``.

    Raises:
      ConfigError: the env does not give them.
    """
    if "final_obs" not in infos:
        raise ConfigError(
            "env = one that resets in the same step but gives no info['final_obs']: what an episode"
            " ended with is lost; use another autoreset mode"
        )
    last, after = infos["final_obs"], map_leaves(np.copy, observation)
    if not isinstance(last, np.ndarray) or last.dtype != object:  # one batch of all lanes
        map_leaves(lambda kept, new: kept.__setitem__(ended, new[ended]), after, last)
        return after
    for lane in np.flatnonzero(ended):
        map_leaves(lambda kept, new, lane=lane: kept.__setitem__(lane, new), after, last[lane])
    return after
