"""A peer in a process of its own that keeps lost calls, or sends them again, and may be killed in between."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from tests.unit.service.lost.samples import lost_call
from wherry.service.lost.log import LostLog
from wherry.service.lost.lost_call import LostCall
from wherry.service.lost.resending import Resending


async def keep(folder: str) -> None:
    """Keep calls until this process is killed; print each that is on disk."""
    async with LostLog(folder) as log:
        for at in range(100_000):
            assert await log.keep(lost_call(f"call-{at}", body=b"order %d" % at, resend=at == 0))
            print(f"call-{at}", flush=True)


async def resend(folder: str, port: int, dies: bool) -> None:
    """Send calls again to a provider; with `dies`, be killed when it has answered, before the log knows that."""
    done = asyncio.Event()

    async def send(call: LostCall) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{call.id}\n".encode())
        assert await reader.readline() == b"answered\n"
        writer.close()
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        done.set()

    async with LostLog(folder) as log:
        resending = asyncio.create_task(Resending(log, send, lambda service: True).run())
        await done.wait()
        while await log.get("call-0"):  # noqa: ASYNC110  nothing signals it
            await asyncio.sleep(0.01)
        resending.cancel()


def main() -> None:
    what, folder, *rest = sys.argv[1:]
    Path(folder).parent.mkdir(exist_ok=True)
    asyncio.run(keep(folder) if what == "keep" else resend(folder, int(rest[0]), rest[1] == "dies"))


if __name__ == "__main__":
    main()
