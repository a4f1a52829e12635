"""What all queue clients of a node share: the virtual hosts, the intake, the settling, and work in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import msgspec

from wherry.broker.port.port import BrokerPort
from wherry.model.errors import NotFound, WherryError
from wherry.queueing import clock
from wherry.queueing.flow.dead_letters import BY, DeadLetterMover
from wherry.queueing.flow.delivering import QueueDelivery, Settling
from wherry.queueing.flow.intake import Intake
from wherry.queueing.hosts import exchanges, queue_terms
from wherry.queueing.hosts.notes import HostNote, note_of, route_of
from wherry.queueing.hosts.queue import Queue
from wherry.queueing.hosts.queue_terms import LEASE_MS
from wherry.queueing.hosts.virtual_host import VirtualHost
from wherry.queueing.login import Login
from wherry.queueing.message.properties import UsedProperties, replaced, used_properties
from wherry.queueing.message.table import without
from wherry.queueing.names import LABEL, ROOT, host_and_name
from wherry.queueing.refusals import Reason, Refused, refused

TICK_S, MANY, TICK_MANY_S = 0.1, 1_000, 1.0
"""How late an unused queue may expire; with many queues later, since each tick looks at all of them."""

_log = logging.getLogger("wherry.queueing")


class WireSession(Protocol):
    """A session of any wire over a virtual host."""

    @property
    def is_open(self) -> bool:
        """Whether the client has entered a virtual host, and has not left it."""

    @property
    def host(self) -> VirtualHost:
        """The virtual host that the client has entered."""

    async def close(self, text: str) -> None:
        """Send the reason to the client, and close."""

    def deliveries(self) -> Iterable[QueueDelivery]:
        """Return the deliveries of which the client holds some messages."""


class Queueing:
    """The virtual hosts of a node, and what their clients share, over any wire."""

    def __init__(self, broker: BrokerPort, names: Iterable[str] = (ROOT,)) -> None:
        self.broker = broker
        self.intake = Intake(broker)
        self.settling = Settling()
        self.configured = tuple(names)
        """Virtual hosts of the configuration, which cannot be deleted."""
        self._notes = {note.name: note for note in map(note_of, broker.routes()) if note is not None}
        """Notes of virtual hosts that were made while the node ran."""
        self.hosts = {name: VirtualHost(broker, name) for name in (*self.configured, *self._notes)}
        self._changing = asyncio.Lock()
        """Held while a virtual host is made or deleted."""
        self.naming = asyncio.Lock()
        """Held while a user is made: no two users have the same name."""
        self.clients: dict[WireSession, None] = {}
        """In the order in which they connected."""
        self._mover = DeadLetterMover(broker, self._targets)
        self._background: set[asyncio.Task[None]] = set()
        self._renew_at = clock.now_s() + LEASE_MS / 3_000

    def enter(self, name: str, login: Login) -> VirtualHost:
        """Return a virtual host by name, for any wire; raise `NotFound`, or `Forbidden` for a client without access."""
        found = self.hosts.get(name)
        if found is None:
            raise NotFound("vhost", name)
        login.check_host(name, is_shut=self.note_of(name).is_shut)
        return found

    def note_of(self, name: str) -> HostNote:
        """Return the note with description and tags of a virtual host."""
        return self._notes.get(name) or HostNote(name=name)

    async def make_host(self, name: str, description: str = "", tags: tuple[str, ...] = ()) -> bool:
        """Make a virtual host that survives restarts; return whether it is new."""
        async with self._changing:
            is_new = name not in self.hosts
            if is_new or name in self._notes:
                shut = self.note_of(name).is_shut
                await self._note(HostNote(name=name, description=description, tags=tags, is_shut=shut))
                self.hosts.setdefault(name, VirtualHost(self.broker, name))
            return is_new

    async def _note(self, note: HostNote) -> None:
        await self.broker.put_route(route_of(note))
        self._notes[note.name] = note

    async def shut_host(self, name: str, *, shut: bool) -> bool:
        """Shut a virtual host to `guest`, or open it again; return whether that is a change."""
        async with self._changing:
            known = self.note_of(name)
            if known.is_shut == shut:
                return False
            if name not in self._notes:
                text = f"vhost '{name}' is named in the configuration, and open to everybody without keys"
                raise refused(Reason.NOT_ALLOWED, text)
            await self._note(msgspec.structs.replace(known, is_shut=shut))
            return True

    def check_made(self, name: str) -> None:
        """Raise a refusal for a virtual host that the configuration names: it cannot be deleted."""
        if name in self.configured:
            text = f"vhost '{name}' is named in the configuration, and would be back with the next start"
            raise refused(Reason.NOT_ALLOWED, text)

    async def delete_host(self, name: str) -> None:
        """Delete a virtual host with all that is in it; its clients are sent the reason and closed."""
        self.check_made(name)
        async with self._changing:
            host = self.hosts.pop(name, None)
            if host is None:
                return
            try:
                for client in [each for each in self.clients if each.is_open and each.host is host]:
                    await client.close(f"vhost '{name}' is down")
                await host.delete_all()
                await self.broker.delete_route(route_of(self._notes[name]).name)
            except BaseException:
                self.hosts[name] = host
                raise
            del self._notes[name]

    def _targets(self, host: str, exchange: str, key: str, known: UsedProperties) -> tuple[Queue, ...]:
        """Return the queues that a dead letter is moved to; none if the exchange does not exist."""
        try:
            found = self.hosts[host]
            found.exchange_index.terms(exchange)
            try:
                return found.targets(exchange, key, known)
            except Refused:  # its CC or BCC, of another wire, is no list of text: then it has only its own key
                headers = without(known.headers, ("CC", "BCC"))
                return found.targets(exchange, key, used_properties(replaced(known.raw, "headers", headers)))
        except (KeyError, Refused):
            return ()

    # ----------------------------------------------------------------------------------------------------- by itself

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Delete what does not survive a restart, then run the work in the background until the end."""
        await self._clear_away()
        self.broker.watch_dead_letters(self._mover.note)
        self.broker.forward_expired(self._mover.expiring, by=BY)
        tasks = [asyncio.create_task(work, name="wherry queueing") for work in (self._mover.run(), self._tick())]
        try:
            yield
        finally:
            self.broker.watch_dead_letters(None)
            self.broker.forward_expired(None)
            for task in (*tasks, *self._background):
                task.cancel()
            await asyncio.gather(*tasks, *self._background, return_exceptions=True)
            for host in self.hosts.values():
                await host.close()

    async def _clear_away(self) -> None:
        """Delete queues and exchanges that were not durable, or belonged to a connection."""
        for topic in self.broker.topics():
            if LABEL in topic.labels:
                terms = queue_terms.terms_of(topic)
                if terms.exclusive or not terms.durable:
                    await self.broker.delete_topic(topic.name)
                elif terms.expires_ms is not None:  # its time begins again now
                    host, name = host_and_name(topic.name)
                    if host in self.hosts:
                        self.hosts[host].queue(name)
        for route in self.broker.routes():
            if LABEL in route.labels and not exchanges.terms_of(route).durable:
                await self.broker.delete_route(route.name)

    async def _tick(self) -> None:
        while True:
            expiring = sum(len(host.expiring) for host in self.hosts.values())
            await asyncio.sleep(TICK_S if expiring < MANY else TICK_MANY_S)
            now = clock.now_s()
            for host in self.hosts.values():
                for queue in host.expired(now):
                    self.run_in_background(host.delete_queue(queue))
            if now >= self._renew_at:
                self._renew_at = now + LEASE_MS / 3_000
                self._renew()

    def _renew(self) -> None:
        """Renew the leases of messages that clients hold: they hold them as long as their session is open."""
        for queue_delivery in dict.fromkeys(each for client in self.clients for each in client.deliveries()):
            try:
                queue_delivery.renew()
            except WherryError as fault:
                _log.debug("a lease was not renewed", extra={"why": str(fault)})

    def run_in_background(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a deletion, or the requeues of a session that has ended, in the background."""

        async def done() -> None:
            try:
                await work
            except NotFound:
                pass
            except WherryError as fault:
                _log.warning("work in the background failed", extra={"why": str(fault)})

        task = asyncio.get_running_loop().create_task(done())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def background_done(self) -> None:
        """Wait until the work that `run_in_background` was given so far is done."""
        if self._background:
            await asyncio.wait(set(self._background))
