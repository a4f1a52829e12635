"""Answers of the native wire as the values that callers get."""

from __future__ import annotations

import numpy as np

from wherry.client.link.transport import ClientResponse
from wherry.model.calls.publish import Published
from wherry.model.catalog.topic import Mesh
from wherry.model.limits import OFFSET_MAX
from wherry.wire.native.codec.calls import AnswerHead
from wherry.wire.native.codec.faults import WireFault
from wherry.wire.native.codec.publishes import Confirmed, ConfirmEntry


def published_by(entry: ConfirmEntry, offset: int, messages: int, dead_from: int | None) -> Published:
    """Return where the messages of one request of an entry are, from its first offset on."""
    flags = entry.flags
    durable, repeated = flags & Confirmed.DURABLE != 0, flags & Confirmed.REPEATED != 0
    mesh: Mesh = "flow" if flags & Confirmed.FLOW else "safe"
    if entry.places:
        return _placed(entry, repeated=repeated, durable=durable, mesh=mesh)
    dead = 0 if dead_from is None else max(0, offset + messages - max(offset, dead_from))
    partition = entry.partition
    if messages == 1:
        return Published(np.array((partition,)), np.array((offset,)), repeated, dead, durable, mesh)
    return Published(np.full(messages, partition), np.arange(offset, offset + messages), repeated, dead, durable, mesh)


def check_places(entry: ConfirmEntry, messages: object) -> None:
    """Raise if an entry names offsets that cannot be, or not places of all messages of its one request."""
    last = max([entry.offset, *(first for _, first, _ in entry.places)])
    if last > OFFSET_MAX:
        raise WireFault("server", "offset", last, f"at most {OFFSET_MAX}")
    placed = sum(count for _, _, count in entry.places)
    if entry.requests != 1 or messages != placed:
        raise WireFault("server", "places", placed, f"those of the {messages} messages of one request")


def _placed(entry: ConfirmEntry, *, repeated: bool, durable: bool, mesh: Mesh) -> Published:
    counts = [count for _, _, count in entry.places]
    return Published(
        np.repeat(np.array([partition for partition, _, _ in entry.places], np.int64), counts),
        np.concatenate([np.arange(first, first + count) for _, first, count in entry.places]),
        repeated,
        entry.dead,
        durable,
        mesh,
    )


def answered(head: AnswerHead, body: memoryview) -> ClientResponse:
    """Return an ANSWER as the answer of a request."""
    headers = head.headers
    answer = ClientResponse(head.status, headers.get("content-type", ""), body)
    if (after := headers.get("retry-after", "")).isdigit():
        answer.retry_after_s = float(after)
    answer.following = headers.get("wherry-next")
    return answer
