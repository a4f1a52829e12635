"""Sockets of one member: UDP for packets, TCP for state exchanges, on one port. Bounded in number, bytes and time.

It carries bytes, seals and opens them, and gives what is genuine to its owner. What is not genuine is counted, and
changes nothing. Both sides of a connection send a nonce of 16 bytes; then each message is its length (u32,
little-endian) and the sealed body.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Any, NamedTuple, cast

from wherry.mesh.gossip.codec.seal import NONCE_BYTES, SEAL_BYTES, Seal
from wherry.mesh.gossip.codec.states import OFFER_BYTES_MAX, STATE_BYTES_MAX
from wherry.mesh.gossip.values import GossipFault, MemberAddress
from wherry.model.errors import Unavailable

CONNECTIONS_MAX = 16
"""State exchanges that others have begun. The oldest that has not proved its key makes room for the next."""

EXCHANGE_S = 5.0
"""For a whole state exchange, its connection included."""

CLOSE_S = 1.0
"""For the end of a connection; then it is cut off."""

UNSENT_BYTES_MAX = 256 << 10
"""Packets that the system has not taken; more are dropped, as a network may."""

PORT_TRIES = 20
"""To find a port that is free for both protocols."""

_LENGTH = Struct("<I")

_log = logging.getLogger("wherry.gossip")


class GossipTls(NamedTuple):
    """Contexts for state exchanges: each side shows a certificate, and asks for one."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class PacketLink(asyncio.DatagramProtocol):
    """The UDP socket."""

    def __init__(self, seal: Seal, receive: Callable[[bytes, MemberAddress], None]) -> None:
        self._seal = seal
        self._receive = receive
        self._transport: asyncio.DatagramTransport | None = None
        self.refused = 0
        """Packets that were not genuine."""
        self.dropped = 0
        """Packets that the system was too slow to take."""
        self.unsent = 0
        """Packets that the system refused to send."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        """Give a genuine packet to the owner."""
        try:
            self._receive(self._seal.open(data), MemberAddress(addr[0], addr[1]))
        except GossipFault:
            self.refused += 1

    def error_received(self, exc: Exception) -> None:
        """Count that a packet of this process was not sent, or found nobody: a probe notices."""
        self._failed(exc)

    def send(self, body: bytes, to: MemberAddress) -> None:
        """Send a packet, or drop it."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if cast("asyncio.WriteTransport", transport).get_write_buffer_size() > UNSENT_BYTES_MAX:
            self.dropped += 1
            return
        try:
            transport.sendto(self._seal.seal(body), to)
        except (OSError, ValueError) as fault:  # a family of addresses that this socket has not
            self._failed(fault)

    def _failed(self, fault: Exception) -> None:
        self.unsent += 1
        if self.unsent == 1:
            _log.warning("a packet could not be sent: %s; later ones are only counted", fault)

    def close(self) -> None:
        """Close the socket; what was sent is on its way."""
        if self._transport is not None:
            self._transport.close()


class StateConversation:
    """One connection: nonces, then sealed messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seal: Seal) -> None:
        self._reader, self._writer, self._seal = reader, writer, seal

    async def greet(self, *, is_server: bool) -> None:
        """Exchange nonces."""
        own = secrets.token_bytes(NONCE_BYTES)
        self._writer.write(own)
        other = await self._reader.readexactly(NONCE_BYTES)
        self._seal = self._seal.between(own, other) if is_server else self._seal.between(other, own)

    async def send(self, body: bytes) -> None:
        """Send a message."""
        sealed = self._seal.seal(body)
        self._writer.write(_LENGTH.pack(len(sealed)) + sealed)
        await self._writer.drain()

    async def receive(self, bytes_max: int = STATE_BYTES_MAX) -> bytes:
        """Return the next message; raise `GossipFault` if it is too long or not genuine."""
        (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
        if length > bytes_max + SEAL_BYTES:
            raise GossipFault(f"{length} bytes of state; allowed: {bytes_max + SEAL_BYTES}")
        return self._seal.open(await self._reader.readexactly(length))


@dataclass(slots=True)
class StatePart:
    """The owner's part in state exchanges: bytes in, bytes out."""

    offer: Callable[[], bytes]
    answer: Callable[[bytes], bytes]
    conclude: Callable[[MemberAddress, bytes], bytes]
    absorb: Callable[[bytes], None]


