"""A small client of STOMP 1.2: a session asks for all receipts or for none, by chance."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from wherry.sim.clients.links import Delivered, Gone, Subscribed, Verdict, WireLink
from wherry.sim.clients.producers import name_of
from wherry.sim.world.wires import WireWorld
from wherry.wire.stomp import codec

_FRAMES = frozenset({"CONNECTED", "MESSAGE", "RECEIPT", "ERROR"})


class StompLink(WireLink):
    """One session."""

    wire = "stomp"

    def __init__(self, world: WireWorld, name: str, beat_s: int = 0) -> None:
        super().__init__(world, name)
        self._wanted_beat_s = beat_s
        self._receipts: dict[str, asyncio.Future[object]] = {}
        self._connected: asyncio.Future[object] | None = None
        self._subscriptions: dict[str, Subscribed] = {}
        self._number = 0

    async def log_in(self) -> None:
        self._connected = self.waiting()
        beats = f"{self._wanted_beat_s * 1000},{self._wanted_beat_s * 1000}"
        self._send("CONNECT", {"accept-version": "1.2", "host": "/", "heart-beat": beats})
        await self.answer(self._connected, "CONNECT")
        self.beat_s = self._wanted_beat_s

    async def ready(self) -> None:
        """Do nothing: a publisher needs no more than the session."""

    def beat(self) -> None:
        self._write(b"\n")

    # ------------------------------------------------------------------------------------------------------- speaking

    def _write(self, data: bytes) -> None:
        if self.is_gone:
            raise Gone("the connection is over")
        self.transport.write(data)

    def _send(self, command: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        self._write(codec.frame(command, headers.items(), body, version=codec.V12))

    def _asked(self, command: str, headers: Mapping[str, str], body: bytes = b"") -> asyncio.Future[object]:
        """Send a frame and return a future for its receipt."""
        self._number += 1
        receipt = f"r{self._number}"
        waiting = self._receipts[receipt] = self.waiting()
        self._send(command, {**headers, "receipt": receipt}, body)
        return waiting

    def publish(self, queue: str, body: bytes, *, persistent: bool) -> asyncio.Future[object]:
        return self._asked("SEND", _to(queue, persistent=persistent), body)

    async def subscribe(self, subscribed: Subscribed) -> None:
        self._subscriptions[subscribed.id] = subscribed
        headers = {
            "id": subscribed.id,
            "destination": f"/amq/queue/{subscribed.queue}",
            "ack": "client-individual",
            "prefetch-count": str(subscribed.limit),
        }
        await self.answer(self._asked("SUBSCRIBE", headers), "SUBSCRIBE")

    async def unsubscribe(self, subscribed: Subscribed) -> None:
        await self.answer(self._asked("UNSUBSCRIBE", {"id": subscribed.id}), "UNSUBSCRIBE")
        del self._subscriptions[subscribed.id]

    def settle(self, message: Delivered, verdict: Verdict) -> asyncio.Future[object] | None:
        command, headers = _settling(message, verdict)
        if message.token % 3:
            self._send(command, headers)
            return None
        return self._asked(command, headers)

    async def transact(
        self,
        subscribed: Subscribed | None,
        publishes: Sequence[tuple[str, bytes]],
        settles: Sequence[tuple[Delivered, Verdict]],
        *,
        commit: bool,
    ) -> None:
        self._number += 1
        named = {"transaction": f"t{self._number}"}
        self._send("BEGIN", named)
        for queue, body in publishes:
            self._send("SEND", _to(queue, persistent=True) | named, body)
        for message, verdict in settles:
            command, headers = _settling(message, verdict)
            self._send(command, headers | named)
        command = "COMMIT" if commit else "ABORT"
        await self.answer(self._asked(command, named), command)

    async def close(self) -> None:
        await self.answer(self._asked("DISCONNECT", {}), "DISCONNECT")
        self.transport.close()

    # ------------------------------------------------------------------------------------------------------ listening

    def parse(self, rest: bytearray) -> None:
        while True:
            while rest[:1] == b"\n":
                del rest[:1]
            end = rest.find(b"\n\n")
            if end < 0:
                return
            command, *lines = rest[:end].decode().split("\n")
            headers = dict(line.split(":", 1) for line in lines)
            start = end + 2
            length = headers.get("content-length")
            stop = rest.find(b"\0", start) if length is None else start + int(length)
            if stop < 0 or len(rest) <= stop:
                return
            body = bytes(rest[start:stop])
            if rest[stop] or command not in _FRAMES:
                self.broken(f"no frame: {bytes(rest[:80])!r}")
                return
            del rest[: stop + 1]
            self._frame(command, headers, body)

    def _frame(self, command: str, headers: dict[str, str], body: bytes) -> None:
        if command == "MESSAGE":
            self._message(headers, body)
        elif command == "ERROR":
            self._failed(headers, body)
        elif command == "CONNECTED":
            if self._connected is not None and not self._connected.done():
                self._connected.set_result(None)
        else:
            waiting = self._receipts.pop(headers["receipt-id"], None)
            if waiting is None:
                self.broken(f"receipt {headers['receipt-id']} was not asked for, or came before")
            elif not waiting.done():
                waiting.set_result(None)

    def _message(self, headers: dict[str, str], body: bytes) -> None:
        subscribed = self._subscriptions.get(headers["subscription"])
        if subscribed is None:
            self.broken(f"a message for {headers['subscription']}, which is over")
            return
        message = Delivered(
            name_of(body),
            headers["redelivered"] == "true",
            headers["ack"].replace("\\c", ":"),
            subscribed,
            self.world.next_delivery(),
        )
        subscribed.on_message(message, self.transport.data_since)

    def _failed(self, headers: dict[str, str], body: bytes) -> None:
        """Handle an ERROR frame, which ends the session; it is a refusal if it names a message that was not stored."""
        why = headers.get("message", "")
        self.world.note("error", self.name, why, body)
        allowed = ("connection_forced", *(("not_done", "a message was not stored") if self._may_be_full() else ()))
        if why not in allowed:
            self.broken(f"ERROR {headers} {body!r}")
        self.transport.close()

    def _may_be_full(self) -> bool:
        return self.world.plan.disk_faults


def _to(queue: str, *, persistent: bool) -> dict[str, str]:
    return {"destination": f"/amq/queue/{queue}", "persistent": "true" if persistent else "false"}


def _settling(message: Delivered, verdict: Verdict) -> tuple[str, dict[str, str]]:
    headers = {"id": message.handle}
    if verdict == "ack":
        return "ACK", headers
    return "NACK", headers if verdict == "nack" else headers | {"requeue": "false"}
