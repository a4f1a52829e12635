"""A node is killed again and again under four producers and four consumers, which come back by themselves.

Nothing that was acknowledged is lost; what comes twice had no confirmed ack, and is counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

import wherry
from tests.integration.worlds import Node

PRODUCERS = CONSUMERS = 4
LEAST = 100
"""Messages stored between two kills: on a slow machine, work and not time makes the load."""


class Ledger:
    """What clients published, received and settled."""

    def __init__(self) -> None:
        self.stored: set[bytes] = set()
        self.received: Counter[bytes] = Counter()
        self.confirmed: set[bytes] = set()
        self.late: list[bytes] = []
        """Came again after its ack had been confirmed: never."""
        self.over = False


async def _produce(client: wherry.Client, name: str, ledger: Ledger) -> None:
    number = 0
    async with client.producer("jobs", name=name, batch_messages=50) as producer:
        while not ledger.over:
            payloads = [f"{name}/{number + row}".encode() for row in range(50)]
            tickets = [await producer.publish(payload) for payload in payloads]
            for ticket, payload in zip(tickets, payloads, strict=True):
                await ticket.stored()
                ledger.stored.add(payload)
            number += 50
            await asyncio.sleep(0.002)


async def _consume(client: wherry.Client, ledger: Ledger) -> None:
    async with client.consumer("jobs", "workers") as consumer:
        async for batch in consumer.consume_batches():
            payloads = batch.payloads()
            ledger.late += [payload for payload in payloads if payload in ledger.confirmed]
            ledger.received.update(payloads)
            try:
                await batch.ack()
            except (wherry.StaleLease, wherry.Unavailable):
                continue  # the node ended, or the answer was lost: whether it was settled is not known
            ledger.confirmed.update(payloads)


async def _stored(ledger: Ledger, least: int) -> None:
    while len(ledger.stored) < least:  # noqa: ASYNC110  a ledger has no event
        await asyncio.sleep(0.01)


async def _all_received(ledger: Ledger) -> None:
    while not ledger.stored <= ledger.received.keys():  # noqa: ASYNC110  a ledger has no event
        await asyncio.sleep(0.05)


@pytest.mark.rows("A15", "A16", "D20")
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.long)])
def test_kills_lose_nothing_that_was_acknowledged(tmp_path: Path, kills: int):
    async def main() -> Ledger:
        ledger = Ledger()
        async with asyncio.timeout(150), Node(tmp_path / "home") as node, wherry.connect(node.url) as client:
            await client.create_topic("jobs", partitions=4)
            retry = wherry.Retry(attempts=None, first_ms=1, cap_ms=1)
            await client.subscribe("jobs", "workers", lease_ms=2_000, retry=retry)
            work: list[Coroutine[Any, Any, None]] = [_consume(client, ledger) for _ in range(CONSUMERS)]
            consumers = [asyncio.create_task(each) for each in work]
            producers = [asyncio.create_task(_produce(client, f"p{n}", ledger)) for n in range(PRODUCERS)]
            for _ in range(kills):
                await _stored(ledger, len(ledger.stored) + LEAST)
                await node.kill()
                await node.start()
            ledger.over = True
            await asyncio.gather(*producers)
            await _all_received(ledger)
            for task in consumers:
                task.cancel()
            await asyncio.gather(*consumers, return_exceptions=True)
        return ledger

    ledger = asyncio.run(main())
    assert ledger.stored <= ledger.received.keys()
    assert ledger.late == []
    again = sum(count - 1 for count in ledger.received.values())
    print(f"{len(ledger.stored)} stored, {kills} kills, {again} came again, all of them before an ack was confirmed")
