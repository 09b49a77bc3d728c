"""Envs stepped in turn by the thread that calls."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, final

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, create_empty_array

from jaxrl_async.checks import ConfigError
from jaxrl_async.types import map_leaves


@final
class SerialVectorEnv(gym.vector.VectorEnv):
    """E envs as one, without autoreset.

    ``step`` returns the true successors, also of an episode that ends; the caller then resets by
    mask: ``reset(seed=[...], options={"reset_mask": mask})``. Unlike Gymnasium's
    ``SyncVectorEnv`` it keeps of ``info`` only ``is_success`` and copies each observation once.
    """

    steps_by_mask = True
    """``step`` may leave lanes out."""

    def __init__(self, make_env: Callable[[], gym.Env], num_envs: int):
        with contextlib.ExitStack() as made:
            self.envs = []
            for _ in range(num_envs):
                self.envs.append(make_env())
                made.callback(self.envs[-1].close)
            made.pop_all()
        self.num_envs = num_envs
        self.metadata = {
            **self.envs[0].metadata,
            "autoreset_mode": AutoresetMode.DISABLED,
        }
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._observation: Any = create_empty_array(self.single_observation_space, num_envs)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Observations [E, *obs] after resetting the lanes in ``options["reset_mask"]``, or all."""
        options = dict(options or {})
        mask = options.pop("reset_mask", np.ones(self.num_envs, bool))
        seeds = [seed] * self.num_envs if seed is None else seed
        if isinstance(seeds, int):
            seeds = [seeds + lane for lane in range(self.num_envs)]
        for lane in np.flatnonzero(mask).tolist():
            observation, _ = self.envs[lane].reset(seed=seeds[lane], options=options or None)
            self._write(lane, observation)
        return map_leaves(np.copy, self._observation), {}

    def step(self, actions: np.ndarray, mask: np.ndarray | None = None):
        """Observations [E, *obs], rewards [E] float64, terminated [E], truncated [E], infos.

        Lanes outside ``mask`` are not stepped; their observation stays and their reward is 0.
        """
        reward = np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        success = np.full(self.num_envs, np.nan)
        for lane in range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist():
            observation, reward[lane], terminated[lane], truncated[lane], info = self.envs[
                lane
            ].step(actions[lane])
            self._write(lane, observation)
            success[lane] = info.get("is_success", np.nan)
        observation = map_leaves(np.copy, self._observation)
        return observation, reward, terminated, truncated, {"is_success": success}

    def _write(self, lane: int, observation: Any) -> None:
        map_leaves(lambda kept, new: write(kept, lane, new), self._observation, observation)

    def close_extras(self, **kwargs: Any) -> None:
        """Closes every env, also where one fails; then raises what failed."""
        errors = []
        for env in self.envs:
            try:
                env.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0] if len(errors) == 1 else ExceptionGroup("envs failed to close", errors)


def write(kept: np.ndarray, lane: int, new: Any) -> None:
    """Copies one env's array ``new`` [*obs] into its lane of ``kept`` [E, *obs]."""
    array = np.asarray(new)
    if array.shape != kept.shape[1:]:
        raise ConfigError(
            f"env's observation has shape {array.shape}, its space says {kept.shape[1:]}:"
            " make the env return what it declares"
        )
    if not np.can_cast(array.dtype, kept.dtype, "same_kind"):
        raise ConfigError(
            f"env's observation is {array.dtype}, its space says {kept.dtype}:"
            " make the env return what it declares"
        )
    kept[lane] = array
