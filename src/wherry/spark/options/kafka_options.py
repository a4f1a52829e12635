"""Kafka's options, for jobs that were written for it: as the option of Wherry that means the same.

An option that has no equal here is never ignored: its error names what does the work here.
"""

from __future__ import annotations

from collections.abc import Mapping

from wherry.model.errors import InvalidInput

ALIASES = {
    "subscribe": "topic",
    "startingtimestamp": "startingTime",
    "endingtimestamp": "endingTime",
    "maxoffsetspertrigger": "maxRowsPerBatch",
    "maxrecordsperpartition": "rowsPerTask",
}
"""Options of Kafka, in lower case, and those of Wherry that mean the same."""

ROWS = frozenset({"subscribe", "subscribepattern"})
"""Options that ask for Kafka's columns."""
NAMES = frozenset({*ALIASES, *ROWS, "includeheaders"})

HINTS = {
    "assign": "subscribe or topic, for whole topics; then filter by the column partition",
    "kafka.bootstrap.servers": "url, the broker's address of Arrow Flight, such as grpc://127.0.0.1:7072",
    "kafka.group.id": "subscription, the name of the query's subscription",
    "groupidprefix": "subscription, the name of the query's subscription",
    "startingoffsetsbytimestamp": "startingTime, one time for all partitions",
    "endingoffsetsbytimestamp": "endingTime, one time for all partitions",
    "minpartitions": "rowsPerTask, how many rows a task reads at most",
    "minoffsetspertrigger": "a trigger: .trigger(processingTime='10 seconds')",
    "maxtriggerdelay": "a trigger: .trigger(processingTime='10 seconds')",
    "fetchoffset.numretries": "retrySeconds, how long to try again",
    "fetchoffset.retryintervalms": "retrySeconds, how long to try again",
    "kafkaconsumer.polltimeoutms": "retrySeconds, how long to try again",
    "kafka.sasl": "apiKey",
    "kafka.security": "a url that begins with grpc+tls://, with ca and apiKey",
    "kafka.ssl": "a url that begins with grpc+tls://, and ca",
    "kafka.": "none: leave it out. The broker is named by url, apiKey, ca and retrySeconds",
}
"""What to use instead of an option of Kafka: by its name in lower case, or the beginning of its name."""


def translated(given: Mapping[str, str]) -> dict[str, str]:
    """Return options with Wherry's names; raise `InvalidInput` for one of Kafka's that has no equal here.

    Examples
    --------
    >>> translated({"subscribe": "orders", "maxOffsetsPerTrigger": "100"})
    {'topic': 'orders', 'maxRowsPerBatch': '100'}
    """
    found: dict[str, str] = {}
    for name, value in given.items():
        hint = _hint(name.lower())
        if hint is not None:
            raise InvalidInput(f"option {name}", value, hint)
        ours = ALIASES.get(name.lower(), name)
        if ours != name and any(ours.lower() == each.lower() for each in given):
            raise InvalidInput(f"option {name}", value, f"one of {name} and {ours}, which mean the same")
        found[ours] = value
    return found


def _hint(name: str) -> str | None:
    return next((hint for start, hint in HINTS.items() if name == start or _begins(name, start)), None)


def _begins(name: str, start: str) -> bool:
    return start.startswith("kafka.") and start != "kafka.bootstrap.servers" and name.startswith(start)
