"""Checks of what STOMP does with messages, over a real socket, and plants that they fail with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.integration.flow_shared import one_more
from tests.integration.served import Served
from tests.stomp import raw as stomp
from wherry.sim.patch import patched
from wherry.wire.stomp import calls as stomp_calls
from wherry.wire.stomp.greeting import HeartBeats
from wherry.wire.stomp.session import Session
from wherry.wire.stomp.subscriptions import Consumer


@contextmanager
def session(node: Served, **headers: str) -> Iterator[stomp.Raw]:
    """Log in over TCP."""
    with stomp.Raw(node.node.stomp_port or 0) as raw:
        raw.connect("1.2", **headers)
        yield raw


def sent(raw: stomp.Raw, name: str, *bodies: bytes, **headers: str) -> None:
    for body in bodies:
        raw.done("SEND", body, destination=f"/queue/{name}", persistent="true", **headers)


def subscribed(raw: stomp.Raw, name: str, **headers: str) -> None:
    raw.send("SUBSCRIBE", destination=f"/queue/{name}", **{"id": name, "ack": "client-individual", **headers})


def left(node: Served, name: str) -> list[bytes]:
    """Return all that waits in a queue."""
    with session(node) as raw:
        sent(raw, name, b"end")
        subscribed(raw, name, ack="auto")
        found: list[bytes] = []
        while found[-1:] != [b"end"]:
            found.append(raw.expect("MESSAGE").body)
    return found[:-1]


def check_stomp_again(node: Served, name: str, patience_s: float) -> None:
    """Check that a message that comes again is marked as redelivered."""
    with session(node) as raw:
        sent(raw, name, b"it")
        subscribed(raw, name)
        raw.send("NACK", id=raw.expect("MESSAGE").headers["ack"])
        assert raw.expect("MESSAGE").headers["redelivered"] == "true", "it was not marked as redelivered"


def check_stomp_prefetch(node: Served, name: str, patience_s: float) -> None:
    """Check that a subscription with a prefetch of two holds two."""
    with session(node) as raw:
        sent(raw, name, b"1", b"2", b"3", b"4")
        subscribed(raw, name, prefetch_count="2")
        assert raw.bodies(2) == [b"1", b"2"]
        raw.send("SEND", b"x", destination=f"/queue/{name}-other", receipt="r")
        assert raw.next().command == "RECEIPT", "more was sent than the prefetch"


def check_stomp_ack(node: Served, name: str, patience_s: float) -> None:
    """Check that an ack is of the subscription that its id names."""
    with session(node) as raw:
        acks = {}
        for each in (f"{name}-a", f"{name}-b"):
            sent(raw, each, each.encode())
            subscribed(raw, each)
            acks[each] = raw.expect("MESSAGE").headers["ack"]
        raw.done("ACK", id=acks[f"{name}-a"])
        raw.done("DISCONNECT")
    assert left(node, f"{name}-a") == [], "an ack was counted for another subscription"
    assert left(node, f"{name}-b") == [f"{name}-b".encode()]


def check_stomp_client(node: Served, name: str, patience_s: float) -> None:
    """Check that with `ack:client` an ack takes all up to its message, and none behind it."""
    with session(node) as raw:
        sent(raw, name, b"1", b"2", b"3")
        subscribed(raw, name, ack="client")
        acks = [raw.expect("MESSAGE").headers["ack"] for _ in range(3)]
        raw.done("ACK", id=acks[1])
        raw.done("DISCONNECT")
    assert left(node, name) == [b"3"], "an ack took one too many"


def check_stomp_commit(node: Served, name: str, patience_s: float) -> None:
    """Check that a COMMIT sends all of its transaction."""
    with session(node) as raw:
        raw.send("BEGIN", transaction="t")
        for body in (b"1", b"2"):
            raw.send("SEND", body, destination=f"/queue/{name}", persistent="true", transaction="t")
        raw.done("COMMIT", transaction="t")
    assert left(node, name) == [b"1", b"2"], "a commit published half"


def check_stomp_beat(node: Served, name: str, patience_s: float) -> None:
    """Check that a client which asked for heart-beats gets them."""
    with session(node, heart_beat="0,500") as raw:
        raw.socket.settimeout(patience_s)
        try:
            beat = raw.socket.recv(1)
        except TimeoutError:
            beat = b""
        assert beat == b"\n", "no heart-beat came"


def stomp_off_by_one() -> Any:
    return patched(Consumer, "room", one_more)


def another_subscription() -> Any:
    def make(_: Any) -> Any:
        def wrong(session: Any, *_: Any) -> Any:
            last = [each for each in session.subscriptions.values() if each.unacked][-1]
            return last, last.take_out(next(iter(last.unacked)))

        return wrong

    return patched(stomp_calls, "_messages_of", make)


def one_behind() -> Any:
    def make(take_out: Any) -> Any:
        return lambda self, tag: take_out(self, tag + 1)

    return patched(Consumer, "take_out", make)


def no_stomp_beat() -> Any:
    def make(opened: Any) -> Any:
        return lambda self, host, version, _: opened(self, host, version, HeartBeats(0, 0))

    return patched(Session, "opened", make)
