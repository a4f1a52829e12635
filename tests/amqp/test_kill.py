"""A node is killed again and again under clients that publish with confirms and consume with acks, through pika."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.environments import python_with
from tests.integration.worlds import Node
from tests.ports import free_port

SCRIPT = Path(__file__).parent / "clients" / "ledger.py"
LEAST = 20
"""Confirmed publishes between two kills: on a slow machine, work and not time makes the load."""
PATIENCE_S = 60


def lines(file: Path) -> list[list[str]]:
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def stored(file: Path) -> set[int]:
    return {int(number) for _, number in lines(file)}


@pytest.mark.rows("Q12", "A15")
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.long)])
def test_kills_lose_nothing_that_was_confirmed_and_keep_the_order(tmp_path: Path, kills: int):
    port = free_port()
    url = f"amqp://guest:guest@127.0.0.1:{port}/%2F?heartbeat=5"
    files = {what: tmp_path / what for what in ("produce", "consume")}

    async def confirmed(least: int) -> None:
        while len(stored(files["produce"])) < least:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def all_received() -> None:
        while not stored(files["produce"]) <= {int(line[1]) for line in lines(files["consume"])}:  # noqa: ASYNC110
            await asyncio.sleep(0.2)

    async def main() -> None:
        python = python_with("pika")
        async with Node(tmp_path / "home", "--amqp-port", str(port)) as node:
            with ExitStack() as stack:
                clients = {}
                for what, file in files.items():
                    command = [python, str(SCRIPT), what, url, "jobs", str(file)]
                    clients[what] = stack.enter_context(subprocess.Popen(command))  # noqa: ASYNC220
                    stack.callback(clients[what].kill)
                for _ in range(kills):
                    async with asyncio.timeout(PATIENCE_S):
                        await confirmed(len(stored(files["produce"])) + LEAST)
                    await node.kill()
                    await node.start()
                clients["produce"].kill()
                async with asyncio.timeout(PATIENCE_S):
                    await all_received()

    asyncio.run(main())
    check(lines(files["consume"]))


def check(received: list[list[str]]) -> None:
    """Check that redelivered messages are marked, and that others come in the order in which they were published."""
    seen: set[int] = set()
    last = -1
    for line in received:
        if line[0] != "got":
            continue
        number, again = int(line[1]), line[2] == "1"
        assert again or number not in seen, f"{number} came again and was not marked as redelivered"
        if number not in seen:
            assert number > last or again, f"{number} came after {last}"
            last = max(last, number)
        seen.add(number)
