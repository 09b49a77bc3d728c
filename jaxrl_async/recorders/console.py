"""Progress for people: a bar in a terminal, plain lines elsewhere."""

import math
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO, final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from jaxrl_async.recorders.recorder import Stream

PLAIN_SECONDS = 10.0
"""At least so long between two plain lines, evaluations excepted."""


@final
class ConsoleRecorder:
    """Env steps, rates, the last returns and each evaluation."""

    def __init__(self, file: TextIO | None = None):
        self._console = Console(file=file or sys.stderr, highlight=False)
        self._progress: Progress | None = None
        self._seen: dict[str, float] = {}
        self._budget = 0
        self._last_line = -math.inf

    def start(self, config: Mapping[str, Any]) -> None:
        """Shows the bar where there is a terminal."""
        self._budget = int(config["env_steps"])
        title = printable(f"{config['agent_name']} on {config['env']}")
        if not self._console.is_terminal:
            self._print(f"{title}: {self._budget:,} env steps")
            return
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[live]}", markup=False),
            console=self._console,
            auto_refresh=False,  # drawn when something is recorded; no thread of its own
        )
        self._task = self._progress.add_task(title, total=self._budget, live="")
        self._progress.start()

    def record(self, stream: Stream, env_steps: int, values: Mapping[str, float]) -> None:
        """Draws what is new."""
        self._seen.update({k: v for k, v in values.items() if not math.isnan(v)})
        if stream == "evaluation":
            self._print(f"{env_steps:>11,} env steps: {evaluation_line(values)}")
        elif self._progress is not None:
            self._progress.update(self._task, completed=env_steps, live=self._live(), refresh=True)
        elif stream == "timing" and time.monotonic() - self._last_line >= PLAIN_SECONDS:
            self._last_line = time.monotonic()
            self._print(f"{env_steps:>11,} env steps: {self._live()}")

    def _print(self, line: str) -> None:
        console = self._progress.console if self._progress is not None else self._console
        console.print(line, markup=False, emoji=False, soft_wrap=True)

    def _live(self) -> str:
        found = [
            ("{:,.0f} env steps/s", "timing/env_steps_per_s"),
            ("{:,.0f} updates/s", "timing/updates_per_s"),
            ("training return {:,.1f}", "actor/return_mean"),
        ]
        shown = [text.format(self._seen[key]) for text, key in found if key in self._seen]
        remaining = self._seen.get("timing/remaining_s")
        if self._progress is None and remaining is not None:
            shown.append(f"{remaining:,.0f} s left")
        return ", ".join(shown)

    def close(self) -> None:
        """Leaves the bar as it is."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def printable(text: str) -> str:
    """``text`` with control characters spelled out, as a terminal would obey them."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def evaluation_line(values: Mapping[str, float]) -> str:
    """One evaluation in words."""
    mean, std = values["evaluation/return_mean"], values["evaluation/return_std"]
    return (
        f"evaluation return {mean:,.1f} ± {std:,.1f} ({values['evaluation/episodes']:.0f} episodes)"
    )
