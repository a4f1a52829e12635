"""Tables beside the log: topics, subscriptions and dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import asdict

import pyarrow as pa

from wherry.broker.port.port import BrokerPort
from wherry.model.calls.listing import DEAD_LETTERS
from wherry.model.errors import NotFound

May = Callable[[str], bool]
"""Whether the caller may read a topic."""

SUBSCRIPTIONS = pa.schema(
    [("topic", pa.string()), ("name", pa.string()), ("durable", pa.bool_())]
    + [(name, pa.int64()) for name in ("consumers", "ready", "leased", "scheduled", "dead", "lag", "lag_ms")]
)
TOPICS = pa.schema(
    [("name", pa.string()), ("order", pa.string())]
    + [(name, pa.int64()) for name in ("partitions", "messages", "bytes", "dead", "published")]
)

_SCHEMAS = {"dead": DEAD_LETTERS, "subscriptions": SUBSCRIPTIONS, "topics": TOPICS}


def schema(table: str) -> pa.Schema:
    """Return the columns of a table."""
    return _SCHEMAS[table]


async def rows(broker: BrokerPort, table: str, topic: str | None, may: May) -> AsyncIterator[pa.RecordBatch]:
    """Yield the rows of a table: of one topic, or of all that the caller may read, without topics deleted meanwhile."""
    if topic is None:
        for name in [each.name for each in broker.topics() if may(each.name)]:
            try:
                batch = _of_topic(broker, table, name)
            except NotFound:
                continue
            yield batch
    elif table == "dead":
        async for batch in broker.each_dead(topic):
            yield batch
    else:
        yield _of_topic(broker, table, topic)


def _of_topic(broker: BrokerPort, table: str, topic: str) -> pa.RecordBatch:
    stats = broker.stats(topic)
    if table == "topics":
        found = [asdict(stats) | {"published": stats.counters.get("published", 0)}]
    else:
        found = [asdict(each) for each in stats.subscriptions]
    wanted = _SCHEMAS[table]
    return pa.RecordBatch.from_pylist([{key: row[key] for key in wanted.names} for row in found], wanted)
