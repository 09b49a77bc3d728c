"""Asynchronous off-policy reinforcement learning in Python and JAX.

``train("sac", "Pendulum-v1", env_steps=20_000)`` trains an agent. Names are imported when first
used, so that importing the package, as child processes of envs do, loads no jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl_async.agents import AGENTS
    from jaxrl_async.api import RunResult, evaluate_policy, train
    from jaxrl_async.checks import ConfigError
    from jaxrl_async.config import RunConfig
    from jaxrl_async.runtime.policy import Policy
    from jaxrl_async.runtime.trainer import Summary, Trainer

_HOMES = {
    "AGENTS": "agents",
    "ConfigError": "checks",
    "Policy": "runtime.policy",
    "RunConfig": "config",
    "RunResult": "api",
    "Summary": "runtime.trainer",
    "Trainer": "runtime.trainer",
    "evaluate_policy": "api",
    "train": "api",
}

__all__ = [
    "AGENTS",
    "ConfigError",
    "Policy",
    "RunConfig",
    "RunResult",
    "Summary",
    "Trainer",
    "evaluate_policy",
    "train",
]


def __getattr__(name: str) -> Any:
    """Imports a public name from where it lives."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """The public names, also before they are imported."""
    return __all__
