"""A member of gossip as a process: prints what it knows at each change, and does what it reads, a line each.

announce URL      close
"""

from __future__ import annotations

import asyncio
import json
import sys

from wherry.mesh.gossip.registry import GossipRegistry
from wherry.mesh.instance import Instance


async def main(name: str, port: int, seeds: list[tuple[str, int]], key: bytes) -> None:
    registry = GossipRegistry(seeds, port=port, name=name, key=key, period_ms=100)
    await registry.start()

    def show(_: str = "") -> None:
        found = {each.id: each.url for each in registry.roster.of("billing")}
        print(json.dumps({"port": registry.address[1], "billing": found}), flush=True)

    registry.roster.watch(show)
    show()
    loop = asyncio.get_running_loop()
    version = 0
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        act, _, url = line.strip().partition(" ")
        if act == "close":
            break
        version += 1
        await registry.announce(Instance(service="billing", id=name, url=url, version=version))
    await registry.close()


if __name__ == "__main__":
    own, port, key, *ports = sys.argv[1:]
    asyncio.run(main(own, int(port), [("127.0.0.1", int(each)) for each in ports], bytes.fromhex(key)))
