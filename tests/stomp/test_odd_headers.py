"""Every command with every subset of its headers, empty or not: it is done, or is a fault of the client.

    python -m tests.stomp.test_odd_headers PORT --count 100000

takes headers and values by chance, on a node that is there.
"""

from __future__ import annotations

import argparse
import random
import socket
from collections.abc import Iterator
from itertools import islice, product

import pytest

from tests.stomp.raw import PATIENCE_S, frame

VALUES = {
    "destination": (
        "/queue/odd",
        "/topic/odd",
        "odd",
        "/temp-queue/a",
        "/reply-queue/odd",
        "/exchange/amq.topic/",
        "/",
    ),
    "id": ("s", "never", "T_s@@session-x@@1", "T_s@@@@", "@@", "/temp-queue/a"),
    "message-id": ("T_s@@session-x@@1", "T_never@@x@@1", "Q_/queue/odd@@x@@1"),
    "subscription": ("s", "never"),
    "transaction": ("t", "never"),
    "receipt": ("r",),
    "ack": ("client", "client-individual", "auto", "maybe"),
    "durable": ("true", "no"),
    "auto-delete": ("false", "true"),
    "exclusive": ("true",),
    "persistent": ("true",),
    "prefetch-count": ("1", "-1"),
    "selector": ("a = 1",),
    "x-queue-name": ("odd-named",),
    "x-max-length": ("5", "many"),
    "x-queue-type": ("classic", "stream", "none"),
    "activemq.subscriptionName": ("mine",),
    "wherry-buffer-messages": ("10", "0"),
    "wherry-due": ("1", "soon"),
    "reply-to": ("/temp-queue/a", "/queue/odd", "odd"),
    "requeue": ("false",),
    "expires": ("1", "soon"),
    "priority": ("4", "400"),
    "content-length": ("0", "99"),
    "accept-version": ("1.2", "1.0,1.1", "9"),
    "login": ("guest", "nobody"),
    "passcode": ("guest", "wrong"),
    "host": ("/", "nowhere"),
    "heart-beat": ("1000,0", "1"),
    "client-id": ("me",),
}
"""Of headers; the first is a good one."""

OF_COMMAND = {
    "CONNECT": ("accept-version", "login", "passcode", "host", "heart-beat"),
    "SEND": ("destination", "transaction", "receipt", "reply-to"),
    "SUBSCRIBE": ("destination", "id", "ack", "durable", "receipt"),
    "UNSUBSCRIBE": ("destination", "id", "durable", "receipt"),
    "ACK": ("id", "message-id", "subscription", "transaction", "receipt"),
    "NACK": ("id", "message-id", "subscription", "transaction", "receipt"),
    "BEGIN": ("transaction", "receipt"),
    "COMMIT": ("transaction", "receipt"),
    "ABORT": ("transaction", "receipt"),
    "DISCONNECT": ("receipt",),
}


def session(command: str, headers: dict[str, str], version: str) -> bytes:
    """Return a session in which something can be settled, committed and left, with one odd frame, to the end."""
    odd = frame(command, b"", **headers)
    if command == "CONNECT":
        return odd + frame("DISCONNECT", receipt="end")
    accept = {} if version == "1.0" else {"accept_version": version}
    before = (
        frame("CONNECT", login="guest", passcode="guest", client_id="me", **accept)
        + frame("SUBSCRIBE", destination="/queue/odd", id="s", ack="client")
        + frame("SUBSCRIBE", destination="/topic/odd", id="d", durable="true", auto_delete="false")
        + frame("BEGIN", transaction="t")
    )
    return before + odd + frame("DISCONNECT", receipt="end")


def answered(port: int, several: list[bytes]) -> Iterator[bytes]:
    """Yield what the broker answers to each of these sessions, at once, until it hangs up."""
    sockets = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) for _ in several]
    try:
        for each, data in zip(sockets, several, strict=True):
            each.sendall(data)
        for each in sockets:
            got = b""
            while more := _read(each):
                got += more
            yield got
    finally:
        for each in sockets:
            each.close()


def _read(one: socket.socket) -> bytes:
    try:
        return one.recv(1 << 16)
    except ConnectionError:  # the broker answered, and hung up while we were still sending
        return b""


def judged(port: int, several: Iterator[bytes]) -> int:
    """Try all of these; how many there were."""
    count = 0
    while some := list(islice(several, 32)):
        for data, got in zip(some, answered(port, some), strict=True):
            assert b"internal_error" not in got, (data, got)
            assert got.startswith((b"CONNECTED\n", b"ERROR\n")), (data, got)
            ended = b"RECEIPT\nreceipt-id:end\n" in got or data.count(b"DISCONNECT\n") > 1
            assert ended or b"ERROR\n" in got, (data, got)
            count += 1
    return count


def every_subset(command: str, version: str) -> Iterator[bytes]:
    """Yield sessions with each header missing, empty or good, in every combination."""
    names = OF_COMMAND[command]
    for values in product(*((None, "", VALUES[name][0]) for name in names)):
        yield session(command, {k: v for k, v in zip(names, values, strict=True) if v is not None}, version)


def by_chance(seed: int) -> Iterator[bytes]:
    """Yield sessions with any headers of any values."""
    chance = random.Random(seed)
    while True:
        command = chance.choice(sorted(OF_COMMAND))
        own = [name for name in OF_COMMAND[command] if chance.random() < 0.7]
        names = {*own, *chance.sample(sorted(VALUES), chance.randint(0, 4))} - {"content-length"}
        headers = {name: chance.choice(("", *VALUES[name])) for name in sorted(names)}
        yield session(command, headers, chance.choice(("1.0", "1.1", "1.2")))


@pytest.mark.rows("Q2")
@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
@pytest.mark.parametrize("command", [each for each in OF_COMMAND if each != "CONNECT"])
def test_headers_may_be_empty_or_missing_in_every_command(port, command, version):
    assert judged(port, every_subset(command, version)) == 3 ** len(OF_COMMAND[command])


@pytest.mark.rows("Q2")
def test_headers_may_be_empty_or_missing_in_connect(port):
    assert judged(port, every_subset("CONNECT", "")) == 243


@pytest.mark.rows("Q2")
@pytest.mark.parametrize("seed", range(4))
def test_any_headers_with_any_values(port, seed):
    assert judged(port, islice(by_chance(seed), 200)) == 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(judged(given.port, islice(by_chance(given.seed), given.count)), "frames, and no fault of the broker")


if __name__ == "__main__":
    main()
