"""From Gymnasium's spaces to what agents see, and back."""

import functools
import math
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from jaxrl_async.checks import ConfigError
from jaxrl_async.types import ArraySpec, EnvSpec, map_leaves

INTEGERS = ("bool", "int8", "uint8", "int16", "uint16", "int32")
"""Dtypes kept as they are; a device holds no 64-bit integers."""


class ActionBounds(NamedTuple):
    """How an agent's actions become the env's; numbers only, so that a policy file can hold it."""

    low: tuple[float, ...]  # of each dimension; () where the space is discrete
    high: tuple[float, ...]
    shape: tuple[int, ...]  # of one action of the env
    dtype: str
    start: int  # the first discrete action

    def to_env(self, action: np.ndarray) -> np.ndarray:
        """Actions [E, A] in [-1, 1], or [E] counted from 0, as the env takes them."""
        if not self.low:
            return action.astype(self.dtype) + np.asarray(self.start, self.dtype)
        low, high = arrays(self)
        scaled = low + (action.astype(np.float64) + 1.0) * 0.5 * (high - low)
        within = np.minimum(np.maximum(scaled, low), high).astype(self.dtype)
        return within.reshape(len(action), *self.shape)

    def from_env(self, action: np.ndarray) -> np.ndarray:
        """The inverse: env actions [E, *shape] as an agent would have given them."""
        if not self.low:
            return (action - self.start).astype(np.int32)
        low, high = arrays(self)
        flat = action.reshape(len(action), -1).astype(np.float64)
        return (2.0 * (flat - low) / (high - low) - 1.0).astype(np.float32)


@functools.lru_cache
def arrays(bounds: ActionBounds) -> tuple[np.ndarray, np.ndarray]:
    """Low and high [A]; made once, because every step of every env needs them."""
    return np.asarray(bounds.low), np.asarray(bounds.high)


def describe(observation: gym.Space, action: gym.Space) -> tuple[EnvSpec, ActionBounds]:
    """What an agent needs to know of an env with these spaces.

    Raises:
      ConfigError: a space that is not supported; the message names it and the remedy.
    """
    size, bounds = _action(action)
    return EnvSpec(_observation(observation), size, not bounds.low), bounds


def as_declared(observation: Any) -> Any:
    """Observations [E, *obs] in the dtypes that agents know: floats as float32, integers as is."""
    return map_leaves(
        lambda leaf: leaf.astype(np.float32, copy=False) if leaf.dtype.kind == "f" else leaf,
        observation,
    )


def _observation(space: gym.Space) -> Any:
    if isinstance(space, spaces.Dict):
        return tuple((name, _observation(space[name])) for name in sorted(space))
    if not isinstance(space, spaces.Box):
        raise ConfigError(
            f"env's observation space = {space}: {type(space).__name__} is not supported;"
            " use a Box or a Dict of them, e.g. through gymnasium.wrappers.FlattenObservation"
        )
    if np.issubdtype(space.dtype, np.floating):
        return ArraySpec(space.shape, "float32")
    if space.dtype.name not in INTEGERS:
        raise ConfigError(
            f"env's observation space = {space}: {space.dtype} does not fit a device;"
            " use gymnasium.wrappers.DtypeObservation with np.int32 or np.float32"
        )
    return ArraySpec(space.shape, space.dtype.name)


def _action(space: gym.Space) -> tuple[int, ActionBounds]:
    if isinstance(space, spaces.Discrete):
        return int(space.n), ActionBounds((), (), (), space.dtype.name, int(space.start))
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise ConfigError(
            f"env's action space = {space}: {type(space).__name__} of {space.dtype} is not"
            " supported; use Discrete or a floating Box, e.g. through"
            " gymnasium.wrappers.TransformAction"
        )
    low, high = space.low.ravel().astype(np.float64), space.high.ravel().astype(np.float64)
    if not np.all(np.isfinite(low) & np.isfinite(high) & (low < high)):
        raise ConfigError(
            f"env's action space = {space}: actions are scaled to its bounds, which must be finite"
            " with low < high; declare bounds, e.g. through gymnasium.wrappers.TransformAction"
        )
    bounds = ActionBounds(
        tuple(low.tolist()), tuple(high.tolist()), space.shape, space.dtype.name, 0
    )
    return math.prod(space.shape), bounds
