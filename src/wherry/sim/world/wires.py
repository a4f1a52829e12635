"""A world whose broker serves AMQP, STOMP and, if the plan has clients of it, the native wire over a simulated network.

The servers belong to the process of the broker. Their clock is that of the loop, and the processor time of each step
is drawn from the seed: so connections wait for each other as on a busy machine, in the same way in every run.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from contextvars import Context, copy_context
from random import Random
from typing import TypeAlias

from wherry.broker.broker import Broker
from wherry.model.errors import StorageError, WherryError
from wherry.queueing.queueing import Queueing
from wherry.sim.history import History
from wherry.sim.plan import RunPlan
from wherry.sim.world.native import serve_native
from wherry.sim.world.network import Network, Weather
from wherry.sim.world.world import CUT_CHANCE, LOST, World
from wherry.wire.amqp.server import Server as AmqpServer
from wherry.wire.amqp.server import serve_queueing
from wherry.wire.fairness import FairLoop, set_fair_loop
from wherry.wire.http.protocol.server import Server as HttpServer
from wherry.wire.stomp.transports.tcp import Server as StompServer
from wherry.wire.stomp.transports.tcp import serve as serve_stomp

STEP_S = (0.0, 0.0, 0.00002, 0.0002, 0.003)
"""Processor time of a step of a connection."""

DRAIN_S = 2.0

AnyServer: TypeAlias = AmqpServer | StompServer | HttpServer


class WireWorld(World):
    """One run of a plan with wires."""

    def __init__(self, seed: int, plan: RunPlan, weather: Weather, *, native: bool = False) -> None:
        super().__init__(seed, plan)
        self._has_native = native
        self.wire_history = History(lives=self.history.lives)
        """The history of the clients of wires."""
        self.network = Network(Random(f"{seed}/network"), weather, self._wrote)
        self.paused_until = float("-inf")
        """Before this time the broker may have been paused, and silent without a fault."""
        self._steps = Random(f"{seed}/steps")
        self._used_s = 0.0
        self._servers: dict[str, AnyServer] = {}
        self._serving: asyncio.Task[None]
        self._stop: asyncio.Event
        self._inside = Context()

    def _used(self) -> float:
        self._used_s += self._steps.choice(STEP_S)
        return self._used_s

    async def _start(self) -> Broker:
        broker = await super()._start()
        self._stop = asyncio.Event()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._serving = asyncio.create_task(self._serve(broker, ready, self._stop))
        await asyncio.wait((ready, self._serving), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            try:
                await self._serving
            except WherryError as fault:
                raise StorageError(str(fault)) from fault
        return broker

    async def _serve(self, broker: Broker, ready: asyncio.Future[None], stop: asyncio.Event) -> None:
        clock = asyncio.get_running_loop().time
        # A new one: connections of a dead process wait in the old one for callbacks that never come.
        set_fair_loop(FairLoop(clock, self._used))
        queueing = Queueing(broker)
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            await enter(queueing.open())
            servers: dict[str, AnyServer] = {
                "amqp": await enter(serve_queueing(queueing, drain_s=DRAIN_S, clock=clock)),
                "stomp": await enter(serve_stomp(queueing, drain_s=DRAIN_S, clock=clock)),
            }
            if self._has_native:
                servers["http"] = servers["native"] = await enter(serve_native(broker, clock=clock))
            self._servers, self._inside = servers, copy_context()
            ready.set_result(None)
            await stop.wait()

    async def connect(self, client: asyncio.BaseProtocol, wire: str) -> Broker:
        """Connect a client to the server of a wire once the broker is up; return the broker."""
        while self.broker is None:
            await self._up.wait()
        self.network.connect(client, self._servers[wire].connection, self._inside)
        return self.broker

    def end_life(self, *, power: bool) -> None:
        super().end_life(power=power)
        self.network.process_died()

    async def pause(self, seconds: float) -> None:
        process, self.paused_until = self._process, float("inf")
        try:
            await super().pause(seconds)
        finally:
            self.paused_until = self.now() + 1.0
            if process is not None and process.paused:  # the task that paused it was cancelled
                self.go_on(process)

    async def close(self) -> None:
        """Stop the broker cleanly: the servers close their connections by the protocol."""
        process, broker = self._process, self.broker
        if broker is None or process is None or self.closing:
            return
        self.closing = True
        self.network.servers_stop()
        try:
            await process.call(self._stopped())
        except LOST:
            return
        finally:
            self.closing = False
        if self.broker is broker:
            await super().close()
            self.network.process_died()

    async def _stopped(self) -> None:
        self._stop.set()
        await self._serving

    async def supervise(self) -> None:
        """Start the broker again whenever it is down, and end it if its journal failed."""
        while True:
            if self.broker is not None and self.broker.failure is not None and not self.closing:
                self.note("failed", str(self.broker.failure))
                self.end_life(power=False)
            if self.broker is None and not self.closing:
                await self.boot()
            await asyncio.sleep(0.05)

    def _wrote(self) -> None:
        """Cut the power after a write of a wire during a sync, some of the times.

        The bytes may reach the client, and then promise something false if the wire did not wait for the sync.
        """
        broker = self.broker
        if broker is None or not self._cuts_left or self.ending:
            return
        committer = broker.shard.committer
        if committer.durable < committer.submitted and self._cut_random.random() < CUT_CHANCE:
            self._cuts_left -= 1
            asyncio.get_running_loop().call_soon(self._cut_life, broker, context=Context())

    def _cut_life(self, broker: Broker) -> None:
        if self.broker is broker and not self.ending:
            self.end_life(power=True)
