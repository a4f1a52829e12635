"""JSON lines in a file: a line for each figure and flush. A full file is moved aside as `.1`, `.2`, … and begun again.

| option | default | |
|---|---|---|
| `path` | wherry-metrics.jsonl | the file |
| `bytes` | 67108864 | when it is full |
| `files` | 4 | old ones that are kept |
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from wherry.node.sinks.sink import MetricSample, number, option


class JsonLines:
    """An open file."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None

    def open(self, options: Mapping[str, str]) -> None:
        """See `Sink`."""
        self._path = Path(option(options, "path", "wherry-metrics.jsonl"))
        self._bytes_max = number(options, "bytes", 64 << 20)
        self._files_max = number(options, "files", 4)
        self._file = self._path.open("ab")

    def flush(self, samples: Sequence[MetricSample]) -> None:
        """See `Sink`. A flush is written whole, in one file."""
        at_ms = time.time_ns() // 1_000_000
        lines = msgspec.json.Encoder().encode_lines([_line(at_ms, sample) for sample in samples])
        assert self._file is not None
        if self._file.tell() and self._file.tell() + len(lines) > self._bytes_max:
            self._rotate()
        self._file.write(lines)
        self._file.flush()

    def close(self) -> None:
        """See `Sink`."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rotate(self) -> None:
        self.close()
        for age in range(self._files_max, 0, -1):
            younger = self._aside(age - 1) if age > 1 else self._path
            if younger.exists():
                younger.replace(self._aside(age))
        self._file = self._path.open("ab")

    def _aside(self, age: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{age}")


def _line(at_ms: int, sample: MetricSample) -> dict[str, object]:
    line: dict[str, object] = {"at_ms": at_ms, "name": sample.name, "kind": sample.kind, "labels": dict(sample.labels)}
    if sample.kind != "histogram":
        return line | {"value": sample.value}
    buckets = [(None if bound == float("inf") else bound, count) for bound, count in sample.buckets]
    return line | {"sum": sample.value, "count": sample.count, "buckets": buckets}
