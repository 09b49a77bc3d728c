"""One CSV file per stream, append-only."""

import csv
import math
import pathlib
from collections.abc import Mapping
from typing import Any, TextIO, final

from jaxrl_async.recorders.recorder import STREAMS, Stream


@final
class CSVRecorder:
    """``train.csv``, ``evaluation.csv`` and ``timing.csv`` in one directory.

    The first row of a stream fixes its columns, ``env_steps`` first. NaN is an empty cell. Each row
    is written through at once, so that a reader sees it and a killed run loses none.
    """

    def __init__(self, directory: pathlib.Path):
        self._directory = directory
        self._files: dict[Stream, TextIO] = {}
        self._columns: dict[Stream, list[str]] = {}

    def start(self, config: Mapping[str, Any]) -> None:
        """Makes the directory."""
        self._directory.mkdir(parents=True, exist_ok=True)

    def record(self, stream: Stream, env_steps: int, values: Mapping[str, float]) -> None:
        """Appends one row.

        Raises:
          ValueError: a column that the stream's first row did not have.
        """
        if stream not in self._files:
            self._columns[stream] = ["env_steps", *values]
            self._files[stream] = open(self._path(stream), "w", newline="")
            self._write(stream, self._columns[stream])
        unknown = sorted(set(values) - set(self._columns[stream]))
        if unknown:
            raise ValueError(
                f"{stream}.csv has no column {', '.join(unknown)}: a stream's first row names all"
                " its columns; record NaN where a value is yet to come"
            )
        row = {"env_steps": env_steps, **values}
        self._write(stream, [cell(row.get(name)) for name in self._columns[stream]])

    def offsets(self) -> dict[str, int]:
        """Bytes written to each file so far; every one of them is a whole row."""
        return {stream: file.tell() for stream, file in self._files.items()}

    def truncate(self, offsets: Mapping[str, int]) -> None:
        """Goes on where ``offsets()`` was taken: rows written later are removed."""
        for stream in STREAMS:
            path = self._path(stream)
            if stream not in offsets:
                path.unlink(missing_ok=True)
                continue
            file = open(path, "r+", newline="")
            self._columns[stream] = next(csv.reader(file))
            file.seek(offsets[stream])
            file.truncate()
            self._files[stream] = file

    def _path(self, stream: Stream) -> pathlib.Path:
        return self._directory / f"{stream}.csv"

    def _write(self, stream: Stream, row: list[str]) -> None:
        csv.writer(self._files[stream], lineterminator="\n").writerow(row)
        self._files[stream].flush()

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()


def cell(value: float | None) -> str:
    """The shortest text that reads back as the same number; nothing for NaN."""
    if value is None or math.isnan(value):
        return ""
    if isinstance(value, int):
        return str(int(value))
    value = float(value)
    return str(int(value)) if value.is_integer() and abs(value) < 1e16 else repr(value)
