"""`kill -9`: a lost call that was kept is there afterwards, and is sent again with the id that it had."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from tests.integration.shell import PATIENCE_S
from wherry.service.lost.log import LostLog
from wherry.service.lost.repeats import Repeats

WORKER = [sys.executable, "-m", "tests.integration.lost_worker"]


@pytest.mark.rows("P15")
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.long)])
def test_what_was_kept_survives_a_kill(tmp_path, kills):
    async def ids(folder):
        async with LostLog(folder) as log:
            return [each.id async for each in log.calls()], [each.body async for each in log.calls()]

    for at in range(kills):
        folder = tmp_path / f"lost-{at}"
        with subprocess.Popen([*WORKER, "keep", str(folder)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            kept = [process.stdout.readline().strip() for _ in range(10 + 37 * at)]
            process.send_signal(signal.SIGKILL)
            kept += process.stdout.read().split()
        assert kept[0] == "call-0"
        found, bodies = asyncio.run(ids(folder))
        # The last one may have been stored and not printed.
        assert found[: len(kept)] == kept
        assert len(found) <= len(kept) + 1
        assert bodies == [b"order %d" % number for number in range(len(found))]


@pytest.mark.rows("P16")
def test_a_call_that_is_sent_twice_over_a_crash_keeps_its_id_and_runs_once(tmp_path):
    folder = tmp_path / "lost"
    with subprocess.Popen([*WORKER, "keep", str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "call-0"
        process.send_signal(signal.SIGKILL)
        process.stdout.read()
    got: list[str] = []
    ran: list[str] = []
    repeats = Repeats[bytes]()

    async def provide(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call_id = (await reader.readline()).decode().strip()
        got.append(call_id)
        now = asyncio.get_running_loop().time()
        known = repeats.begin(call_id, now)
        if known.kind == "new":
            ran.append(call_id)
            repeats.answered(call_id, b"answered\n", 9, now)
        writer.write(known.result or b"answered\n")
        await writer.drain()
        writer.close()

    async def peer(port: int, how: str) -> int:
        command = [*WORKER, "resend", str(folder), str(port), how]
        process = await asyncio.create_subprocess_exec(*command)
        return await asyncio.wait_for(process.wait(), PATIENCE_S)

    async def main() -> None:
        async with await asyncio.start_server(provide, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            assert await peer(port, "dies") == -signal.SIGKILL
            assert await peer(port, "lives") == 0
        assert got == ["call-0", "call-0"]
        assert ran == ["call-0"]

    asyncio.run(main())
