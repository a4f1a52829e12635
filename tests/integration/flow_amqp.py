"""Checks of what AMQP does with messages, over a real socket, and plants that they fail with."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.amqp import raw as amqp
from tests.amqp.wires import LASTING, confirming, declared, number, text
from tests.integration.flow_shared import one_more
from tests.integration.served import Served
from wherry.broker.calls.settle import Settler
from wherry.queueing.flow import dead_copies
from wherry.queueing.hosts.queue import Queue
from wherry.sim.patch import patched
from wherry.wire.amqp import channel as amqp_channel
from wherry.wire.amqp.server import Connection

TX_SELECT, TX_SELECT_OK, TX_COMMIT, TX_COMMIT_OK = (90, 10), (90, 11), (90, 20), (90, 21)
RETURN = (60, 50)
REQUEUE, MULTIPLE = 2, 1


@contextmanager
def channel(node: Served, heartbeat_s: int = 0) -> Iterator[amqp.Raw]:
    """Open a connection with channel 1."""
    assert node.node.amqp_url is not None
    with amqp.Raw(node.node.amqp_url).opened(heartbeat_s=heartbeat_s) as raw:
        yield raw


def filled(node: Served, queue: str, *bodies: bytes, arguments: bytes = b"") -> None:
    """Declare a queue, and have these in it."""
    with channel(node) as raw:
        confirming(raw)
        declared(raw, queue, arguments)
        for body in bodies:
            raw.publish(queue, body, LASTING)
            raw.expect(amqp.ACK)


def got(raw: amqp.Raw, queue: str, number: int = 1) -> tuple[int, bool, bytes] | None:
    """Get a message on a channel; return its tag, whether it is marked as redelivered, and its body."""
    raw.call(number, amqp.GET, b"\0\0" + amqp.short(queue) + b"\0")
    frame = raw.next()
    if frame.method == amqp.GET_EMPTY:
        return None
    assert frame.method == amqp.GET_OK, frame
    tag, again = struct.unpack_from(">QB", frame.arguments)
    raw.next()
    return tag, bool(again), raw.next().payload


def nack(raw: amqp.Raw, tag: int, flags: int) -> None:
    raw.call(1, amqp.NACK, struct.pack(">QB", tag, flags))


def consume_on(raw: amqp.Raw, number: int, queue: str, flags: int = 0) -> None:
    raw.call(number, amqp.CONSUME, b"\0\0" + amqp.short(queue) + amqp.short("c") + bytes([flags]) + amqp.long(b""))


def check_requeue(node: Served, name: str, patience_s: float) -> None:
    """Check that a requeued message comes before those behind it, marked as redelivered."""
    filled(node, name, b"first", b"second")
    with channel(node) as raw:
        found = got(raw, name)
        assert found is not None and found[1:] == (False, b"first")
        nack(raw, found[0], REQUEUE)
        found = got(raw, name)
        assert found is not None and found[2] == b"first", "a requeued message lost its place"
        assert found[1], "a requeued message was not marked as redelivered"


def check_prefetch(node: Served, name: str, patience_s: float) -> None:
    """Check that a consumer with a prefetch of two holds two: the third waits in the queue."""
    filled(node, name, b"1", b"2", b"3", b"4")
    with channel(node) as raw:
        raw.call(1, amqp.QOS, struct.pack(">IHB", 0, 2, 0))
        raw.expect(amqp.QOS_OK)
        consume_on(raw, 1, name)
        raw.expect(amqp.CONSUME_OK)
        for _ in range(2):
            raw.expect(amqp.DELIVER)
            raw.next(), raw.next()
        raw.call(1, amqp.QUEUE_DECLARE, b"\0\0" + amqp.short(name) + b"\1" + amqp.long(b""))
        assert raw.next().method == amqp.QUEUE_DECLARE_OK, "more was delivered than the prefetch"


def check_channels(node: Served, name: str, patience_s: float) -> None:
    """Check that an ack settles the message of its own channel, though another channel has one of the same tag."""
    filled(node, name, b"acked", b"kept")
    with channel(node) as raw:
        raw.open_channel(2)
        assert got(raw, name, 1) == (1, False, b"acked")
        assert got(raw, name, 2) == (1, False, b"kept")
        raw.call(1, amqp.ACK, struct.pack(">QB", 1, 0))
        for each in (1, 2):
            raw.call(each, amqp.CHANNEL_CLOSE, struct.pack(">HBHH", 200, 0, 0, 0))
            raw.expect(amqp.CHANNEL_CLOSE_OK)
        raw.open_channel(1)
        found = got(raw, name)
        assert found is not None and found[2] == b"kept", "an ack settled a message of another channel"


def check_multiple(node: Served, name: str, patience_s: float) -> None:
    """Check that a nack of all up to the second leaves the third out."""
    filled(node, name, b"1", b"2", b"3")
    with channel(node) as raw:
        tags = [found[0] for found in (got(raw, name) for _ in range(3)) if found is not None]
        nack(raw, tags[1], MULTIPLE)
        raw.call(1, amqp.ACK, struct.pack(">QB", tags[2], 0))
        raw.call(1, amqp.QUEUE_DECLARE, b"\0\0" + amqp.short(name) + b"\1" + amqp.long(b""))
        assert raw.next().method == amqp.QUEUE_DECLARE_OK, "a nack of several took one too many"


def check_exclusive(node: Served, name: str, patience_s: float) -> None:
    """Check that no other consumer is let in beside an exclusive one."""
    filled(node, name)
    with channel(node) as raw:
        raw.open_channel(2)
        consume_on(raw, 1, name, flags=4)
        raw.expect(amqp.CONSUME_OK)
        consume_on(raw, 2, name)
        answer = raw.next()
        assert answer.method == amqp.CHANNEL_CLOSE and answer.code == 403, "an exclusive consumer was not alone"


def check_amqp_commit(node: Served, name: str, patience_s: float) -> None:
    """Check that a commit publishes all of its transaction."""
    filled(node, name)
    with channel(node) as raw:
        raw.call(1, TX_SELECT)
        raw.expect(TX_SELECT_OK)
        for body in (b"1", b"2"):
            raw.publish(name, body, LASTING)
        raw.call(1, TX_COMMIT)
        raw.expect(TX_COMMIT_OK)
        assert declared(raw, name) == 2, "a commit published half"


def check_death(node: Served, name: str, patience_s: float) -> None:
    """Check that a dead letter has the reason of its death."""
    filled(node, f"{name}-dead")
    to = text("x-dead-letter-exchange", "") + text("x-dead-letter-routing-key", f"{name}-dead")
    filled(node, name, b"it", arguments=to)
    with channel(node) as raw:
        found = got(raw, name)
        assert found is not None
        nack(raw, found[0], 0)
        properties, _ = raw.got(f"{name}-dead")
        why = amqp.short("reason") + b"S" + amqp.long(b"rejected")
        assert why in properties.partition(b"x-death")[2], "a dead letter came without its reason"


def check_refusal(node: Served, name: str, patience_s: float) -> None:
    """Check that a publish which a full queue refuses is not confirmed."""
    full = number("x-max-length", 1) + text("x-overflow", "reject-publish")
    filled(node, name, b"1", arguments=full)
    with channel(node) as raw:
        confirming(raw).publish(name, b"2", LASTING)
        assert raw.next().method == amqp.NACK, "a refused publish was confirmed"


def check_return(node: Served, name: str, patience_s: float) -> None:
    """Check that a mandatory message which no queue takes comes back before its confirm."""
    with channel(node) as raw:
        confirming(raw).publish(f"{name}-none", b"it", flags=1)
        assert raw.next().method == RETURN, "a message that reached no queue did not come back"


def check_amqp_beat(node: Served, name: str, patience_s: float) -> None:
    """Check that a client which agreed on heart-beats gets them."""
    with channel(node, heartbeat_s=1) as raw:
        raw._socket.settimeout(patience_s)
        try:
            beat = raw.take(8)
        except TimeoutError:
            beat = b""
        assert beat[:1] == bytes([amqp.HEARTBEAT]), "no heart-beat came"


def off_by_one() -> Any:
    return patched(amqp_channel.Consumer, "room", one_more)


def behind() -> Any:
    """Let a requeued message wait for a minute, while others pass it."""
    return patched(
        Settler,
        "nack",
        lambda real: lambda self, parts, delay, *more, **named: real(self, parts, 60_000, *more, **named),
    )


def any_channel() -> Any:
    """Settle an ack on the channel with the highest number."""

    def make(settle: Any) -> Any:
        def wrong(self: Any, tag: int, **how: Any) -> None:
            channels = self.session.channels
            settle(channels[max(channels)], tag, **how)

        return wrong

    return patched(amqp_channel.Channel, "settle", make)


def one_too_many() -> Any:
    def make(tags_to: Any) -> Any:
        return lambda self, tag: tags_to(self, next((each for each in self.unacked if each > tag), tag))

    return patched(amqp_channel.Channel, "_tags_to", make)


@contextmanager
def not_alone() -> Iterator[None]:
    """Let a queue forget the connection that it is exclusive to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Queue, "exclusive_to", property(lambda _: None, lambda *_: None), raising=False)
        yield


def no_reason() -> Any:
    return patched(dead_copies, "_with_death", lambda _: lambda *_: [])


def all_good() -> Any:
    return patched(amqp_channel.Channel, "confirmed", lambda real: lambda self, last, refused: real(self, last, set()))


def swallowed() -> Any:
    def make(_: Any) -> Any:
        return lambda self, event, known, unconfirmed: self._confirm_unrouted(event, unconfirmed, [])

    return patched(amqp_channel.Channel, "_return_unrouted", make)


def no_amqp_beat() -> Any:
    return patched(Connection, "tuned", lambda real: lambda self, frame, channels, _: real(self, frame, channels, 0))
