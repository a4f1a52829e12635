"""What a scan reads, fixed when it is made: files of the archive, and offsets of the log behind them.

Whatever is published, archived or deleted later, each use of the scan reads these rows. The order of the calls
matters: the log as it begins, the manifest, the log as it ends. So a partition that was never archived begins where it
began before the manifest was read, and the log that is read last reaches at least as far as the manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from wherry.model.calls.narrowing import Narrowing
from wherry.model.errors import InvalidInput, NotFound
from wherry.spark.link import FlightLink
from wherry.spark.pipelines.archive import manifest
from wherry.spark.pipelines.archive.manifest import ArchiveFile
from wherry.spark.pipelines.archive.manifest_store import Store, store
from wherry.spark.pipelines.archive.tail import UnarchivedRange

Offsets = Mapping[int, int]


class ArchivedPart(NamedTuple):
    """Offsets of a partition that are in a file."""

    file: ArchiveFile
    start: int
    stop: int

    @property
    def partition(self) -> int:
        """Return the partition."""
        return self.file.partition


Part = ArchivedPart | UnarchivedRange


class Cut(NamedTuple):
    """The parts to read, by partition and offset."""

    topic: str
    incarnation: int
    is_queue: bool
    here: Store | None
    """The folder of the archive."""
    parts: tuple[Part, ...]
    stop: dict[int, int]
    """The offset behind the last row of each partition."""

    def check_same(self, link: FlightLink) -> None:
        """Raise `NotFound` if the topic was deleted and created again since: its offsets are other messages."""
        if link.action("extents", {"topic": self.topic})["incarnation"] != self.incarnation:
            fault = NotFound("topic", self.topic)
            fault.args = (f"topic {self.topic!r} was deleted and created again since this scan was made; scan again",)
            raise fault


def resolve(link: FlightLink, topic: str, start: Offsets, stop: Offsets, archive: str | None) -> Cut:
    """Return the parts of a topic as it is now; `start` and `stop` name offsets of some partitions."""
    here = None if archive is None else store(archive).under(manifest.folder(topic))
    began = link.action("extents", {"topic": topic})
    found = None if here is None else manifest.need(here, topic)
    extents = link.action("extents", {"topic": topic})
    check_partitions(start, extents)
    check_partitions(stop, extents)
    parts: list[Part] = []
    ends: dict[int, int] = {}
    for number, end in sorted((int(text), end) for text, end in extents["stop"].items()):
        ends[number] = last = min(end, stop.get(number, end))
        first = start.get(number, 0)
        behind = None if found is None else found.end(number)
        if behind is not None and behind > end:
            allowed = f"at least {behind} of them, as archived: this is another topic of that name"
            raise InvalidInput(f"topic {topic}", f"offsets of partition {number} up to {end}", allowed)
        for file in found.files if found is not None else ():
            low, high = max(first, file.first), min(last, file.last + 1)
            if file.partition == number and low < high:
                parts.append(ArchivedPart(file, low, high))
        begin = began["start"].get(str(number), 0) if behind is None else behind
        begin = first if found is None and number in start else max(first, begin)
        if begin < last:
            parts.append(UnarchivedRange(topic, number, begin, last))
    return Cut(topic, extents["incarnation"], extents["keep"] == "settled", here, tuple(parts), ends)


def check_partitions(given: Offsets, extents: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` unless offsets are whole numbers from 0 on, of partitions that the topic has."""
    for number, offset in given.items():
        if str(number) not in extents["stop"]:
            raise InvalidInput("start, end", number, "partitions of the topic: " + ", ".join(extents["stop"]))
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise InvalidInput("start, end", offset, "an offset, from 0 on")


def narrowed(part: Part, wanted: Narrowing) -> Part | None:
    """Return the offsets of a part that can match; None if none can."""
    low, high = wanted.offset.clip(part.start, part.stop)
    if low >= high or not wanted.partition.meets(part.partition, part.partition):
        return None
    return part._replace(start=low, stop=high)
