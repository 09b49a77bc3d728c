"""What users take away from a run: numpy in, numpy out, no Trainer behind it."""

import importlib.metadata
import itertools
import json
import os
import pathlib
import secrets
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, Self, final

import jax
import numpy as np

from jaxrl_async import agents
from jaxrl_async.agents.agent import Agent
from jaxrl_async.checks import ConfigError
from jaxrl_async.envs.spaces import ActionBounds
from jaxrl_async.overrides import replace, to_json
from jaxrl_async.runtime.acting import begin, make_act
from jaxrl_async.runtime.params import Snapshot
from jaxrl_async.types import ArraySpec, EnvSpec, Params, leaves

BEST, LAST = "policy_best.npz", "policy_last.npz"
"""The two policy files of a run directory."""

FORMAT = 1


@final
class Policy:
    """A trained agent that acts. Thread-safe."""

    def __init__(self, agent: Agent, params: Params, bounds: ActionBounds, card: Mapping[str, Any]):
        """Takes parameters of its own.

        Args:
          agent: whose ``act`` is called.
          params: its ``actor_params``.
          bounds: how its actions become the env's.
          card: what is known of its making: agent_name, env, version, env_steps, explore, score.
        """
        self.agent, self.bounds, self.card = agent, bounds, dict(card)
        self.seed = secrets.randbits(31)
        """Of exploring actions where ``act`` is given none."""
        self._device = jax.local_devices(backend="cpu")[0]
        self.params = jax.device_put(params, self._device)
        self._act = make_act(agent)
        self._calls = itertools.count()

    @property
    def snapshot(self) -> Snapshot:
        """The parameters with their version, as an evaluation takes them."""
        card = self.card
        return Snapshot(card["version"], card["env_steps"], card["explore"], self.params)

    def act(self, observation: Any, *, explore: float = 0.0, seed: int | None = None) -> np.ndarray:
        """Actions as the env takes them, of one observation [*obs] or of several [B, *obs].

        ``explore`` is what the agent's ``act`` is given; 0 is the greedy policy. With a ``seed``
        the same call gives the same actions again.
        """
        action, _ = self._call(observation, (), explore, seed)
        return action

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = True,
    ) -> tuple[np.ndarray, Any]:
        """``(action, state)`` in Stable-Baselines3's shape, so that its helpers take a Policy.

        ``deterministic=False`` explores as in training when the policy was saved.
        """
        explore = 0.0 if deterministic else float(self.card["explore"])
        action, carry = self._call(observation, state or (), explore, None, episode_start)
        return action, carry or None

    def _call(self, observation, carry, explore, seed, episode_start=None):
        batch, is_single = as_batch(observation, self.agent)
        count = len(leaves(batch)[0])
        fresh = self.agent.initial_carry(count)
        starts = np.ones(count, bool) if not carry else np.zeros(count, bool)
        starts = starts if episode_start is None else np.asarray(episode_start, bool)
        key = jax.device_put(jax.random.key(self.seed if seed is None else seed), self._device)
        step = np.int32(next(self._calls) if seed is None else 0)
        spread = np.full(count, explore, np.float32)
        carry = begin(carry or fresh, fresh, starts)
        action, carry = self._act(self.params, carry, batch, key, step, spread)
        action = self.bounds.to_env(np.asarray(action))
        return (action[0] if is_single else action), carry

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one ``.npz`` of arrays and JSON, whole or not at all."""
        path = pathlib.Path(path)
        meta = {
            "format": FORMAT,
            "agent": to_json(self.agent.config),
            "spec": self.agent.spec._asdict(),
            "bounds": self.bounds._asdict(),
            "versions": versions(),
            **self.card,
        }
        text = json.dumps(meta, default=lambda value: value.item())
        arrays = {name: np.asarray(leaf) for name, leaf in flatten(self.params).items()}
        partial = path.with_name(path.name + ".partial")
        with open(partial, "wb") as file:
            np.savez(
                file, allow_pickle=False, meta=np.frombuffer(text.encode(), np.uint8), **arrays
            )
        os.replace(partial, path)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        make_agent: Callable[[Any, EnvSpec], Agent] | None = None,
        config: Any = None,
    ) -> Self:
        """A saved policy, or that of a run directory: its best, or where none is, its last.

        Args:
          path: the file or the directory.
          make_agent: ``(config, spec) -> agent``, for agents that are not in ``AGENTS``.
          config: their config's defaults, over which the saved values are laid.

        Raises:
          ConfigError: there is no policy, the file is none, or its arrays are not this agent's.
        """
        path = find(pathlib.Path(path))
        meta, arrays = read(path)
        if (make_agent is None) != (config is None):
            raise ConfigError(f"{path}: give both make_agent and config, or neither")
        if make_agent is None:
            preset = agents.preset(meta["agent_name"])
            make_agent, config = preset.agent, preset.config
        spec = meta.pop("spec")
        spec = EnvSpec(read_spec(spec["observation"]), spec["action_size"], spec["discrete"])
        agent = make_agent(replace(config, meta.pop("agent")), spec)
        bounds = read_bounds(meta.pop("bounds"))
        params = unflatten(arrays)
        check_same_shapes(path, agent, params)
        return cls(agent, params, bounds, meta)


def as_batch(observation: Any, agent: Agent) -> tuple[Any, bool]:
    """``observation`` with a leading axis, in the agent's dtype, and whether it had none."""
    spec = agent.spec.observation
    if isinstance(spec, ArraySpec):
        return leaf_as_batch(observation, spec)
    missing = [name for name, _ in spec if name not in observation]
    if missing:
        raise ValueError(f"observation lacks {missing}: use a dict with what the env declares")
    parts = {name: leaf_as_batch(observation[name], part) for name, part in spec}
    if len({is_single for _, is_single in parts.values()}) > 1:
        raise ValueError("observation has parts with and without a leading axis: use one or other")
    return {name: array for name, (array, _) in parts.items()}, next(iter(parts.values()))[1]


