"""Thousands of gets that come at once: each is answered in its turn, and others have theirs."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from tests.amqp.raw import CONTENT, GET, GET_EMPTY, GET_OK, METHOD, Raw, short
from tests.amqp.wires import LASTING, broker_of, connection_of, counts, declared, durable, served, until
from wherry.queueing.hosts.queue import Queue
from wherry.wire.amqp import server as server_module
from wherry.wire.amqp.server import CALLS_MAX, WRITE_HIGH_BYTES

FULL, GETS = 1_000, 20_000
"""Messages in the queue, and gets: more than may wait at a time."""

WAITING, READ = 1_000, 16_000
"""How many may wait here, and more than one read of a socket brings: what may come after the bound was reached."""


def get_frames(queue: str, count: int) -> bytes:
    """Return gets that want to be acked."""
    payload = struct.pack(">HH", *GET) + b"\0\0" + short(queue) + b"\0"
    return (struct.pack(">BHI", METHOD, 1, len(payload)) + payload + b"\xce") * count


def answers(raw: Raw, count: int) -> list[tuple[int, bytes] | None]:
    """Return delivery tag and body of what each get found; None for nothing."""
    found: list[tuple[int, bytes] | None] = []
    for _ in range(count):
        frame = raw.next()
        if frame.method == GET_EMPTY:
            found.append(None)
            continue
        assert frame.method == GET_OK, frame
        header = raw.next()
        assert header.kind == CONTENT
        found.append((struct.unpack_from(">Q", frame.arguments)[0], raw.next().payload))
    return found


@pytest.mark.rows("Q12")
def test_every_get_of_a_flood_is_answered_in_order_and_others_have_their_turn(monkeypatch):
    most = {"gets in a turn": 0, "waiting": 0}
    gets = 0
    get = Queue.get

    async def counted(queue: Queue) -> Any:
        nonlocal gets
        gets += 1
        return await get(queue)

    async def watch(connection: Any) -> None:
        """Look in each turn of the loop."""
        nonlocal gets
        while True:
            most["gets in a turn"] = max(most["gets in a turn"], gets)
            most["waiting"] = max(most["waiting"], len(connection._waiting))
            gets = 0
            await asyncio.sleep(0)

    def other_client(other: Raw) -> int:
        """Do round trips beside the flood."""
        return sum(declared(other, "beside") for _ in range(20))

    async def main() -> None:
        async with served() as (server, url):
            raw = await asyncio.to_thread(lambda: Raw(url).opened())
            other = await asyncio.to_thread(lambda: Raw(url).opened())
            with raw, other:
                await asyncio.to_thread(filled, raw, FULL, 10)
                monkeypatch.setattr(Queue, "get", counted)
                monkeypatch.setattr(server_module, "WAITING_MAX", WAITING)
                watching = asyncio.create_task(watch(connection_of(server, raw)))
                sending = asyncio.create_task(asyncio.to_thread(raw.send, get_frames("q", GETS)))
                beside = asyncio.create_task(asyncio.to_thread(other_client, other))
                found = await asyncio.to_thread(answers, raw, GETS)
                await sending
                assert await beside == 0
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                bodies = [(at + 1, at.to_bytes(4, "big") + bytes(6)) for at in range(FULL)]
                assert found == bodies + [None] * (GETS - FULL)

    asyncio.run(main())
    assert 0 < most["gets in a turn"] <= 2 * CALLS_MAX
    assert most["waiting"] < WAITING + READ


def filled(raw: Raw, count: int, size: int) -> None:
    """Fill a queue with so many messages of so many bytes, which begin with their number."""
    durable(raw, "q")
    for at in range(count):
        raw.publish("q", at.to_bytes(4, "big") + bytes(size - 4), LASTING)
    assert declared(raw, "q") == count


def test_gets_of_a_client_that_does_not_read_wait_and_hold_nothing_back_from_others():
    count, size = 300, 100_000

    async def main() -> None:
        async with served() as (server, url):
            deaf = await asyncio.to_thread(lambda: Raw(url).opened())
            other = await asyncio.to_thread(lambda: Raw(url).opened())
            with deaf, other:
                await asyncio.to_thread(filled, deaf, count, size)
                connection = connection_of(server, deaf)
                await asyncio.to_thread(deaf.send, get_frames("q", count - 1))
                await until(lambda: connection.is_write_paused)
                assert connection._transport.get_write_buffer_size() < 2 * WRITE_HIGH_BYTES + size
                ready, leased = counts(broker_of(server), "q")
                assert (ready + leased, ready > 1) == (count, True)
                first = await asyncio.to_thread(other.got, "q")
                found = await asyncio.to_thread(answers, deaf, count - 1)
                got = [int.from_bytes(each[1][:4], "big") for each in found if each is not None]
                missing = int.from_bytes(first[1][:4], "big")
                assert got == [at for at in range(count) if at != missing]

    asyncio.run(main())
