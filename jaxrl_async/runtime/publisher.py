"""When the actors get new parameters."""

from typing import final

from jaxrl_async.config import RunConfig
from jaxrl_async.runtime.params import Snapshot
from jaxrl_async.runtime.parts import Parts

EXPLORE_PERIOD = 1_000
"""Env steps after which the exploration schedule reaches the actors where no update does."""


@final
class Publisher:
    """Hands parameters to the actors when they are due. Main thread only."""

    def __init__(self, config: RunConfig, parts: Parts):
        self._period, self._parts = config.learner.publish_period, parts
        self.last = Snapshot(0, 0, 0.0, None)
        """What was offered last, with parameters of its own."""

    def snapshot(self) -> Snapshot:
        """The newest parameters; their buffers live until the learner's next step."""
        parts, env_steps = self._parts, self._parts.limiter.env_steps
        params = parts.agent.actor_params(parts.learner.state)
        return Snapshot(parts.learner.updates, env_steps, parts.agent.explore(env_steps), params)

    def publish(self, snapshot: Snapshot | None = None) -> None:
        """Offers a snapshot, or the newest parameters, now."""
        self.last = self._parts.store.publish(snapshot or self.snapshot())

    def is_due(self) -> bool:
        """Whether enough updates were made, or the exploration schedule has moved on."""
        since = self._parts.learner.updates - self.last.version
        moved = self._parts.limiter.env_steps - self.last.env_steps
        return since >= self._period or moved >= EXPLORE_PERIOD
