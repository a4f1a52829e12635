"""NATS: request and reply over its server, nats-py at both ends."""

from __future__ import annotations

import asyncio
import time

import nats
import uvloop
from nats.aio.msg import Msg

from bench.service.side import BODY, Run


def provide(port: int) -> None:
    async def main() -> None:
        client = await nats.connect(f"nats://127.0.0.1:{port}")

        async def same(message: Msg) -> None:
            await message.respond(message.data)

        await client.subscribe("echo", cb=same)
        await asyncio.Event().wait()

    uvloop.run(main())


def call(port: int, count: int, under_way: int) -> Run:
    async def main() -> Run:
        client = await nats.connect(f"nats://127.0.0.1:{port}")
        run = Run()

        async def some(calls: int) -> None:
            for _ in range(calls):
                began = time.perf_counter()
                await client.request("echo", BODY, timeout=20)
                run.took(time.perf_counter() - began)

        await some(200)
        run.begin()
        await asyncio.gather(*(some(count // under_way) for _ in range(under_way)))
        run.end()
        await client.close()
        return run

    return uvloop.run(main())
