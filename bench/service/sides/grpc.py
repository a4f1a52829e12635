"""gRPC: grpcio's asyncio face, a unary method of bytes without protobuf. It has a poller of its own, not uvloop."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc

from bench.service.side import BODY, Run


def provide(port: int) -> None:
    async def same(body: bytes, _: Any) -> bytes:
        return body

    async def main() -> None:
        server = grpc.aio.server()
        methods = {"Same": grpc.unary_unary_rpc_method_handler(same)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Echo", methods),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        await server.wait_for_termination()

    asyncio.run(main())


def call(port: int, count: int, under_way: int) -> Run:
    async def main() -> Run:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            same, run = channel.unary_unary("/Echo/Same"), Run()

            async def some(calls: int) -> None:
                for _ in range(calls):
                    began = time.perf_counter()
                    await same(BODY, timeout=20)
                    run.took(time.perf_counter() - began)

            await some(200)
            run.begin()
            await asyncio.gather(*(some(count // under_way) for _ in range(under_way)))
            return run.end()

    return asyncio.run(main())
