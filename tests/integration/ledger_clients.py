"""Clients of each wire that publish to one queue, consume from it while its node is killed, and note its answers."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count, islice
from typing import Any

from tests.amqp.raw import ACK, CONSUME, CONSUME_OK, DELIVER, Raw, long, short
from tests.amqp.wires import LASTING, confirming
from tests.native_client import SocketClient, upgraded
from tests.stomp.raw import Raw as Stomp
from wherry.wire.native.codec.settles import Verb

QUEUE, SUBSCRIPTION = "mixed", "amqp"
"""A queue of AMQP and STOMP, which is a topic and a subscription to all others."""

AT_ONCE = 5
"""Messages that a client publishes before it looks for some to consume."""

PAUSE_S, PATIENCE_S = 0.05, 20.0


class Ledger:
    """What clients sent, received and got confirmed, and by which life of the node."""

    def __init__(self) -> None:
        self.life = 0
        """Grows with each kill, before the next start."""
        self.confirmed: dict[str, list[bytes]] = {}
        """By wire: publishes that the node confirmed."""
        self.received: set[bytes] = set()
        self.acked: dict[bytes, int] = {}
        """Messages whose ack was confirmed, and by which life."""
        self.late: list[bytes] = []
        """Messages that came again after that."""
        self.faults: list[BaseException] = []
        """Of clients that ended, which they must not while the node is killed."""
        self.is_over = threading.Event()
        self._numbers = count()

    def payloads(self, wire: str) -> list[bytes]:
        """Return the next payloads of a client."""
        return [f"{wire}-{number}".encode() for number in islice(self._numbers, AT_ONCE)]

    def confirm(self, wire: str, *payloads: bytes) -> None:
        """Note publishes that were confirmed."""
        self.confirmed.setdefault(wire, []).extend(payloads)

    def receive(self, payload: bytes, life: int | None) -> None:
        """Note a message that this life of the node handed over; None if it may have been either of two.

        A slow client may look at what an earlier life sent when another client has acked that already.
        """
        if life is not None and self.acked.get(payload, life + 1) <= life:
            self.late.append(payload)
        self.received.add(payload)

    def ack(self, payload: bytes, life: int) -> None:
        """Note an ack that was confirmed."""
        self.acked[payload] = life

    @property
    def all_confirmed(self) -> set[bytes]:
        """Publishes of all wires that were confirmed."""
        return {payload for payloads in list(self.confirmed.values()) for payload in list(payloads)}

    def counts(self) -> dict[str, int]:
        """Return how many publishes each wire was confirmed, and how many acks were."""
        return {"acks": len(self.acked), **{wire: len(payloads) for wire, payloads in list(self.confirmed.items())}}


# -------------------------------------------------------------------------------------------------------------- native


async def native(ledger: Ledger, wire: str, port: int) -> None:
    """Use the native wire, over one connection after the other."""
    while not ledger.is_over.is_set():
        life = ledger.life
        try:
            client = await upgraded(("127.0.0.1", port))
        except (OSError, EOFError, TimeoutError):
            await asyncio.sleep(PAUSE_S)
            continue
        try:
            if life == ledger.life:
                await _one_life(ledger, wire, client, life)
        except TimeoutError:  # of a busy machine
            pass
        except BaseException as fault:
            ledger.faults.append(fault)
            raise
        finally:
            await client.close()


async def _one_life(ledger: Ledger, wire: str, client: SocketClient, life: int) -> None:
    stream = client.begin_subscribe(QUEUE, SUBSCRIPTION, credit=50)
    while not (client.is_closed or ledger.is_over.is_set()):
        sent = {client.begin_publish(QUEUE, payload): payload for payload in ledger.payloads(wire)}
        await _answered(client, list(sent))
        ledger.confirm(wire, *(payload for number, payload in sent.items() if number in client.answers))
        rows = list(client.rows.get(stream, ()))
        client.rows.get(stream, rows).clear()
        acks = {}
        for row in rows:
            ledger.receive(row.payload, life)
            acks[client.begin_settle(stream, Verb.ACK, [(row.token, [(row.offset, 1)])])] = row.payload
        await _answered(client, list(acks))
        for number, payload in acks.items():
            if client.answers.get(number) is True:
                ledger.ack(payload, life)
        if rows and not client.is_closed:
            client.credit(stream, len(rows))
        await asyncio.sleep(0.001)


async def _answered(client: SocketClient, numbers: list[int]) -> None:
    """Wait until requests are answered, or the connection is gone."""
    await client.until(lambda: client.is_closed or all(number in client.answers for number in numbers))


# -------------------------------------------------------------------------------------------------- clients in threads


def again_and_again(ledger: Ledger, begin: Callable[[int], Iterator[object]]) -> None:
    """Connect for each life of the node, and do one step after the other until the node is gone or all is over."""
    while not ledger.is_over.is_set():
        life = ledger.life
        try:
            for _ in begin(life):
                if ledger.is_over.is_set() or ledger.life != life:
                    break
        except (OSError, EOFError, AssertionError, http.client.HTTPException):
            ledger.is_over.wait(PAUSE_S)
        except BaseException as fault:
            ledger.faults.append(fault)
            raise


def amqp(ledger: Ledger, wire: str, url: str) -> Callable[[int], Iterator[object]]:
    """Publish with confirms, and consume; AMQP has no answer to an ack, so none of these counts as confirmed."""

    def begin(life: int) -> Iterator[object]:
        with Raw(url).opened() as raw:
            confirming(raw)
            raw.call(1, CONSUME, b"\0\0" + short(QUEUE) + short("c") + b"\0" + long(b""))
            raw.expect(CONSUME_OK)
            raw._socket.settimeout(PATIENCE_S)
            number = 0
            while True:
                payloads = ledger.payloads(wire)
                for payload in payloads:
                    raw.publish(QUEUE, payload, LASTING)
                number += len(payloads)
                _until_confirmed(ledger, raw, number, life)
                ledger.confirm(wire, *payloads)
                yield None

    return begin


def _until_confirmed(ledger: Ledger, raw: Raw, last: int, life: int) -> None:
    """Take frames until the last publish is confirmed; ack each message that comes meanwhile."""
    confirmed = tag = 0
    while confirmed < last:
        frame = raw.next()
        if frame.method == ACK:
            confirmed = int.from_bytes(frame.arguments[:8], "big")
        elif frame.method == DELIVER:
            start = 1 + frame.arguments[0]
            tag = int.from_bytes(frame.arguments[start : start + 8], "big")
            raw.next()
            ledger.receive(raw.next().payload, life)
            raw.call(1, ACK, tag.to_bytes(8, "big") + b"\0")


def stomp(ledger: Ledger, wire: str, port: int) -> Callable[[int], Iterator[object]]:
    """Publish and ack with receipts."""

    def begin(life: int) -> Iterator[object]:
        with Stomp(port) as raw:
            raw.connect()
            raw.send("SUBSCRIBE", destination=f"/queue/{QUEUE}", id="s", ack="client-individual")
            waits: dict[str, tuple[str, bytes]] = {}
            for number in count():
                for row, payload in enumerate(ledger.payloads(wire)):
                    receipt = f"{number}-{row}"
                    waits[receipt] = "publish", payload
                    raw.send("SEND", payload, destination=f"/queue/{QUEUE}", persistent="true", receipt=receipt)
                while any(what == "publish" for what, _ in waits.values()):  # acks go on meanwhile
                    _take(ledger, wire, raw, waits, life)
                yield None

    return begin


def _take(ledger: Ledger, wire: str, raw: Stomp, waits: dict[str, tuple[str, bytes]], life: int) -> None:
    """Take a frame: a message, which is acked, or the receipt of something."""
    frame = raw.next()
    if frame.command == "MESSAGE":
        ledger.receive(frame.body, life)
        receipt = f"ack {frame.headers['message-id']}"
        waits[receipt] = "ack", frame.body
        raw.send("ACK", id=frame.headers["ack"], receipt=receipt)
        return
    assert frame.command == "RECEIPT", frame
    what, payload = waits.pop(frame.headers["receipt-id"])
    if what == "ack":
        ledger.ack(payload, life)
    else:
        ledger.confirm(wire, payload)


def over_http(ledger: Ledger, wire: str, port: int) -> Callable[[int], Iterator[object]]:
    """Publish, pull and ack by requests."""

    def begin(life: int) -> Iterator[object]:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as client:

            def ask(path: str, body: str = "", kind: str = "application/json") -> Any:
                client.request("POST", f"/v1/topics/{QUEUE}/{path}", body, {"Content-Type": kind})
                answer = client.getresponse()
                content = answer.read()
                if answer.status >= 300:
                    raise http.client.HTTPException(content)
                return json.loads(content) if content else None

            while True:
                for payload in ledger.payloads(wire):
                    ask("messages", payload.decode(), "text/plain")
                    ledger.confirm(wire, payload)
                messages = ask(f"subscriptions/{SUBSCRIPTION}/pull?messages={AT_ONCE}&wait_ms=50")["messages"]
                for each in messages:
                    ledger.receive(each["payload"].encode(), life if ledger.life == life else None)
                if messages:
                    ask(
                        f"subscriptions/{SUBSCRIPTION}/ack",
                        json.dumps({"receipts": [it["receipt"] for it in messages]}),
                    )
                    for each in messages:
                        ledger.ack(each["payload"].encode(), life)
                yield None

    return begin
