"""Workers share the work: the more of them, the more is done at a time, whenever and wherever they come from.

Measured by turns, not by seconds: in a turn each worker that has a message finishes it. A message takes one turn, so n
workers need an n-th of the turns that one does.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path

import pytest

import wherry
from tests.integration.worlds import Node

ELSEWHERE = """
import sys
import wherry

with wherry.connect_sync(sys.argv[1]) as client:
    with client.consumer("jobs", "workers", pull_messages=1, buffer_messages=1) as consumer:
        for message in consumer:
            print("has one", flush=True)
            if not sys.stdin.readline():
                break
            message.ack()
            print("done", flush=True)
"""


class Worker:
    """A process that takes one message at a time, and finishes it when the test asks for it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._line: asyncio.Task[bytes] | None = None
        self.done = 0

    @classmethod
    async def come(cls, url: str) -> Worker:
        pipe = asyncio.subprocess.PIPE
        return cls(await asyncio.create_subprocess_exec(sys.executable, "-c", ELSEWHERE, url, stdin=pipe, stdout=pipe))

    def has_one(self) -> asyncio.Task[bytes]:
        """Return a task that is done when the worker holds a message."""
        assert self._process.stdout is not None
        if self._line is None:
            self._line = asyncio.create_task(self._process.stdout.readline())
        return self._line

    async def finish(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert await self.has_one() == b"has one\n"
        self._line = None
        self._process.stdin.write(b"\n")
        assert await self._process.stdout.readline() == b"done\n"
        self.done += 1

    async def go(self) -> None:
        if self._line is not None:
            self._line.cancel()
        self._process.kill()
        await self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


async def turn(workers: list[Worker], left: int) -> int:
    """Let each worker that can have a message take one and finish it; return how many messages that were."""
    at_work = min(len(workers), left)
    waits = [worker.has_one() for worker in workers]
    while sum(wait.done() for wait in waits) < at_work:
        await asyncio.wait([wait for wait in waits if not wait.done()], return_when=asyncio.FIRST_COMPLETED)
    busy = [worker for worker, wait in zip(workers, waits, strict=True) if wait.done()]
    await asyncio.gather(*(worker.finish() for worker in busy))
    return len(busy)


@pytest.mark.rows("K14", "D20")
def test_throughput_rises_with_the_workers_that_are_attached(tmp_path: Path):
    async def main() -> None:
        async with asyncio.timeout(55), Node(tmp_path / "home") as node, wherry.connect(node.url) as client:
            await client.create_topic("jobs")
            await client.subscribe("jobs", "workers", lease_ms=60_000)
            await client.publish("jobs", [b"%d" % number for number in range(32)])
            workers = [await Worker.come(node.url)]
            try:
                done = [await turn(workers, 32) for _ in range(2)]
                workers.append(await Worker.come(node.url))
                done += [await turn(workers, 32 - sum(done)) for _ in range(3)]
                workers += await asyncio.gather(*(Worker.come(node.url) for _ in range(2)))
                while sum(done) < 32:
                    done.append(await turn(workers, 32 - sum(done)))
                assert done == [1] * 2 + [2] * 3 + [4] * 6
                assert Counter(worker.done for worker in workers) == {11: 1, 9: 1, 6: 2}
                assert (await client.stats("jobs")).subscriptions[0].counters == {"acked": 32}
            finally:
                for worker in workers:
                    await worker.go()

    asyncio.run(main())