class StateLinks:
    """The TCP listener, and connections to others."""

    def __init__(self, seal: Seal, part: StatePart, tls: GossipTls | None) -> None:
        self._seal = seal
        self._part = part
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._unproved: dict[asyncio.Task[None], None] = {}
        self._served: set[asyncio.Task[None]] = set()
        self.refused = 0
        """Exchanges that were not genuine, or broke off."""

    async def listen(self, host: str, port: int) -> int:
        """Listen; return the port."""
        tls: dict[str, Any] = (
            {} if self._tls is None else {"ssl": self._tls.server, "ssl_handshake_timeout": EXCHANGE_S}
        )
        # Not serving at first: a listener that is known here can be closed, whenever this is cancelled.
        self._server = await asyncio.start_server(self._accept, host, port, limit=1 << 16, start_serving=False, **tls)
        await self._server.start_serving()
        return int(self._server.sockets[0].getsockname()[1])

    async def exchange(self, at: MemberAddress) -> None:
        """Exchange states with the member at an address; raise `Unavailable` if that does not succeed."""
        try:
            async with asyncio.timeout(EXCHANGE_S):
                context = None if self._tls is None else self._tls.client
                reader, writer = await asyncio.open_connection(at.host, at.port, ssl=context, limit=1 << 16)
                try:
                    conversation = StateConversation(reader, writer, self._seal)
                    await conversation.greet(is_server=False)
                    await conversation.send(self._part.offer())
                    answer = await conversation.receive()
                    await conversation.send(self._part.conclude(at, answer))
                except BaseException:
                    _give_up(writer)
                    raise
                finally:
                    await _end(writer)
        except (OSError, EOFError, GossipFault, TimeoutError) as fault:
            reason = str(fault) or type(fault).__name__
            raise Unavailable(f"no exchange of state with {at.host}:{at.port}: {reason}") from None

    async def close(self) -> None:
        """Close the listener, and end what others have begun."""
        if self._server is not None:
            self._server.close()
        for task in list(self._served):
            task.cancel()
        if self._served:
            await asyncio.wait(self._served)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._served) >= CONNECTIONS_MAX:
            oldest = next(iter(self._unproved), None)
            if oldest is None:
                writer.close()
                return
            oldest.cancel()
            del self._unproved[oldest]
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._served.add(task)
        self._unproved[task] = None
        task.add_done_callback(self._served_one)

    def _served_one(self, task: asyncio.Task[None]) -> None:
        self._served.discard(task)
        self._unproved.pop(task, None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(EXCHANGE_S):
                conversation = StateConversation(reader, writer, self._seal)
                await conversation.greet(is_server=True)
                offer = await conversation.receive(OFFER_BYTES_MAX)
                self._unproved.pop(cast("asyncio.Task[None]", asyncio.current_task()), None)
                await conversation.send(self._part.answer(offer))
                self._part.absorb(await conversation.receive())
        except (OSError, EOFError, GossipFault, TimeoutError):
            self.refused += 1
            _give_up(writer)
        except BaseException:
            _give_up(writer)
            raise
        finally:
            await _end(writer)


def _give_up(writer: asyncio.StreamWriter) -> None:
    """Drop what the other side did not take."""
    if writer.transport.get_write_buffer_size():
        writer.transport.abort()


async def _end(writer: asyncio.StreamWriter) -> None:
    """Close a connection; cut it off if its other side does not take what is still to be sent."""
    writer.close()
    try:
        async with asyncio.timeout(CLOSE_S):
            await writer.wait_closed()
    except OSError:
        pass
    except (TimeoutError, asyncio.CancelledError) as fault:
        writer.transport.abort()
        if isinstance(fault, asyncio.CancelledError):
            raise


async def open_links(
    host: str, port: int, make: Callable[[], tuple[PacketLink, StateLinks]], *, tries: int = PORT_TRIES
) -> tuple[PacketLink, StateLinks, int]:
    """Listen for packets and state exchanges on one port, which the system chooses for port 0."""
    loop = asyncio.get_running_loop()
    for last in (at == tries - 1 or port != 0 for at in range(tries)):
        packets, states = make()
        try:
            chosen = await states.listen(host, port)
            await loop.create_datagram_endpoint(partial(_itself, packets), local_addr=(host, chosen))
        except BaseException as fault:
            await states.close()
            packets.close()
            if not isinstance(fault, OSError):
                raise
            if last:
                raise Unavailable(f"host: cannot listen at {host}, port {port}: {fault.strerror}") from None
            continue
        return packets, states, chosen
    raise AssertionError("unreachable")


def _itself(packets: PacketLink) -> PacketLink:
    return packets


def gossip_tls(certificate: str, key: str, authority: str) -> GossipTls:
    """Return contexts from PEM files: members trust each certificate of one authority, whatever its name."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
    client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authority)
    client.check_hostname = False  # members come from any address; the authority of the cluster is what counts
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(certificate, key)
    return GossipTls(server, client)
