"""The connection of a client of queues on any wire: the calls that publishers and consumers of a run need."""

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
"""How a client settles a message: done, back to its queue, or a dead letter."""

NEVER = float("inf")

PATIENCE_S = 90.0
"""The longest wait for an answer over an open connection; a paused broker or a slow disk takes less."""


class Gone(ConnectionError):
    """The connection is closed; the results of calls that were not answered are unknown."""


class Refusal(Exception):
    """The broker refused a call, and nothing changed."""


@dataclass(eq=False)
class Delivered:
    """A message that a client holds."""

    name: str
    again: bool
    handle: str
    """The name of the message in settles: a delivery tag or an ack id."""
    subscription: Subscribed
    token: int
    """The number of the delivery in this run."""


@dataclass(eq=False)
class Subscribed:
    """A consumer of a queue on a connection."""

    queue: str
    id: str
    """Unique in the run."""
    limit: int
    """How many unsettled messages it may hold."""
    transacted: bool
    """Whether its settles and publishes wait for a commit."""
    on_message: Callable[[Delivered, float], None]
    """Called with a message, and a time at or before which the broker sent it."""
    channel: int = 0
    held: list[Delivered] = field(default_factory=list)
    """In the order of arrival."""


class WireLink(asyncio.Protocol):
    """One connection. Calls that wait for an answer get `Gone` when the connection ends."""

    wire: str

    def __init__(self, world: WireWorld, name: str) -> None:
        self.world, self.name = world, name
        self.transport: SimTransport
        self.is_gone = False
        self.received_at = world.now()
        self._made: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waits: dict[asyncio.Future[object], None] = {}
        self._rest = bytearray()
        self._broker: Broker | None = None
        self.beat_s = 0.0
        """Seconds between heart-beats of each side; 0 without heart-beats."""

    # ---------------------------------------------------------------------------------------------------- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimTransport)
        self.transport = transport
        if not self._made.done():
            self._made.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.received_at = self.world.now()
        self._rest += data
        self.parse(self._rest)

    def connection_lost(self, fault: Exception | None) -> None:
        self.is_gone = True
        for wait in list(self._waits):
            if not wait.done():
                wait.set_exception(Gone(str(fault)))

    def pause_writing(self) -> None:
        """Do nothing: a client of a run never writes that much."""

    # ---------------------------------------------------------------------------------------------------- for clients

    async def connect(self) -> None:
        """Connect and log in."""
        self._broker = await self.world.connect(self, self.wire)
        await self._made
        await self.log_in()

    @property
    def is_ending(self) -> bool:
        """Return whether a side has begun to close the connection, or the network has cut it."""
        return self.transport.ended_at < NEVER

    def drop(self) -> None:
        """Close the connection at once, without a goodbye of the protocol."""
        if self._made.done():
            self.transport.abort()

    @abstractmethod
    async def log_in(self) -> None:
        """Log in, and agree on heart-beats."""

    @abstractmethod
    def parse(self, rest: bytearray) -> None:
        """Handle the complete frames of the received bytes, and remove them."""

    @abstractmethod
    def beat(self) -> None:
        """Send a heart-beat."""

    @abstractmethod
    def publish(self, queue: str, body: bytes, *, persistent: bool) -> asyncio.Future[object]:
        """Publish; the future is done once the broker has stored the message, or fails with `Refusal`."""

    @abstractmethod
    async def subscribe(self, subscribed: Subscribed) -> None:
        """Begin to consume."""

    @abstractmethod
    async def unsubscribe(self, subscribed: Subscribed) -> None:
        """Stop consuming: held messages return to their queue. All earlier settles are durable on return."""

    @abstractmethod
    def settle(self, message: Delivered, verdict: Verdict) -> asyncio.Future[object] | None:
        """Settle a message; return a future that is done once that is durable, None if the wire sends no answer."""

    @abstractmethod
    async def transact(
        self,
        subscribed: Subscribed | None,
        publishes: Sequence[tuple[str, bytes]],
        settles: Sequence[tuple[Delivered, Verdict]],
        *,
        commit: bool,
    ) -> None:
        """Publish and settle in one transaction, durable on return; roll it back unless `commit`."""

    @abstractmethod
    async def close(self) -> None:
        """Close by the protocol, and wait for the answer of the broker."""

    # ---------------------------------------------------------------------------------------------------- for wires

    def waiting(self) -> asyncio.Future[object]:
        """Return a future for an answer; it fails when the connection ends."""
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
        """Wait for an answer; record a fault if the wire sends none in time."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await waiting
        except TimeoutError:
            if not self.is_ending:
                self.world.wire_history.faults.append(f"answers_come: {self.name} waited {PATIENCE_S} s for {what}")
            self.world.network.cut(self.transport)
            raise Gone(f"no answer to {what}") from None

    def broken(self, what: str) -> None:
        """Record an answer that a client which keeps the rules must never get, unless the journal failed."""
        if self._broker is not None and self._broker.failure is None:
            self.world.wire_history.faults.append(f"rules_kept: {self.name} at {self.world.now():.3f}: {what}")
        self.world.network.cut(self.transport)

    def fail(self, why: Exception) -> NoReturn:
        """End all calls that wait, and raise `why` for the current one."""
        for wait in list(self._waits):
            if not wait.done():
                wait.set_exception(why)
        raise why
