"""Wherry: a service, and `await peer.call`."""

from __future__ import annotations

import asyncio
import time

import uvloop

import wherry
from bench.service.side import BODY, Run


def provide(port: int) -> None:
    echo = wherry.Service("echo")

    @echo.method
    async def same(body: bytes) -> bytes:
        return body

    async def main() -> None:
        async with wherry.peer(provides=[echo], listen=port):
            await asyncio.Event().wait()

    uvloop.run(main())


def call(port: int, count: int, under_way: int) -> Run:
    async def main() -> Run:
        async with wherry.peer(registry=f"static://127.0.0.1:{port}") as peer:
            run = Run()

            async def some(calls: int) -> None:
                for _ in range(calls):
                    began = time.perf_counter()
                    await peer.call("echo.same", BODY, timeout_s=20)
                    run.took(time.perf_counter() - began)

            await some(200)
            run.begin()
            await asyncio.gather(*(some(count // under_way) for _ in range(under_way)))
            return run.end()

    return uvloop.run(main())
