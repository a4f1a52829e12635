"""stomp.py as people use it, in a process of its own. Its own suite is run beside this: all 52 tests pass."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from tests.environments import python_with
from tests.integration.worlds import Node
from tests.ports import free_port
from tests.stomp.raw import Raw
from tests.stomp.serving import running
from wherry.node.config import TlsSection

SCRIPT = Path(__file__).parent / "clients" / "stomppy.py"
CERTIFICATES = Path(__file__).parents[1] / "unit/security/certificates"

SCENARIOS = ("each_version", "ack_modes", "nack", "transactions", "durable_subscription", "heart_beats", "faults")
KILLS = 5
LEAST = 10
"""Receipts between two kills: on a slow machine, work and not time makes the load."""
PATIENCE_S = 30


def run(scenario: str, port: int, *more: str) -> None:
    command = [python_with("stomp.py-8"), str(SCRIPT), scenario, str(port), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_stomp_py(port, scenario):
    run(scenario, port)


@pytest.mark.rows("Q13")
@pytest.mark.parametrize("scenario", ["each_version", "transactions"])
def test_stomp_py_over_tls(tmp_path, scenario):
    tls = TlsSection(certificate=str(CERTIFICATES / "first.pem"), key=str(CERTIFICATES / "first.key"))
    with running(tmp_path, tls=tls) as node:
        run(scenario, node.stomp_port or 0, str(CERTIFICATES / "authority.pem"))


@pytest.mark.rows("A15")
def test_kills_lose_nothing_that_had_a_receipt(tmp_path):
    port, printed = free_port(), tmp_path / "printed"

    def stored() -> list[bytes]:
        return printed.read_bytes().split()

    async def under_load() -> None:
        least = len(stored()) + LEAST
        async with asyncio.timeout(PATIENCE_S):
            while len(stored()) < least:  # noqa: ASYNC110  another process writes
                await asyncio.sleep(0.05)

    async def main() -> None:
        async with Node(tmp_path / "home", "--stomp-port", str(port)) as node:
            with printed.open("w") as written:
                command = [python_with("stomp.py-8"), str(SCRIPT), "ledger", str(port), "/queue/kept"]
                with subprocess.Popen(command, stdout=written) as client:  # noqa: ASYNC220
                    try:
                        for _ in range(KILLS):
                            await under_load()
                            await node.kill()
                            await node.start()
                        await under_load()
                    finally:
                        client.kill()
            await asyncio.to_thread(check, port, stored())

    asyncio.run(main())


def check(port: int, stored: list[bytes]) -> None:
    """Check that all of them are there, in their order."""
    with Raw(port) as raw:
        raw.connect()
        raw.done("SEND", b"end", destination="/queue/kept")
        raw.send("SUBSCRIBE", destination="/queue/kept", id="1")
        found: list[bytes] = []
        while found[-1:] != [b"end"]:
            found.append(raw.expect("MESSAGE").body)
    assert [each for each in found if each in set(stored)] == stored
