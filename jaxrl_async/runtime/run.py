"""One run: what keeps its parts together while they are driven, and saves them."""

import pathlib
from typing import final

from jaxrl_async.config import RunConfig
from jaxrl_async.runtime import resume
from jaxrl_async.runtime.checkpoint import Checkpointer
from jaxrl_async.runtime.parts import Parts
from jaxrl_async.runtime.publisher import Publisher
from jaxrl_async.runtime.reporter import Reporter


@final
class Run:
    """Publication, records and checkpoints of the parts. Main thread only."""

    def __init__(
        self, config: RunConfig, parts: Parts, reporter: Reporter, checkpointer: Checkpointer
    ):
        self._config, self._parts, self._checkpointer = config, parts, checkpointer
        self.reporter, self.publisher = reporter, Publisher(config, parts)
        self.is_resumed = False
        self._saved_at = 0

    def resume(self, path: pathlib.Path) -> None:
        """Goes on from a checkpoint."""
        state = self._checkpointer.restore_run(path)
        saved = self._checkpointer.restore_arrays(path, resume.like(self._parts))
        self._checkpointer.restore_rows(state, self._parts.replay)
        resume.give_back(state, saved, self._parts, self.publisher, self.reporter)
        self.is_resumed = True
        self._saved_at = self._parts.limiter.env_steps

    def save_due(self) -> bool:
        """Whether a multiple of ``checkpoint.period`` was passed since the last save."""
        env_steps, period = self._parts.limiter.env_steps, self._config.checkpoint.period
        return period > 0 and env_steps // period > self._saved_at // period

    def save(self) -> None:
        """Waits for the learner's calls and writes a checkpoint."""
        parts = self._parts
        parts.learner.finish()
        state = resume.gather(parts, self.publisher, self.reporter)
        saved = resume.arrays(parts, self.publisher)
        self._checkpointer.save(state["env_steps"], state["updates"], saved, state, parts.replay)
        self._saved_at = state["env_steps"]
