"""The load generator: an even pace, a mix of sync and async messages, and the time until each is settled."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import typer

from wherry.cli import output
from wherry.cli.commands.load import SUBSCRIPTION
from wherry.cli.frame import error_line
from wherry.cli.link import BrokerLink
from wherry.cli.values import REACHED
from wherry.client.requests import parsed, path
from wherry.model.errors import InvalidInput, WherryError

PERCENTILES = (50, 90, 99, 100)
BODY_BYTES_MAX = 4 << 20
IN_FLIGHT_MAX = 10_000

UNFINISHED = ("waiting", "scheduled", "delivered")
CALLBACK = "callback"


class OutcomeView(msgspec.Struct):
    """An outcome in the body of a callback."""

    id: str
    fate: str


class Outcomes(msgspec.Struct):
    """The body of a callback."""

    outcomes: list[OutcomeView]


@dataclass
class Load:
    """One run."""

    topic: str
    rate: float
    sync: float
    mix: bool
    """Whether `--sync` was given: then the share is kept, or the run ends."""
    wait: str
    count: int | None
    length_ms: int | None
    size: int
    timeout_ms: int
    host: str
    sent: int = 0
    began: float = field(default_factory=time.perf_counter)
    taken_ms: dict[str, list[float]] = field(default_factory=lambda: {"sync": [], "async": [], "accepted": []})
    failed: dict[str, int] = field(default_factory=dict)
    callbacks: dict[str, asyncio.Future[str]] = field(default_factory=dict)
    early: dict[str, str] = field(default_factory=dict)
    refused: InvalidInput | None = None
    """Why the broker refuses callbacks."""

    async def run(self, link: BrokerLink, *, consume: bool) -> None:
        """Send until the bound; then wait for messages under way."""
        await link.alive()
        if await link.exists("topics", self.topic) is None:
            await link.call("PUT", "topics", self.topic, body={})
        tasks: list[asyncio.Task[None]] = []
        place = ("topics", self.topic, "subscriptions", SUBSCRIPTION)
        if consume:
            await link.call("PUT", *place, body={})
            tasks.append(asyncio.create_task(self._consume(link)))
        # the broker is on another machine, and must be able to reach this one
        local = self.host in ("127.0.0.1", "localhost")
        server = await asyncio.start_server(self._called, "127.0.0.1" if local else None, 0)
        port = server.sockets[0].getsockname()[1]
        try:
            await self._send_all(link, f"http://{self.host}:{port}/{secrets.token_hex(8)}")
            if self.refused is not None and self.mix:
                raise self.refused
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            server.close()
            if consume:  # else the broker would keep later messages for it
                await link.call("DELETE", *place)

    async def _send_all(self, link: BrokerLink, callback: str) -> None:
        out: set[asyncio.Task[None]] = set()
        self.began = time.perf_counter()
        now = asyncio.get_running_loop().time
        first, waiting = now(), 0.0
        while not self._is_over():
            await asyncio.sleep(max(0.0, first + self.sent / self.rate - now()))
            if self._is_over():
                break
            waiting += self.sync
            is_sync = waiting >= 1 - 1e-9  # evenly mixed: of two, one; of ten, every n-th
            waiting -= is_sync
            self.sent += 1
            one = asyncio.create_task(self._one(link, self.sent, callback, is_sync=is_sync))
            out.add(one)
            one.add_done_callback(out.discard)
            while len(out) >= IN_FLIGHT_MAX:
                await asyncio.wait(out, return_when=asyncio.FIRST_COMPLETED)
        if out:
            await asyncio.wait(out)

    def _is_over(self) -> bool:
        if self.refused is not None and self.mix:
            return True
        if self.count is not None and self.sent >= self.count:
            return True
        past_ms = (time.perf_counter() - self.began) * 1_000
        return self.length_ms is not None and past_ms >= self.length_ms

    async def _one(self, link: BrokerLink, number: int, callback: str, *, is_sync: bool) -> None:
        began = time.perf_counter()
        body = {"payload": f"{number} ".ljust(self.size, ".")[: self.size]}
        query: dict[str, Any] = {CALLBACK: callback}
        held_s = 0.0
        if is_sync:
            query = {"wait": self.wait, "timeout_ms": self.timeout_ms}
            held_s = self.timeout_ms / 1_000 if self.wait != "stored" else 0.0
        target = path("topics", self.topic, "messages", **query)
        try:
            answer = parsed(await link.send("POST", target, body, wait_s=held_s), dict[str, Any])
            if is_sync:
                outcome = str(answer.get("fate", "dead" if answer.get("dead") else "stored"))
            else:
                self._note("accepted", began)
                outcome = await self._outcome_of(answer["ids"][0])
        except InvalidInput as fault:
            if fault.field == CALLBACK and not is_sync:
                await self._without_callbacks(fault, link, number)
                return
            outcome = str(fault)
        except WherryError as fault:
            outcome = str(fault)
        except TimeoutError:
            outcome = "no callback in time"
        if outcome in REACHED[self.wait if is_sync else "settled"]:
            self._note("sync" if is_sync else "async", began)
            return
        why = f"still {outcome} after {output.span(self.timeout_ms)}" if outcome in UNFINISHED else outcome
        self.failed[why] = self.failed.get(why, 0) + 1

    async def _without_callbacks(self, fault: InvalidInput, link: BrokerLink, number: int) -> None:
        """Send all messages as sync from now on, since the broker does not call back, unless `--sync` was given."""
        if self.refused is None:
            self.refused, self.sync = fault, self.sync if self.mix else 1.0
            if not self.mix:
                output.note(f"all are sync, since the broker does not call back: {error_line(fault)}")
        if not self.mix:
            await self._one(link, number, "", is_sync=True)

    async def _outcome_of(self, name: str) -> str:
        """Wait for the outcome of a message, which may arrive before the answer to its publish."""
        if name in self.early:
            return self.early.pop(name)
        called_back = self.callbacks[name] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self.timeout_ms / 1_000):
                return await called_back
        finally:
            del self.callbacks[name]

    def _note(self, kind: str, began: float) -> None:
        self.taken_ms[kind].append((time.perf_counter() - began) * 1_000)

    async def _consume(self, link: BrokerLink) -> None:
        async with link.client.consumer(self.topic, SUBSCRIPTION, ack_linger_ms=0) as consumer:
            async for message in consumer:
                message.ack_later()

    async def _called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a callback of the broker, with the fates of some messages."""
        with suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            sizes = re.findall(r"(?i)\r\ncontent-length: *(\d+)", head)
            body = await reader.readexactly(min(int(sizes[0]), BODY_BYTES_MAX)) if sizes else b""
            writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
            await writer.drain()
            for outcome in msgspec.json.decode(body, type=Outcomes).outcomes:
                self._hear(outcome)
        writer.close()

    def _hear(self, outcome: OutcomeView) -> None:
        if outcome.fate == "delivered":
            return
        called_back = self.callbacks.get(outcome.id)
        if called_back is None and len(self.early) < IN_FLIGHT_MAX:
            self.early[outcome.id] = outcome.fate
        elif called_back is not None and not called_back.done():
            called_back.set_result(outcome.fate)

    def report(self, *, json: bool) -> None:
        """Print count, rate, and percentiles of the times."""
        seconds = time.perf_counter() - self.began
        rows = [
            {"kind": kind, "count": len(taken)} | percentiles(taken) for kind, taken in self.taken_ms.items() if taken
        ]
        if json:
            output.as_json(
                {"sent": self.sent, "seconds": round(seconds, 3), "failed": self.failed}
                | {row["kind"]: {name: value for name, value in row.items() if name != "kind"} for row in rows}
            )
        else:
            heads = {"kind": "kind", "count": "count"} | {f"p{each}_ms": f"p{each} ms" for each in PERCENTILES}
            output.show(heads, rows, json=False, empty="nothing came back")
            output.note(f"{self.sent:,} sent in {seconds:.1f} s ({self.sent / max(seconds, 1e-9):,.1f} a second)")
            for why, times in self.failed.items():
                output.note(f"{times:,} failed: {why}")
        if self.failed:
            raise typer.Exit(1)


def percentiles(taken_ms: list[float]) -> dict[str, float]:
    """Return percentiles: p90 is the value that 90 of a hundred do not exceed.

    Examples
    --------
    >>> percentiles([3.0, 1.0, 2.0])
    {'p50_ms': 2.0, 'p90_ms': 3.0, 'p99_ms': 3.0, 'p100_ms': 3.0}
    """
    ordered = sorted(taken_ms)
    last = len(ordered) - 1
    return {f"p{each}_ms": round(ordered[min(last, -(-each * len(ordered) // 100) - 1)], 2) for each in PERCENTILES}
