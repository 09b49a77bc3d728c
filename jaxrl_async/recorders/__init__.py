"""Where a run's numbers go.

Recorders have no threads and know no device: they are given floats. ``env_steps`` never falls
within one stream.
"""

from jaxrl_async.recorders.console import ConsoleRecorder
from jaxrl_async.recorders.csv import CSVRecorder
from jaxrl_async.recorders.recorder import MultiRecorder, Recorder, Stream

__all__ = ["CSVRecorder", "ConsoleRecorder", "MultiRecorder", "Recorder", "Stream"]
