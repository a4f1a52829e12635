"""Adds up what Spark reports of one streaming query, as the report that a node takes. No clock, no network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

TEXT_CHARS_MAX = 1_000
"""The longest text that a node takes."""

State = Literal["running", "idle", "ended", "failed"]


class QueryTally:
    """One query, since the driver began to report."""

    def __init__(self, name: str) -> None:
        self.name = name[:TEXT_CHARS_MAX]
        self.state: State = "running"
        self._reason: str | None = None
        self._marks: dict[str, Any] = {}
        self._latest: dict[str, Any] = {}
        self._rows = self._written = self._batches = self._batches_ms = 0

    @property
    def is_over(self) -> bool:
        """Whether the query has ended."""
        return self.state in ("ended", "failed")

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """Take the progress of a micro-batch, or of a trigger without rows, as Spark writes it in JSON."""
        self.state, self._latest = "running", dict(progress)
        for number, source in enumerate(progress.get("sources", ())):
            mark = _mark(source.get("endOffset"))
            if mark:
                self._marks[str(number)] = mark
        rows = max(0, progress.get("numInputRows") or 0)
        self._rows += rows
        self._written += max(0, progress.get("sink", {}).get("numOutputRows") or 0)
        if rows or "addBatch" in progress.get("durationMs", {}):
            self._batches += 1
            self._batches_ms += _trigger_ms(progress)

    def idled(self) -> None:
        """Note that there was nothing to read."""
        self.state = "idle"

    def terminated(self, exception: str | None) -> None:
        """Note the end of the query, with the first line of its exception."""
        self.state = "failed" if exception else "ended"
        self._reason = exception.strip().splitlines()[0][:TEXT_CHARS_MAX] if exception and exception.strip() else None

    def report(self) -> dict[str, Any] | None:
        """Return the report for a node; None while the query has not read a topic."""
        positions: dict[str, dict[str, int]] = {}
        for mark in self._marks.values():
            for topic, offsets in mark["positions"].items():
                known = positions.setdefault(topic, dict(offsets))
                for partition, offset in offsets.items():  # two reads of one topic: the one that is further behind
                    known[partition] = min(known.get(partition, offset), offset)
        if not positions:
            return None
        latest = self._latest
        return {
            "name": self.name,
            "state": self.state,
            "positions": positions,
            "subscriptions": sorted({mark["subscription"] for mark in self._marks.values() if mark["subscription"]}),
            "sink": str(latest.get("sink", {}).get("description", ""))[:TEXT_CHARS_MAX],
            "batch": latest.get("batchId", -1),
            "batch_ms": _trigger_ms(latest),
            "rows": self._rows,
            "rows_written": self._written,
            "batches": self._batches,
            "batches_ms": self._batches_ms,
            "rows_per_s": round(float(latest.get("processedRowsPerSecond") or 0.0), 1),
            "reason": self._reason,
        }


def _trigger_ms(progress: Mapping[str, Any]) -> int:
    return max(0, int(progress.get("durationMs", {}).get("triggerExecution", 0)))


def _mark(offset: Any) -> dict[str, Any]:
    """Return positions and subscription of an offset of our source; nothing for that of another source.

    Examples
    --------
    >>> _mark('{"version": 1, "positions": {"orders": {"0": 17}}, "subscription": "s"}')
    {'positions': {'orders': {'0': 17}}, 'subscription': 's'}
    >>> _mark("None"), _mark("17")
    ({}, {})
    """
    try:
        found = msgspec.json.decode(offset) if isinstance(offset, str) else offset
    except msgspec.DecodeError:
        return {}
    if not isinstance(found, dict) or not isinstance(found.get("positions"), dict):
        return {}
    return {"positions": found["positions"], "subscription": found.get("subscription", "")}