def leaf_as_batch(observation: Any, spec: ArraySpec) -> tuple[np.ndarray, bool]:
    """One array of an observation, likewise."""
    array = np.asarray(observation).astype(spec.dtype, copy=False)
    is_single = array.ndim == len(spec.shape)
    array = array[None] if is_single else array
    if array.shape[1:] != spec.shape:
        raise ValueError(
            f"observation has shape {np.shape(observation)}: use {spec.shape} or [B, *{spec.shape}]"
        )
    return array, is_single


def find(path: pathlib.Path) -> pathlib.Path:
    """The policy file at a path that may be a run directory."""
    candidates = [path / BEST, path / LAST] if path.is_dir() else [path]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise ConfigError(f"no policy at {path}: name a policy file or a run's directory")


def read(path: pathlib.Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The card and the arrays of a policy file; pickled arrays are refused."""
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        meta = json.loads(arrays.pop("meta").tobytes())
        found = meta.pop("format")
    except (OSError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path}: not a whole policy file of this library") from error
    if found != FORMAT:
        raise ConfigError(f"{path}: a policy of format {found}; save it again with this version")
    return meta, arrays


def flatten(params: Params, prefix: str = "params") -> dict[str, Any]:
    """Nested dicts as ``a/b/c`` names."""
    if not isinstance(params, Mapping):
        return {prefix: params}
    found: dict[str, Any] = {}
    for name, part in params.items():
        found |= flatten(part, f"{prefix}/{name}")
    return found


def unflatten(arrays: Mapping[str, Any]) -> Params:
    """The inverse of ``flatten``."""
    root: dict[str, Any] = {}
    for name, array in arrays.items():
        *path, last = name.split("/")
        node = root
        for part in path:
            node = node.setdefault(part, {})
        node[last] = array
    return root["params"]


def check_same_shapes(path: pathlib.Path, agent: Agent, params: Params) -> None:
    """Refuses arrays that the agent's networks would not take."""
    wanted = jax.eval_shape(lambda key: agent.actor_params(agent.init(key)), jax.random.key(0))
    expected = {name: (leaf.shape, str(leaf.dtype)) for name, leaf in flatten(wanted).items()}
    found = {name: (leaf.shape, str(leaf.dtype)) for name, leaf in flatten(params).items()}
    wrong = sorted(name for name in expected | found if expected.get(name) != found.get(name))
    if wrong:
        raise ConfigError(
            f"{path}: {wrong[0]} is {found.get(wrong[0])}, the agent needs {expected.get(wrong[0])}"
            f" ({len(wrong)} arrays differ): the file belongs to another agent or config"
        )


def read_spec(value: Any) -> Any:
    """An observation spec out of JSON's lists."""
    if isinstance(value[1], str):
        return ArraySpec(tuple(value[0]), value[1])
    return tuple((name, read_spec(part)) for name, part in value)


def read_bounds(value: Mapping[str, Any]) -> ActionBounds:
    """Action bounds out of JSON's lists."""
    low, high, shape = (tuple(value[name]) for name in ("low", "high", "shape"))
    return ActionBounds(low, high, shape, value["dtype"], value["start"])


def versions() -> dict[str, str]:
    """Of this library and of what it computes with; a source tree may not be installed."""
    found = {}
    for name in ("jaxrl-async", "jax", "flax", "optax", "gymnasium", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
