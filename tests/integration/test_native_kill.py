"""A node is killed again and again under clients of the native wire, alone and beside those of all other wires.

Nothing that was confirmed is lost, and nothing comes again after its ack was confirmed. Work and not time is what a
kill waits for.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import wherry
from tests.amqp.raw import Raw
from tests.amqp.wires import durable
from tests.integration.ledger_clients import (
    QUEUE,
    SUBSCRIPTION,
    Ledger,
    again_and_again,
    amqp,
    native,
    over_http,
    stomp,
)
from tests.integration.worlds import Node
from tests.ports import free_port

LEAST = 20
"""Publishes of each wire, and acks, that are confirmed between two kills."""

PATIENCE_S = 60.0

WIRES = {"native": ("native-1", "native-2", "native-3"), "mixed": ("native-1", "native-2", "amqp", "stomp", "http")}


async def work_done(ledger: Ledger, wires: tuple[str, ...]) -> None:
    """Wait until each wire was confirmed some more publishes, and the consumers some more acks."""
    before, end = ledger.counts(), time.monotonic() + PATIENCE_S
    while any(ledger.counts().get(each, 0) < before.get(each, 0) + LEAST for each in (*wires, "acks")):
        assert not ledger.faults
        assert time.monotonic() < end, f"life {ledger.life}: {before}, and now {ledger.counts()}"
        await asyncio.sleep(0.02)


async def run(home: Path, wires: tuple[str, ...], kills: int) -> Ledger:
    """Let the clients work, kill the node so often, take what is left, and return the ledger of the clients."""
    ledger, ports = Ledger(), {"amqp": free_port(), "stomp": free_port()}
    url = f"amqp://guest:guest@127.0.0.1:{ports['amqp']}/"
    flags = ("--amqp-port", str(ports["amqp"]), "--stomp-port", str(ports["stomp"]), "--flight-port", "0")
    async with Node(home, *flags) as node:
        port = urlsplit(node.url).port
        assert port is not None
        await asyncio.to_thread(declare, url)
        others = {"amqp": amqp(ledger, "amqp", url), "stomp": stomp(ledger, "stomp", ports["stomp"])}
        others["http"] = over_http(ledger, "http", port)
        threads = [threading.Thread(target=again_and_again, args=(ledger, others[it])) for it in wires if it in others]
        for thread in threads:
            thread.start()
        tasks = [asyncio.create_task(native(ledger, each, port)) for each in wires if each not in others]
        try:
            for _ in range(kills):
                await work_done(ledger, wires)
                await node.kill()
                ledger.life += 1
                await node.start()
        finally:
            ledger.is_over.set()
            await asyncio.gather(*tasks)
            for thread in threads:
                await asyncio.to_thread(thread.join)
            await node.kill()
        ledger.life += 1
        await node.start()
        await drain(node.url, ledger)
    return ledger


def declare(url: str) -> None:
    with Raw(url).opened() as raw:
        durable(raw, QUEUE)


async def drain(url: str, ledger: Ledger) -> None:
    """Take what is left after a last kill: nothing of it was acked."""
    async with wherry.connect(url) as client:
        while batch := await client.pull(QUEUE, SUBSCRIPTION):
            for payload in batch.payloads():
                ledger.receive(payload, ledger.life)
            with suppress(wherry.StaleLease):
                await batch.ack()


@pytest.mark.rows("A15", "A16", "D14", "D20")
@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.long)])
@pytest.mark.parametrize("load", WIRES)
def test_nothing_confirmed_is_lost_and_nothing_acked_comes_back_when_the_node_is_killed(tmp_path, load, kills):
    ledger = asyncio.run(run(tmp_path / "home", WIRES[load], kills))
    assert ledger.all_confirmed <= ledger.received
    assert ledger.late == []
    print(f"{load}: {kills} kills, confirmed {ledger.counts()}, received {len(ledger.received)}")
