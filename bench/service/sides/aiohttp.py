"""aiohttp: a POST for each call, connections kept open."""

from __future__ import annotations

import asyncio
import time

import aiohttp
import uvloop
from aiohttp import web

from bench.service.side import BODY, Run


def provide(port: int) -> None:
    async def same(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/echo", same)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()

    uvloop.run(main())


def call(port: int, count: int, under_way: int) -> Run:
    async def main() -> Run:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=under_way)) as session:
            run, url = Run(), f"http://127.0.0.1:{port}/echo"

            async def some(calls: int) -> None:
                for _ in range(calls):
                    began = time.perf_counter()
                    async with session.post(url, data=BODY) as answer:
                        await answer.read()
                    run.took(time.perf_counter() - began)

            await some(200)
            run.begin()
            await asyncio.gather(*(some(count // under_way) for _ in range(under_way)))
            return run.end()

    return uvloop.run(main())
