"""Recorded experience as a replay: files of arrays, and Minari's datasets."""

import pathlib
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxrl_async.checks import ConfigError
from jaxrl_async.replay.nstep import windows_of
from jaxrl_async.replay.replay import Replay
from jaxrl_async.replay.transitions import TransitionStore
from jaxrl_async.replay.uniform import Uniform
from jaxrl_async.types import Column, EnvSpec, Layout, Transition

MINARI = "minari:"
"""What the name of a Minari dataset begins with here; any other is a path."""
NAMES = {
    "observation": ("observations",),
    "action": ("actions",),
    "reward": ("rewards",),
    "terminated": ("terminations", "terminals"),
    "truncated": ("truncations", "timeouts"),
    "next_observation": ("next_observations",),
}
"""What the arrays of a file are called: by Gymnasium's words or by D4RL's."""
TOLERANCE = 1e-4
"""How far a recorded action may lie beyond its bounds, of half their distance: rounding."""


def load(
    name: str,
    spec: EnvSpec,
    layout: Layout,
    from_env: Callable[[np.ndarray], np.ndarray],
    *,
    n_step: int,
    discount: float,
    seed: np.random.SeedSequence,
) -> Replay:
    """A replay that holds a whole dataset, drawn from uniformly.

    Args:
      name: path of an npz file with one row per step in the order of time (see ``NAMES``), or
        ``minari:`` and the id of a local Minari dataset, which needs the extra ``minari``.
      spec: of the env.
      layout: of the transitions.
      from_env: the env's actions [T, ...] as agents give them.
      n_step: steps per window.
      discount: gamma.
      seed: of the draws.

    Raises:
      ConfigError: there is no such dataset, or it doesn't hold what the env declares.
    """
    steps = of_minari(name.removeprefix(MINARI)) if name.startswith(MINARI) else of_file(name)
    if not isinstance(layout.columns().observation, Column):
        raise ConfigError(
            f"replay.dataset = {name!r}: the env's observations have names; use an env with one"
            " array of them, e.g. through gymnasium.wrappers.FlattenObservation"
        )
    check_steps(name, steps)
    action = from_env(steps["action"])
    is_inside = (
        (action >= 0) & (action < spec.action_size)
        if spec.discrete
        else np.abs(action) <= 1 + TOLERANCE
    )
    refuse(name, NAMES["action"][0], ~is_inside, "outside the env's action space")
    window = windows_of(steps["reward"], steps["terminated"], steps["truncated"], n_step, discount)
    reward, factor, last = window
    transitions = Transition(
        observation=as_float32(steps["observation"]),
        action=action,
        reward=reward,
        discount=factor,
        next_observation=as_float32(steps["next_observation"])[last],
    )
    replay = Replay(TransitionStore(len(reward), layout), Uniform(), seed)
    try:
        replay.append(layout.pack(transitions))
    except ValueError as error:
        raise ConfigError(f"replay.dataset = {name!r}: {error}") from error
    return replay


def check_steps(name: str, steps: Mapping[str, np.ndarray]) -> None:
    """Raises ConfigError unless the arrays are one row per step, and finite."""
    for key in ("reward", "terminated", "truncated"):
        if steps[key].ndim != 1 or steps[key].dtype.kind not in "biuf":
            raise ConfigError(
                f"replay.dataset = {name!r}: {NAMES[key][0]} are {steps[key].dtype}"
                f"{list(steps[key].shape)}; use one number per step"
            )
    counts = {key: len(array) for key, array in steps.items()}
    if len(set(counts.values())) != 1 or not counts["reward"]:
        raise ConfigError(f"replay.dataset = {name!r}: has {counts} rows; use as many of each")
    for key in ("observation", "next_observation", "reward"):
        refuse(name, NAMES[key][0], ~np.isfinite(steps[key]), "not finite")


def refuse(name: str, array: str, is_wrong: np.ndarray, what: str) -> None:
    """Raises ConfigError where any of ``is_wrong`` [T, ...] is true; names the first such step."""
    if is_wrong.any():
        rows = np.flatnonzero(is_wrong.reshape(len(is_wrong), -1).any(axis=1))
        raise ConfigError(
            f"replay.dataset = {name!r}: {array} are {what} at {len(rows)} steps, first at step"
            f" {rows[0]}; mend them or leave these episodes out"
        )


def of_file(name: str) -> dict[str, np.ndarray]:
    """The arrays of an npz file, by our names."""
    path = pathlib.Path(name)
    if not path.is_file():
        raise ConfigError(
            f"replay.dataset = {name!r}: there is no such file; use the path of an npz file, or"
            f" {MINARI!r} and the id of a Minari dataset"
        )
    try:
        with zipfile.ZipFile(path):
            pass
        with np.load(path, allow_pickle=False) as file:
            return {key: pick(file, key, name) for key in NAMES}
    except (ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigError(
            f"replay.dataset = {name!r}: {error}; use a file of plain arrays as numpy.savez writes"
        ) from error


def pick(file: Mapping[str, np.ndarray], key: str, name: str) -> np.ndarray:
    """The array that goes by any of the names of ``key``."""
    for alias in NAMES[key]:
        if alias in file:
            return file[alias]
    raise ConfigError(
        f"replay.dataset = {name!r}: has no array {' or '.join(NAMES[key])}; save one, row i being"
        " step i"
    )


def of_minari(name: str) -> dict[str, np.ndarray]:
    """The steps of a Minari dataset, episode after episode, by our names."""
    try:
        import minari
    except ImportError as error:
        raise ConfigError(
            f"replay.dataset = {MINARI + name!r}: minari is not installed; install the extra"
            " `minari`"
        ) from error
    if name not in minari.list_local_datasets():
        raise ConfigError(
            f"replay.dataset = {MINARI + name!r}: there is no such local dataset; make or download"
            f" it, e.g. with `minari download {name}`"
        )
    parts: dict[str, list[Any]] = {key: [] for key in NAMES}
    for episode in minari.load_dataset(name).iterate_episodes():
        if not isinstance(episode.observations, np.ndarray):
            raise ConfigError(
                f"replay.dataset = {MINARI + name!r}: observations are"
                f" {type(episode.observations).__name__}s; use a dataset of one array"
            )
        observations = np.asarray(episode.observations)
        parts["observation"].append(observations[:-1])
        parts["next_observation"].append(observations[1:])
        parts["action"].append(np.asarray(episode.actions))
        parts["reward"].append(np.asarray(episode.rewards))
        parts["terminated"].append(np.asarray(episode.terminations))
        truncated = np.array(episode.truncations)
        truncated[-1:] = True  # an episode that was cut while it was recorded ends there, too
        parts["truncated"].append(truncated)
    return {key: np.concatenate(arrays) for key, arrays in parts.items()}


def as_float32(array: np.ndarray) -> np.ndarray:
    """Floats as agents know them; integers as they are."""
    return array.astype(np.float32) if array.dtype.kind == "f" else array
