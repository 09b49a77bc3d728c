"""The directory of a run: who owns it, and what lies in it.

| file | holds |
|---|---|
| ``config.json`` | the run's config, and the versions it ran with |
| ``train.csv``, ``evaluation.csv``, ``timing.csv`` | see ``runtime/metrics.py`` |
| ``policy_best.npz`` | the parameters of the best evaluation, exactly those that were scored |
| ``policy_last.npz`` | the parameters after the last update |
| ``checkpoints/`` | see ``runtime/checkpoint.py`` |
"""

import datetime
import itertools
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any, final

from jaxrl_async.checks import ConfigError
from jaxrl_async.config import RunConfig
from jaxrl_async.overrides import to_json
from jaxrl_async.runtime.params import Snapshot
from jaxrl_async.runtime.parts import Parts
from jaxrl_async.runtime.policy import Policy, versions

CONFIG = "config.json"
MAY_CHANGE = (
    *("env_steps", "directory", "record_period", "evaluation", "checkpoint", "stop"),
    *("learner.slack", "learner.devices", "actor.device", "actor.max_policy_lag"),
)
"""Fields that a resumed run may have otherwise than before; they decide nothing already done."""


@final
class RunDirectory:
    """A directory that belongs to one run."""

    def __init__(self, config: RunConfig):
        """Claims ``config.directory``, or a new one under ``runs/``.

        Raises:
          ConfigError: another run lies there, or the config holds what JSON does not know.
        """
        self._config = config
        described = {**to_json(config), "versions": versions()}
        try:
            text = json.dumps(described, indent=2, allow_nan=False) + "\n"
        except (TypeError, ValueError) as error:
            raise ConfigError(f"RunConfig holds what JSON does not know: {error}") from error
        try:
            self.path = named(config.directory) if config.directory else new(config)
            found, partial = self.path / CONFIG, self.path / f"{CONFIG}.partial"
            if found.exists():
                refuse_another_run(found, described)
            partial.write_text(text)
            os.replace(partial, found)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"directory = {config.directory!r}: {error}; name one that can be written to"
            ) from error

    def save_policy(self, name: str, parts: Parts, snapshot: Snapshot, score: float) -> None:
        """Writes a policy file, whole or not at all."""
        card: dict[str, Any] = {
            "agent_name": self._config.agent_name,
            "env": self._config.env,
            "env_options": dict(self._config.env_options),
            "version": snapshot.version,
            "env_steps": snapshot.env_steps,
            "explore": snapshot.explore,
            "score": score,
        }
        Policy(parts.agent, snapshot.params, parts.bounds, card).save(self.path / name)


def refuse_another_run(path: pathlib.Path, wanted: Mapping[str, Any]) -> None:
    """Raises unless the run that lies there can go on with this config."""
    wrong = []
    before, now = flat(json.loads(path.read_text())), flat(json.loads(json.dumps(wanted)))
    for name in sorted(before.keys() | now.keys()):
        part = name.partition(".")[0]
        if name in MAY_CHANGE or part in MAY_CHANGE or part == "versions":
            continue
        if before.get(name) != now.get(name):
            wrong.append(f"{name} was {before.get(name)!r} and is {now.get(name)!r}")
    if wrong:
        raise ConfigError(
            f"directory = {str(path.parent)!r}: already holds another run"
            f" ({'; '.join(wrong)}); name another directory, or resume with its settings"
        )


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested JSON objects by dotted name."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def named(directory: str) -> pathlib.Path:
    """The directory that the user names, made if need be."""
    path = pathlib.Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    return path


def new(config: RunConfig) -> pathlib.Path:
    """A new directory under ``runs/`` that says what runs and when; no other run gets it."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    words = f"{config.agent_name}-{config.env}-seed{config.seed}-{now}"
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", words)
    for number in itertools.count(1):
        path = pathlib.Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            continue
    raise AssertionError("unreachable")
