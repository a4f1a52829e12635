"""A connection of a client of queues, whatever wire it speaks: what publishers and consumers of a run ask of it."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NoReturn, TypeAlias, TypeVar

from wherry.broker.broker import Broker
from wherry.sim.world.network import SimTransport
from wherry.sim.world.wires import WireWorld

T = TypeVar("T")

Verdict: TypeAlias = Literal["ack", "nack", "dead"]
"""Done with; goes back to its queue; a dead letter."""

NEVER = float("inf")

PATIENCE_S = 90.0
"""No answer may take longer while the connection stands: the broker may be paused, its disk slow, but not so long."""


class Gone(ConnectionError):
    """The connection is over, and nobody knows what became of what was under way."""


class Refusal(Exception):
    """The broker has refused something, and nothing of it happened."""


@dataclass(eq=False)
class Delivered:
    """A message in the hands of a client."""

    name: str
    again: bool
    handle: str
    """How the wire names it when it is settled."""
    subscription: Subscribed
    token: int
    """Its number in this run."""


@dataclass(eq=False)
class Subscribed:
    """A consumer of a queue on a connection."""

    queue: str
    id: str
    """Unique in the run."""
    limit: int
    """How many messages it may hold unsettled."""
    transacted: bool
    """Whether what it settles waits for a commit, and is published with it."""
    on_message: Callable[[Delivered, float], None]
    """Called with a message, and a time at or before which it was sent."""
    channel: int = 0
    held: list[Delivered] = field(default_factory=list)
    """In the order in which they came."""


class WireLink(asyncio.Protocol):
    """One connection. Calls that wait for an answer get `Gone` when the connection ends."""

    wire: str

    def __init__(self, world: WireWorld, name: str) -> None:
        self.world, self.name = world, name
        self.transport: SimTransport
        self.is_gone = False
        self.heard_at = world.now()
        self._made: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waits: dict[asyncio.Future[object], None] = {}
        self._rest = bytearray()
        self._broker: Broker | None = None
        self.beat_s = 0.0
        """How often each side shows that it is there; 0 where that was not agreed on."""

    # ---------------------------------------------------------------------------------------------------- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimTransport)
        self.transport = transport
        if not self._made.done():
            self._made.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.heard_at = self.world.now()
        self._rest += data
        self.parse(self._rest)

    def connection_lost(self, fault: Exception | None) -> None:
        self.is_gone = True
        for wait in list(self._waits):
            if not wait.done():
                wait.set_exception(Gone(str(fault)))

    def pause_writing(self) -> None:
        """Nothing: a client of a run never has that much to say."""

    # ---------------------------------------------------------------------------------------------------- for clients

    async def connect(self) -> None:
        """Connect and log in."""
        self._broker = await self.world.connect(self)
        await self._made
        await self.log_in()

    @property
    def is_ending(self) -> bool:
        """Whether one side has begun to end the connection, or chance has."""
        return self.transport.ended_at < NEVER

    def drop(self) -> None:
        """End it at once, without a word."""
        if self._made.done():
            self.transport.abort()

    @abstractmethod
    async def log_in(self) -> None:
        """Say who we are, and agree on heart-beats."""

    @abstractmethod
    def parse(self, rest: bytearray) -> None:
        """Take in what is whole of what has come, and remove it."""

    @abstractmethod
    def beat(self) -> None:
        """Show that we are there."""

    @abstractmethod
    def publish(self, queue: str, body: bytes, *, persistent: bool) -> asyncio.Future[object]:
        """Publish; done when the broker has stored it, `Refusal` where it does not take it."""

    @abstractmethod
    async def subscribe(self, subscribed: Subscribed) -> None:
        """Consume."""

    @abstractmethod
    async def unsubscribe(self, subscribed: Subscribed) -> None:
        """Consume no more: what it holds goes back. All that was settled before is durable on return."""

    @abstractmethod
    def settle(self, message: Delivered, verdict: Verdict) -> asyncio.Future[object] | None:
        """Settle a message; done when that is durable, None where the wire does not tell."""

    @abstractmethod
    async def transact(
        self,
        subscribed: Subscribed | None,
        publishes: Sequence[tuple[str, bytes]],
        settles: Sequence[tuple[Delivered, Verdict]],
        *,
        commit: bool,
    ) -> None:
        """Publish and settle all of it or nothing; durable on return. Without `commit`, nothing."""

    @abstractmethod
    async def close(self) -> None:
        """Say goodbye, and wait until the other side has."""

    # ---------------------------------------------------------------------------------------------------- for wires

    def waiting(self) -> asyncio.Future[object]:
        """Something that is answered later, or ends with the connection."""
        if self.is_gone:
            raise Gone("the connection is over")
        made: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._waits[made] = None
        made.add_done_callback(self._answered)
        return made

    def _answered(self, done: asyncio.Future[object]) -> None:
        self._waits.pop(done, None)
        if not done.cancelled():
            done.exception()  # a client that closed does not read the answer: mark the exception as seen

    async def answer(self, waiting: asyncio.Future[object], what: str) -> object:
        """Wait for an answer; a wire that never gives one is at fault."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await waiting
        except TimeoutError:
            if not self.is_ending:
                self.world.wires.faults.append(f"answers_come: {self.name} waited {PATIENCE_S} s for {what}")
            self.world.network.cut(self.transport)
            raise Gone(f"no answer to {what}") from None

    def broken(self, what: str) -> None:
        """The broker says what it must never say to a client that keeps the rules, unless its journal has failed."""
        if self._broker is not None and self._broker.failure is None:
            self.world.wires.faults.append(f"rules_kept: {self.name} at {self.world.now():.3f}: {what}")
        self.world.network.cut(self.transport)

    def fail(self, why: Exception) -> NoReturn:
        """End what waits, and whoever asks now."""
        for wait in list(self._waits):
            if not wait.done():
                wait.set_exception(why)
        raise why
