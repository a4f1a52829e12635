"""A process that announces instances and follows what others announce; a test drives it over its pipes.

`python -m tests.registries.announcing <registry> [service id url]…`. It prints a line with the URLs of a service when
they change. It takes lines `announce <service> <id> <url>`, `withdraw <service> <id>` and `get <service>`, which asks
the first instance of a service by HTTP, and answers each by a line `done`, for the last one with what came.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

from wherry.mesh.instance import Instance
from wherry.mesh.opening import open_registry


async def main(url: str, *own: str) -> None:
    registry = open_registry(url)

    def report(service: str) -> None:
        print(service, *(each.url for each in registry.roster.of(service)), flush=True)

    registry.roster.watch(report)
    await registry.start()
    for at in range(0, len(own), 3):
        await registry.announce(Instance(service=own[at], id=own[at + 1], url=own[at + 2]))
    print("ready", flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := (await reader.readline()).decode().split():
        if line[0] == "announce":
            await registry.announce(Instance(service=line[1], id=line[2], url=line[3]))
        elif line[0] == "withdraw":
            await registry.withdraw(line[1], line[2])
        answer = ""
        if line[0] == "get":
            answer = await asyncio.to_thread(get, registry.roster.of(line[1])[0].url)
        print("done", answer, flush=True)
    await registry.close()


def get(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return answer.read().decode()


class Announcing:
    """Such a process, from the side of the test."""

    def __init__(self, url: str, *own: str) -> None:
        command = [sys.executable, "-m", "tests.registries.announcing", url, *own]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        self.reported: list[str] = []
        self.wait_for("ready")

    def wait_for(self, line: str) -> str:
        """Read lines until one is `line`, or is `done` with an answer; return it."""
        assert self.process.stdout is not None
        for read in map(str.strip, self.process.stdout):
            self.reported.append(read)
            if read == line or (line == "done" and read.startswith("done ")):
                return read
        raise AssertionError(f"the process ended before it printed {line!r}: {self.reported}")

    def order(self, line: str) -> str:
        """Give the process a line, wait until it has done what it asks, and return its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.wait_for("done").partition(" ")[2]

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self._ended()

    def close(self) -> None:
        """Let the process end by itself."""
        if self.process.poll() is None and self.process.stdin is not None:
            self.process.stdin.close()
        self._ended()

    def _ended(self) -> None:
        self.process.wait(60)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
