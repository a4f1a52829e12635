"""A node is killed under transactions: each is there as a whole, or not at all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from tests.integration.worlds import Node
from tests.ports import free_port
from tests.stomp.raw import Raw, frame

SENT = 3
"""Messages of a transaction to each of two queues."""


def committing(port: int, ended: threading.Event, committed: list[int]) -> None:
    """Commit transactions: each takes a token from a queue, sends it back, and notes it in two other queues."""
    number = 0
    while not ended.is_set():
        try:
            with Raw(port, patience_s=5) as raw:
                raw.connect()
                raw.send("SUBSCRIBE", destination="/queue/tokens", id="t", ack="client-individual")
                token = raw.expect("MESSAGE")
                while not ended.is_set():
                    number += 1
                    name = str(number)
                    raw.send("BEGIN", transaction=name)
                    for place in ("/queue/left", "/queue/right"):
                        raw.socket.sendall(frame("SEND", name.encode(), destination=place, transaction=name) * SENT)
                    raw.send("ACK", id=token.headers["ack"], transaction=name)
                    raw.send("SEND", b"token", destination="/queue/tokens", transaction=name, persistent="true")
                    raw.send("COMMIT", transaction=name, receipt=name)
                    answers = [raw.next(), raw.next()]
                    assert [each.headers["receipt-id"] for each in answers if each.command == "RECEIPT"] == [name]
                    committed.append(number)
                    (token,) = [each for each in answers if each.command == "MESSAGE"]
        except (OSError, EOFError):
            ended.wait(0.05)


def everything(port: int, name: str) -> list[bytes]:
    with Raw(port) as raw:
        raw.connect()
        raw.done("SEND", b"end", destination=name)
        raw.send("SUBSCRIBE", destination=name, id="1")
        found: list[bytes] = []
        while found[-1:] != [b"end"]:
            found.append(raw.expect("MESSAGE").body)
        return found[:-1]


@pytest.mark.rows("A15")
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.long)])
def test_a_transaction_is_all_or_nothing_over_kills(tmp_path, kills):
    port = free_port()
    committed: list[int] = []
    ended = threading.Event()

    async def main(after: Callable[[], None]) -> None:
        async with Node(tmp_path / "home", "--stomp-port", str(port)) as node:
            await asyncio.to_thread(first_token, port)
            client = threading.Thread(target=committing, args=(port, ended, committed))
            client.start()
            try:
                for _ in range(kills):
                    before = len(committed)
                    async with asyncio.timeout(30):
                        while len(committed) < before + 5:  # noqa: ASYNC110  another thread counts
                            await asyncio.sleep(0.02)
                    await node.kill()
                    await node.start()
            finally:
                ended.set()
                await asyncio.to_thread(client.join)
            await asyncio.to_thread(after)

    def check() -> None:
        left, right = everything(port, "/queue/left"), everything(port, "/queue/right")
        assert left == right
        numbers = [int(each) for each in left]
        assert sorted(numbers) == sorted(list(dict.fromkeys(numbers)) * SENT)
        assert set(committed) <= set(numbers)
        assert everything(port, "/queue/tokens") == [b"token"]

    asyncio.run(main(check))
    assert len(committed) >= 5 * kills


def first_token(port: int) -> None:
    with Raw(port) as raw:
        raw.connect()
        raw.done("SEND", b"token", destination="/queue/tokens", persistent="true")
