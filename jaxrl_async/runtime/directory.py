"""The directory of a run: who owns it, and what lies in it.

| file | holds |
|---|---|
| ``config.json`` | the run's config, and the versions it ran with |
| ``train.csv``, ``evaluation.csv``, ``timing.csv`` | see ``runtime/metrics.py`` |
| ``policy_best.npz`` | the parameters of the best evaluation, exactly those that were scored |
| ``policy_last.npz`` | the parameters after the last update |
"""

import datetime
import json
import pathlib
import re
from typing import Any, final

from jaxrl_async.checks import ConfigError
from jaxrl_async.config import RunConfig, to_json
from jaxrl_async.runtime.params import Snapshot
from jaxrl_async.runtime.parts import Parts
from jaxrl_async.runtime.policy import Policy, versions

CONFIG = "config.json"


@final
class RunDirectory:
    """A directory that belongs to one run."""

    def __init__(self, config: RunConfig):
        """Claims ``config.directory``, or a new one under ``runs/``.

        Raises:
          ConfigError: another run lies there.
        """
        self._config = config
        self.path = pathlib.Path(config.directory) if config.directory else new_path(config)
        described = {**to_json(config), "versions": versions()}
        try:
            text = json.dumps(described, indent=2, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"RunConfig holds what JSON does not know: {error}") from error
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with open(self.path / CONFIG, "x") as file:
                file.write(text + "\n")
        except FileExistsError as error:
            raise ConfigError(
                f"directory = {str(self.path)!r}: already holds a run; name another directory"
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


def new_path(config: RunConfig) -> pathlib.Path:
    """A path under ``runs/`` that says what ran and when, and that nothing has yet."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    words = f"{config.agent_name}-{config.env}-seed{config.seed}-{now}"
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", words)
    path, number = pathlib.Path("runs") / stem, 1
    while path.exists():
        number += 1
        path = pathlib.Path("runs") / f"{stem}-{number}"
    return path
