"""Frames of the native wire, version 1: by name, the values and how they are encoded and decoded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from wherry.wire.native.codec import calls, deliveries, documents, publishes, settles
from wherry.wire.native.codec.frames import Kind, encode_frame
from wherry.wire.native.codec.publishes import Confirmed, ConfirmEntry, PublishRequest, PublishTerms
from wherry.wire.native.codec.rows import PLAIN, DeliveredRow, RowFields
from wherry.wire.native.codec.settles import RenewRequest, SettleRequest, SettleTerms, Verb

FILE = Path(__file__).parent / "wire_v1.txt"
"""A line for each frame: its name, and its bytes in hex."""


class GoldenFrame(NamedTuple):
    """A frame: the side that sends it, its bytes as encoded now, its header, and the value of its body."""

    side: Any
    data: bytes
    header: tuple[int, int, int]
    """Kind, flags and id."""
    value: Any
    decode: Callable[[bytes], Any]


def _document(kind: Any) -> Callable[[bytes], Any]:
    return lambda body: documents.decode_document("server", kind, body)


def _joined(chunks: list[Any]) -> bytes:
    return b"".join(map(bytes, chunks))


def _call(side: str) -> Callable[[bytes], Any]:
    def decode(body: bytes) -> Any:
        head, rest = calls.decode_call(body) if side == "client" else calls.decode_answer(body)
        return head, bytes(rest)

    return decode


ALL_FIELDS = RowFields("k1", [("a", "1"), ("ü", "")], 7, 1_700_000_000_000, 1_700_000_060_000, "id-1", b"\x00\xff")
OPTIONS = documents.encode_options(PublishTerms(persistent=False, producer="p", sequence=3, fingerprint=4))
NACK = documents.encode_options(SettleTerms(delay_ms=500, error="no"))
PROBLEM = (
    b'{"type":"urn:wherry:not-found","title":"Not found","status":404,"code":"not-found",'
    b'"detail":"no topic named \'x\'"}'
)
HELLO = documents.ClientHello(name="example", features=("arrow",), heartbeat_ms=20_000)
SERVER_HELLO = documents.ServerHello(
    name="wherry", features=("arrow",), heartbeat_ms=20_000, limits={"rows": 1_024, "streams": 256, "calls": 1_024}
)
SUBSCRIBE = documents.SubscribeTerms(topic="jobs", subscription="workers", credit=100, create={})
SUBSCRIBED = documents.StreamTerms(consumer="ann", lease_ms=30_000)
CALL = calls.CallHead("PUT", "/v1/topics/jobs", {"content-type": "application/json"})
ANSWER = calls.AnswerHead(200, {"content-type": "application/json"})
ROWS = [
    DeliveredRow(77, 0, 12, 1_700_000_000_000_001, 1, b"hi"),
    DeliveredRow(77, 0, 13, 1_700_000_000_000_002, 2, b"", ALL_FIELDS),
    DeliveredRow(78, 1, 5, 1_700_000_000_000_003, 1, b"yo"),
]
ENTRIES = [
    ConfirmEntry(1, 3, 0, 90, Confirmed.DURABLE),
    ConfirmEntry(7, 1, 2, 4, Confirmed.DURABLE | Confirmed.PLACED, 1, ((2, 4, 1), (0, 93, 2))),
    ConfirmEntry(8, 1, 0, 6, Confirmed.REPEATED),
]
PARTS: list[settles.SettlePart] = [(77, [(12, 2), (20, 1)]), (78, [])]

FRAMES: dict[str, GoldenFrame] = {
    "hello-client": GoldenFrame(
        "client", documents.encode_hello(HELLO), (Kind.HELLO, 0, 0), HELLO, _document(documents.ClientHello)
    ),
    "hello-server": GoldenFrame(
        "server", documents.encode_hello(SERVER_HELLO), (1, 0, 0), SERVER_HELLO, _document(documents.ServerHello)
    ),
    "ping": GoldenFrame("client", encode_frame(Kind.PING, 7), (2, 0, 7), b"", bytes),
    "pong": GoldenFrame("server", encode_frame(Kind.PONG, 7), (3, 0, 7), b"", bytes),
    "goodbye": GoldenFrame(
        "server",
        documents.encode_goodbye("the broker is closing"),
        (4, 0, 0),
        documents.GoodbyeDocument(reason="the broker is closing"),
        _document(documents.GoodbyeDocument),
    ),
    "error-of-a-request": GoldenFrame("server", documents.encode_error(3, PROBLEM), (5, 0, 3), PROBLEM, bytes),
    "error-of-a-stream": GoldenFrame(
        "server", documents.encode_error(1, PROBLEM, stream=True), (5, 4, 1), PROBLEM, bytes
    ),
    "moved": GoldenFrame(
        "server",
        documents.encode_moved(3, "jobs", "https://b.example.org:7070"),
        (6, 0, 3),
        documents.MovedDocument(topic="jobs", url="https://b.example.org:7070"),
        _document(documents.MovedDocument),
    ),
    "moved-of-a-stream": GoldenFrame(
        "server",
        documents.encode_moved(1, "jobs", "https://b.example.org:7070", stream=True),
        (6, 4, 1),
        documents.MovedDocument(topic="jobs", url="https://b.example.org:7070"),
        _document(documents.MovedDocument),
    ),
    "publish-one": GoldenFrame(
        "client",
        publishes.encode_publish(1, "jobs", [b"hi"]),
        (0x10, 0, 1),
        PublishRequest("jobs", b"", [b"hi"], None, None),
        lambda body: publishes.decode_publish(0, body),
    ),
    "publish-rows": GoldenFrame(
        "client",
        publishes.encode_publish(2, "jobs", [b"hi", b""], [PLAIN, ALL_FIELDS], OPTIONS, quiet=True),
        (0x10, 2, 2),
        PublishRequest("jobs", OPTIONS, [b"hi", b""], [PLAIN, ALL_FIELDS], None),
        lambda body: publishes.decode_publish(2, body),
    ),
    "publish-arrow": GoldenFrame(
        "client",
        _joined(publishes.encode_publish_arrow(3, "jobs", [b"an Arrow stream"], OPTIONS)),
        (0x10, 1, 3),
        PublishRequest("jobs", OPTIONS, [], None, memoryview(b"an Arrow stream")),
        lambda body: publishes.decode_publish(1, body),
    ),
    "confirm": GoldenFrame(
        "server", publishes.encode_confirm(ENTRIES), (0x11, 0, 0), ENTRIES, publishes.decode_confirm
    ),
    "subscribe": GoldenFrame(
        "client",
        documents.encode_subscribe(1, SUBSCRIBE),
        (0x20, 0, 1),
        SUBSCRIBE,
        _document(documents.SubscribeTerms),
    ),
    "subscribed": GoldenFrame(
        "server",
        documents.encode_subscribed(1, SUBSCRIBED),
        (0x21, 0, 1),
        SUBSCRIBED,
        _document(documents.StreamTerms),
    ),
    "credit": GoldenFrame("client", deliveries.encode_credit(1, 50), (0x22, 0, 1), 50, deliveries.decode_credit),
    "deliver-one": GoldenFrame(
        "server", deliveries.encode_deliver(1, ROWS[:1]), (0x23, 0, 1), ROWS[:1], deliveries.decode_deliver
    ),
    "deliver-rows": GoldenFrame(
        "server", deliveries.encode_deliver(1, ROWS), (0x23, 0, 1), ROWS, deliveries.decode_deliver
    ),
    "deliver-arrow": GoldenFrame(
        "server",
        _joined(deliveries.encode_deliver_arrow(1, [b"an Arrow stream"])),
        (0x23, 1, 1),
        b"an Arrow stream",
        bytes,
    ),
    "cancel-stream": GoldenFrame("client", documents.encode_cancel(1, stream=True), (0x24, 4, 1), b"", bytes),
    "cancel-call": GoldenFrame("client", documents.encode_cancel(9, stream=False), (0x24, 0, 9), b"", bytes),
    "settle-ack-one": GoldenFrame(
        "client",
        settles.encode_settle(4, 1, Verb.ACK, [(77, [(12, 1)])]),
        (0x30, 0, 4),
        SettleRequest(1, 1, b"", [(77, [(12, 1)])]),
        settles.decode_settle,
    ),
    "settle-nack": GoldenFrame(
        "client",
        settles.encode_settle(5, 1, Verb.NACK, PARTS, NACK),
        (0x30, 0, 5),
        SettleRequest(1, 2, NACK, PARTS),
        settles.decode_settle,
    ),
    "settled": GoldenFrame(
        "server", settles.encode_settled([(4, 2), (9, 1)]), (0x31, 0, 0), [(4, 2), (9, 1)], settles.decode_settled
    ),
    "renew": GoldenFrame(
        "client",
        settles.encode_renew(6, 1, [77, 78], 60_000),
        (0x32, 0, 6),
        RenewRequest(1, 60_000, [77, 78]),
        settles.decode_renew,
    ),
    "call": GoldenFrame(
        "client",
        _joined(calls.encode_call(9, CALL, [b'{"partitions":2}'])),
        (0x40, 0, 9),
        (CALL, b'{"partitions":2}'),
        _call("client"),
    ),
    "answer": GoldenFrame(
        "server", _joined(calls.encode_answer(9, ANSWER, [b"{}"])), (0x41, 0, 9), (ANSWER, b"{}"), _call("server")
    ),
}


def main() -> None:
    """Write the file. From the first release on its lines never change; new ones may be added."""
    FILE.write_text("".join(f"{name} {frame.data.hex()}\n" for name, frame in FRAMES.items()), encoding="utf-8")


if __name__ == "__main__":
    main()
