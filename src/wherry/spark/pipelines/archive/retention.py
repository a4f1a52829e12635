"""What a topic keeps: a check before a job starts, and an answer to where messages are after one.

A queue (`keep="settled"`) deletes a message when its last durable subscription has settled it. A job that is the only
subscription therefore empties the queue, also for consumers that subscribe later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from wherry.model.errors import Forbidden, HistoryLost, WherryError
from wherry.spark.link import FlightLink
from wherry.spark.pipelines.archive import manifest
from wherry.spark.pipelines.archive.manifest_store import Store
from wherry.spark.pipelines.replay import ledger as replay_ledger

AT = "at"
_NOTE = pa.schema([("payload", pa.binary()), ("key", pa.string()), ("headers", pa.map_(pa.string(), pa.string()))])


class OnlyReader(WherryError):
    """A job would empty a queue: no other subscription holds its messages, and `--consume` was not given."""

    code = "only-reader"


class Archived(msgspec.Struct, frozen=True):
    """A note that a topic is archived, and where."""

    at: str


def check_readers(link: FlightLink, topics: Collection[str], what: str) -> None:
    """Raise `OnlyReader` if one of the topics is a queue without a durable subscription: the job would be the first."""
    alone = [topic for topic in topics if _is_alone(link, topic)]
    if alone:
        raise OnlyReader(
            f"{', '.join(alone)}: a queue without a subscription. {what} would be its only reader, so each message"
            " is deleted from the topic once the job has read it, and a later consumer, replay or job does not find it."
            f" --consume allows that; wherry subscription create {alone[0]} NAME, first, keeps messages for the"
            " consumers of that subscription; a topic that is made with --keep age --keep-for 7d keeps them for all"
        )


def _is_alone(link: FlightLink, topic: str) -> bool:
    if not is_queue(link, topic):
        return False
    return not any(each["durable"] for each in link.action("stats", {"topic": topic})["subscriptions"])


def is_queue(link: FlightLink, topic: str) -> bool:
    """Return whether the topic deletes messages once they are settled."""
    return bool(link.action("extents", {"topic": topic}).get("keep") == "settled")


def note_archive(link: FlightLink, topic: str, here: Store) -> None:
    """Write a note of where a topic is archived, for users who miss its messages, if the client has the right."""
    row = {"payload": msgspec.json.encode(Archived(here.plain)), "key": _key(topic), "headers": [("part", AT)]}
    try:
        replay_ledger.make_topic(link)
        link.put({"topic": replay_ledger.JOBS}, _NOTE, iter([pa.RecordBatch.from_pylist([row], _NOTE)]))
    except Forbidden:
        return


def _key(topic: str) -> str:
    return f"archive/{manifest.folder(topic)}"


def with_whereabouts(link: FlightLink, lost: HistoryLost) -> HistoryLost:
    """Return the error, with a text that adds where the messages are."""
    lost.args = (f"{lost}; {_whereabouts(link, lost.topic)}",)
    return lost


def _whereabouts(link: FlightLink, topic: str) -> str:
    places = [msgspec.json.decode(payload, type=Archived).at for _, payload in replay_ledger.notes(link, _key(topic))]
    if places:
        folder = places[-1].rpartition("/")[0]
        return f"it is archived at {folder}: --archive {folder} reads it from there"
    keep = link.action("extents", {"topic": topic}).get("keep")
    if keep != "settled":
        return f"the topic keeps messages by {keep}, and that time or size was over"
    readers = [each["name"] for each in link.action("stats", {"topic": topic})["subscriptions"] if _acked(each)]
    by = " by " + ", ".join(readers) if readers else " by subscriptions that are gone"
    return f"the topic is a queue, and it was settled{by}"


def _acked(subscription: Mapping[str, Any]) -> int:
    return int(subscription["counters"].get("acked", 0))
