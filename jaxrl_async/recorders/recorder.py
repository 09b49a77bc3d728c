"""The protocol, and several recorders at once."""

from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypeAlias, final

STREAMS = ("train", "evaluation", "timing")
Stream: TypeAlias = Literal["train", "evaluation", "timing"]
"""``train`` and ``evaluation`` hold only what follows from the data; ``timing`` is of the clock."""


class Recorder(Protocol):
    """Called from one thread only."""

    def start(self, config: Mapping[str, Any]) -> None:
        """Before anything is recorded, with the run's config as JSON values."""
        ...

    def record(self, stream: Stream, env_steps: int, values: Mapping[str, float]) -> None:
        """One row; NaN means "no value this time"."""
        ...

    def close(self) -> None:
        """Flushes; nothing is recorded afterwards."""
        ...


@final
class MultiRecorder:
    """Gives everything to each of several recorders, in their order."""

    def __init__(self, *recorders: Recorder):
        self._recorders = recorders

    def start(self, config: Mapping[str, Any]) -> None:
        """Starts all."""
        for recorder in self._recorders:
            recorder.start(config)

    def record(self, stream: Stream, env_steps: int, values: Mapping[str, float]) -> None:
        """Records with all."""
        for recorder in self._recorders:
            recorder.record(stream, env_steps, values)

    def close(self) -> None:
        """Closes all, also where one fails; then raises what failed."""
        errors = []
        for recorder in self._recorders:
            try:
                recorder.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise ExceptionGroup("recorders failed to close", errors)
