"""What a lone message costs the client over the native wire: calls of Python functions, counted, not timed.

ADR 0025 has the budget. A call more is a decision, not an accident.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import wherry
from tests.unit.client.native.peer import Peer
from wherry.client.link.address import Address
from wherry.client.native.transport import NativeTransport
from wherry.wire.native.codec.calls import AnswerHead, encode_answer
from wherry.wire.native.codec.deliveries import encode_deliver
from wherry.wire.native.codec.publishes import ConfirmEntry, encode_confirm
from wherry.wire.native.codec.rows import DeliveredRow
from wherry.wire.native.codec.settles import encode_settled

ROUNDS = 50
PUBLISH_MAX, DELIVERY_MAX, ACK_MAX = 22, 26, 22
"""Calls of Python functions of Wherry; the resumption of a coroutine counts as one."""

SUBSCRIPTION = b'{"config": {"topic": "jobs", "name": "workers"}, "stats": {}}'


class Counted:
    """Counts calls of functions of Wherry while it is entered."""

    def __init__(self) -> None:
        self.calls = 0

    def __enter__(self) -> Counted:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        self.calls += event == "call" and "wherry" in frame.f_globals.get("__name__", "").split(".")[:1]


def client_of(peer: Peer) -> wherry.Client:
    transport = NativeTransport(Address("broker"))
    transport.session = peer.session
    peer.write = lambda data: None  # type: ignore[method-assign]  # only the client is counted
    return wherry.Client(transport)


def soon(call: Callable[..., object], *arguments: object) -> None:
    """Have a function called when the frames of this turn were written."""
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: loop.call_soon(call, *arguments))


def test_the_calls_of_a_lone_publish():
    async def main() -> float:
        peer = Peer()
        client = client_of(peer)
        answers = [encode_confirm([ConfirmEntry(number, 1, 0, number)]) for number in range(1, ROUNDS + 1)]
        with Counted() as counted:
            for answer in answers:
                soon(peer.session.data_received, answer)
                await client.publish("jobs", b"x" * 256)
        return counted.calls / ROUNDS

    assert asyncio.run(main()) <= PUBLISH_MAX


def test_the_calls_of_a_lone_delivery_and_its_ack():
    async def main() -> tuple[float, float]:
        peer = Peer()
        client = client_of(peer)
        consumer = client.consumer("jobs", "workers")
        soon(lambda: peer.send(b"".join(encode_answer(1, AnswerHead(200), [SUBSCRIPTION]))))
        async with consumer:
            while not peer.session._streams:  # noqa: ASYNC110  the session signals nothing
                await asyncio.sleep(0)
            peer.subscribed(peer.session._streams[1])
            messages = aiter(consumer)
            delivery, ack = Counted(), Counted()
            for number in range(ROUNDS):
                pushed = encode_deliver(1, [DeliveredRow(77, 0, number, 1, 1, b"x" * 256)])
                settled = encode_settled([(number + 2, 1)])
                with delivery:
                    soon(peer.session.data_received, pushed)
                    message = await anext(messages)
                with ack:
                    soon(peer.session.data_received, settled)
                    await message.ack()
            peer.session.abort()
        return delivery.calls / ROUNDS, ack.calls / ROUNDS

    delivery, ack = asyncio.run(main())
    assert delivery <= DELIVERY_MAX
    assert ack <= ACK_MAX
