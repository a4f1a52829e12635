"""A `commitKey` that was used before: what was written under it, and whether it can be this job that runs again.

The same number of rows may be a job that a timer or a person ran again: a warning. Another number cannot be: an error.
Micro-batches that Spark repeats are told apart before, in `sink`, and never come here.
"""

from __future__ import annotations

import logging
from datetime import UTC

from wherry.model.errors import AlreadyExists, WherryError
from wherry.spark.faults import RAISED
from wherry.spark.link import FlightLink

_log = logging.getLogger("wherry.spark")

_Placed = list[tuple[str, int, int, int]]


def report_reuse(link: FlightLink, given: str, key: str, rows: int) -> None:
    """Warn that a job wrote nothing because its key was used; raise `AlreadyExists` if it had other rows to write."""
    placed: _Placed = link.action("committed", {"key": key})["placed"] or []
    before = sum(count for *_, count in placed)
    what = f"{before} rows were written under it{_where(placed)}{_when(link, placed)}"
    if before != rows:
        raise AlreadyExists(
            "commit key", given, f"{what}; this job has {rows} rows, and wrote none of them. Choose a key for each job"
        )
    _log.warning("commit key %r was used before: %s; this job wrote nothing", given, what)


def _where(placed: _Placed) -> str:
    first: dict[tuple[str, int], int] = {}
    for topic, number, base, _ in placed:
        first[topic, number] = min(base, first.get((topic, number), base))
    parts = [f"{topic!r} partition {number} from offset {base}" for (topic, number), base in first.items() if topic]
    more = f" and {len(parts) - 3} more places" if len(parts) > 3 else ""
    return " to " + ", ".join(parts[:3]) + more if parts else ""


def _when(link: FlightLink, placed: _Placed) -> str:
    """Return when the first of the rows was published, if it is still there."""
    for topic, number, base, _ in placed:
        ticket = {"topic": topic, "partition": number, "start": base, "stop": base + 1}
        try:
            for batch in link.once({**ticket, "columns": ["offset", "published"]}):
                for moment in batch.column("published").to_pylist():
                    return f" at {moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        except (*RAISED, WherryError):
            continue  # gone, or not readable with this API key
    return ""
