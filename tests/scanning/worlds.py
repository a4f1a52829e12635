"""A topic with everything that rows can have, and its archive, written without Spark."""

from __future__ import annotations

import random
import secrets
from typing import Any

import pyarrow as pa

import wherry
from tests.spark.brokers import Broker
from wherry.scanning.scan import Scan
from wherry.spark.pipelines.archive import files as archive_files
from wherry.spark.pipelines.archive import manifest
from wherry.spark.pipelines.archive.manifest_store import Store, store

KEYS = ("ann", "bob", "", "ü", 'q"x', "a\x00b")
MINUTE_MS = 60_000


class World:
    """A topic on a broker, and the folder of its archive."""

    def __init__(self, broker: Broker, folder: Any, *, partitions: int = 3, **fields: Any) -> None:
        self.broker, self.to = broker, str(folder)
        self.topic = broker.create(partitions=partitions, **{"keep": "bytes", "keep_bytes": 1 << 40, **fields})
        self.published = 0

    def scan(self, **options: Any) -> Scan:
        return wherry.scan(self.topic, url=self.broker.url, **options)

    def publish(self, count: int, chance: random.Random) -> None:
        """Publish messages whose columns are null, empty and odd now and then."""
        first = self.published

        def some(*values: Any) -> list[Any]:
            return [chance.choice(values) for _ in range(count)]

        due = some(None, None, *(1_900_000_000_000 + n * MINUTE_MS for n in range(-3, 4)))
        columns = {
            "key": pa.array(some(None, *KEYS), pa.string()),
            "id": pa.array([None if chance.random() < 0.5 else f"id-{first + n}" for n in range(count)], pa.string()),
            "priority": pa.array(some(0, 1, 7, 32_768, 65_535), pa.uint16()),
            "due": pa.array(due, pa.int64()).cast(pa.timestamp("ms", tz="UTC")),
            "headers": pa.array(some(None, [], [("kind", "order")]), pa.map_(pa.string(), pa.string())),
        }
        forms = (b'{"n": %d, "city": "Oslo"}', b'{"n": %d, "city": null}', b"{%d", b'{"n": -%d}')
        payloads = [chance.choice(forms) % (first + n) for n in range(count)]
        self.broker.publish(self.topic, payloads, **columns)
        self.published += count

    def hold(self) -> None:
        """Keep messages in a queue until `let_go`."""
        self.broker.link.action("subscribe", {"topic": self.topic, "name": "holds", "start": "earliest"})

    def let_go(self) -> None:
        """Settle everything for all subscriptions but the archive's."""
        offsets = self.extents()["stop"]
        self.broker.link.action("advance", {"topic": self.topic, "subscription": "holds", "offsets": offsets})

    def extents(self) -> dict[str, Any]:
        return self.broker.link.action("extents", {"topic": self.topic})

    @property
    def here(self) -> Store:
        return store(self.to).under(manifest.folder(self.topic))

    def archive(self, target_bytes: int = 20_000, *, days_ago: int = 0) -> None:
        """Archive what the log has and the archive has not, and settle it, as `wherry pipeline archive` does.

        With `days_ago` the archive has them as published that many days earlier, every second one another day earlier.
        """
        link, token = self.broker.link, secrets.token_hex(4)
        found = manifest.begun(self.here, self.topic, "archive", token)
        link.action("subscribe", {"topic": self.topic, "name": "archive", "start": "earliest"})
        extents = self.extents()
        covers, added = {}, []
        for text, stop in extents["stop"].items():
            start = found.end(int(text))
            start = extents["start"][text] if start is None else start
            if start < stop:
                ticket = {"topic": self.topic, "partition": int(text), "start": start, "stop": stop}
                batches = (_earlier(batch, days_ago) for batch in link.read(ticket))
                added += archive_files.write(self.here, int(text), batches, target_bytes)
                covers[int(text)] = (start, stop)
        if covers:
            manifest.append(self.here, token, covers, added, [])
            offsets = {number: stop for number, (_, stop) in covers.items()}
            link.action("advance", {"topic": self.topic, "subscription": "archive", "offsets": offsets})


def _earlier(batch: pa.RecordBatch, days: int) -> pa.RecordBatch:
    if not days:
        return batch
    published = batch.column("published").view(pa.int64()).to_numpy() - days * archive_files.DAY_US
    published[::2] -= archive_files.DAY_US
    place = batch.schema.get_field_index("published")
    return batch.set_column(place, batch.schema.field(place), pa.array(published).view(pa.timestamp("us", tz="UTC")))
