"""From what a user calls an env to a factory that makes one."""

import difflib
import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import gymnasium as gym

from jaxrl_async.checks import ConfigError

EnvFactory: TypeAlias = Callable[[], Any]
"""Makes one unseeded env, or a vector env for all lanes of an actor; seeds come by ``reset``."""


def factory(
    env: str | EnvFactory | gym.Env, options: Mapping[str, Any] | None = None
) -> EnvFactory:
    """A factory of envs.

    Args:
      env: a Gymnasium id, a factory, or an env made by ``gymnasium.make``, of which further ones
        are made by its spec.
      options: keywords of ``gymnasium.make``, with an id only.

    Raises:
      ConfigError: no such id, or an env that cannot be made again.
    """
    if isinstance(env, str):
        spec = _find(env)
        return lambda: _make(spec, options or {})
    if options:
        raise ConfigError(
            f"env_options = {dict(options)}: go with an env id; put them in the factory"
        )
    if isinstance(env, gym.vector.VectorEnv):
        raise ConfigError(
            f"env = {type(env).__name__} object: each actor needs one of its own; pass a function"
            " that makes one"
        )
    if isinstance(env, gym.Env):
        spec = env.spec
        if spec is None:
            raise ConfigError(
                f"env = {type(env).__name__} object without a spec: actors and evaluation each need"
                " an env of their own; pass a function that makes one, or register the env"
            )
        lost = [w.name for w in spec.additional_wrappers if w.kwargs is None]
        if lost:
            raise ConfigError(
                f"env = object wrapped in {', '.join(lost)}: Gymnasium cannot make this wrapper"
                " again; pass a function that makes one, or let the wrapper record its arguments"
                " with gymnasium.utils.RecordConstructorArgs"
            )
        return lambda: _make(spec, {})
    if callable(env):
        return env
    raise ConfigError(
        f"env = {env!r}: use a Gymnasium id, a function that makes an env, or an env object"
    )


def name(env: str | EnvFactory | gym.Env) -> str:
    """What the run calls the env: its id where it has one, else the factory's name."""
    if isinstance(env, str):
        return env
    if isinstance(env, gym.Env) and env.spec is not None:
        return env.spec.id
    return getattr(env, "__name__", type(env).__name__)


def _make(spec: Any, options: Mapping[str, Any]) -> gym.Env:
    try:
        return gym.make(spec, **options)
    except (gym.error.Error, ImportError, TypeError) as error:
        raise ConfigError(
            f"env = {spec.id!r}, env_options = {dict(options)}: {error};"
            " install what it needs, or use the options that it takes"
        ) from error


def _find(env_id: str) -> Any:
    """The registered spec of ``env_id``; ``module:id`` imports the module first."""
    module, _, registered = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        return gym.spec(registered)
    except (gym.error.Error, ImportError) as error:
        near = difflib.get_close_matches(registered, gym.registry, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "import the package that registers it"
        raise ConfigError(f"env = {env_id!r}: no such env; {hint}") from error
