"""One topic over one link: subscribes at the peer, and publishes what comes in the own topic.

    SUBSCRIBE ──► DELIVER ──► take what is to come by this link ──► publish with its origin ──► on disk ──► ack

A message is acked at the peer once it is on disk here. What comes twice, because an ack was lost, is dropped by the
core. So the peer keeps what this node has not stored, up to the bound of the subscription; beyond it the subscription
is cut off like that of any client. Then this node subscribes again, and counts it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

import msgspec
import pyarrow as pa

from wherry.broker.port.port import BrokerPort
from wherry.client.batch import Batch
from wherry.client.link.backoff import Backoff
from wherry.client.native.session import NativeSession
from wherry.client.native.stream import ClientStream
from wherry.client.requests import SubscriptionRequests
from wherry.mesh.flow.links import MeshNode
from wherry.mesh.flow.passing import PassedOn, Source, take
from wherry.model.calls.publish import PublishOptions
from wherry.model.errors import (
    CutOff,
    DuplicateId,
    InvalidInput,
    LimitReached,
    StaleLease,
    TooLarge,
    WherryError,
)
from wherry.model.schema import content_bytes
from wherry.node.mesh.at_peer import (
    Backlog,
    Position,
    ask_topic,
    ask_why_gone,
    has_subscription,
    peer_terms,
    subscription_of,
)
from wherry.node.mesh.calling import SessionCaller
from wherry.node.mesh.figures import FlowFigures
from wherry.wire.native.codec.documents import SubscribeTerms

CREDIT = 4_000
"""Messages under way, or waiting here to be stored, at most."""

_log = logging.getLogger("wherry.mesh")


class TopicFlow:
    """The flow of one topic from one peer, while a session lasts."""

    def __init__(
        self,
        broker: BrokerPort,
        me: MeshNode,
        session: NativeSession,
        topic: str,
        figures: FlowFigures,
        backlog: Backlog,
        position: Position | None = None,
    ) -> None:
        self._broker, self._me, self._session = broker, me, session
        self._caller = SessionCaller(session)
        self._topic, self._figures, self._backlog = topic, figures, backlog
        self._position = position or Position()
        self._arrived: deque[Batch] = deque()
        """Deliveries that are not stored yet; the credit bounds them."""
        self._has_arrived: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Read the topic until the session ends, or raise why it cannot be read."""
        before = await ask_topic(self._session, self._topic)
        self._position.of(f"{before.node} {before.run} {self._broker.topic_number(self._topic)}")
        terms = await self._terms_of(before.partitions)
        stream = ClientStream(self._session, SubscriptionRequests(self._caller, self._topic, self._name), self._take)
        stream.subscribe(terms)
        try:
            await stream.opened
            self._position.is_given_up = False
            found = await ask_topic(self._session, self._topic)
            if found != before:  # it was made anew meanwhile: whose offsets the messages have is not known
                return
            peer = MeshNode(found.node, found.role, found.hub)
            await self._pump(stream, Source(peer, found.run, self._topic))
        except CutOff as fault:
            self._note_cut_off(str(fault))
            raise
        finally:
            await stream.cancel()

    @property
    def _name(self) -> str:
        """The name of the subscription at the peer; a node in another role gets other messages."""
        return subscription_of(self._me.name, self._me.role)

    async def _terms_of(self, partitions: int) -> SubscribeTerms:
        """Return how to subscribe to a topic with so many partitions: as before, or anew behind what is stored."""
        terms = self._terms()
        assert terms.create is not None
        if await has_subscription(self._session, self._topic, self._name, terms.create):
            return msgspec.structs.replace(terms, create=None)
        if not self._position.is_given_up and (why := await ask_why_gone(self._session, self._topic, self._name)):
            self._note_cut_off(f"while this node was away, its subscription was cut off: {why}")
        return msgspec.structs.replace(terms, create={**terms.create, **self._position.start(partitions)})

    def _note_cut_off(self, why: str) -> None:
        """Note that the peer dropped the backlog: what is not here yet may be missing for good."""
        self._position.is_given_up = True
        self._figures.cut_offs += 1
        self._figures.last_fault = why
        _log.warning("a peer dropped the backlog for this node", extra={"topic": self._topic, "why": why})

    def _terms(self) -> SubscribeTerms:
        create = peer_terms(self._me, self._backlog)
        return SubscribeTerms(topic=self._topic, subscription=self._name, credit=CREDIT, create=create)

    def _take(self, batch: Batch, size: int) -> None:
        self._arrived.append(batch)
        if self._has_arrived is not None and not self._has_arrived.done():
            self._has_arrived.set_result(None)

    async def _pump(self, stream: ClientStream, source: Source) -> None:
        """Store what arrives, and ack it without waiting for the answer: a far peer would give one delivery a trip."""
        acking: set[asyncio.Task[None]] = set()
        try:
            while (first := await self._next(stream)) is not None:
                batches = [first]
                while self._arrived and self._arrived[0].data.schema == first.data.schema:
                    batches.append(self._arrived.popleft())
                joined = _joined(batches)
                taken = take(self._me, source, joined)
                self._figures.left_out += taken.left_out
                for part in taken.parts:
                    await self._store(part)
                self._position.note(joined)
                for batch in batches:
                    task = asyncio.create_task(self._ack(stream, batch), name="wherry mesh ack")
                    acking.add(task)  # as many as the credit allows
                    task.add_done_callback(acking.discard)
        finally:
            for task in acking:
                task.cancel()

    async def _ack(self, stream: ClientStream, batch: Batch) -> None:
        """Ack a delivery that is stored, and let the peer send as many messages more."""
        try:
            await stream.settle("ack", batch.leases())
        except StaleLease:
            pass  # they come again, and are dropped as repeats
        except WherryError as fault:
            if not self._session.is_closed:
                self._figures.last_fault = str(fault)  # the stream has ended, or ends
            return
        if not stream.is_over and not self._session.is_closed:
            stream.grant(batch.count)

    async def _next(self, stream: ClientStream) -> Batch | None:
        """Return the next delivery; None at the end of the stream, or raise why the stream ended."""
        while not self._arrived:
            if stream.left.done():
                if stream.ended.done() and (fault := stream.ended.result()) is not None:
                    raise fault
                return None
            self._has_arrived = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._has_arrived, stream.left], return_when=asyncio.FIRST_COMPLETED)
        return self._arrived.popleft()

    async def _store(self, part: PassedOn) -> None:
        """Publish messages of one origin, in smaller parts where they do not fit at once.

        Wait while there is no room for the next message; leave out one that can never be stored.
        """
        backoff = Backoff()
        while True:
            try:
                await self._publish(part)
                return
            except (InvalidInput, TooLarge, DuplicateId, LimitReached) as fault:
                count = part.messages.num_rows
                if count > 1:  # a bound may be smaller than a delivery
                    for start, stop in ((0, count // 2), (count // 2, count)):
                        await self._store(part.part(start, stop))
                    return
                self._figures.last_fault = str(fault)
                if not isinstance(fault, LimitReached) or self._is_beyond_bounds(part):
                    self._figures.refused += 1
                    more = {"topic": self._topic, "why": str(fault)}
                    _log.warning("a message of a peer cannot be stored", extra=more)
                    return
                if self._session.is_closed:
                    raise
                await backoff.pause()

    def _is_beyond_bounds(self, part: PassedOn) -> bool:
        """Return whether a message is larger than all that the topic may hold."""
        bytes_max = self._broker.topic(self._topic).bytes_max
        return bytes_max is not None and content_bytes(part.messages) > bytes_max

    async def _publish(self, part: PassedOn) -> None:
        partition = part.origin.place.partition % self._broker.topic(self._topic).partitions
        options = PublishOptions(partition=partition, origin=part.origin)
        published = await self._broker.publish(self._topic, part.messages, options)
        self._figures.stored += len(published)
        self._figures.repeated += part.messages.num_rows - len(published)


def _joined(batches: list[Batch]) -> pa.RecordBatch:
    """Return deliveries with the same columns as one batch."""
    if len(batches) == 1:
        return batches[0].data
    return pa.Table.from_batches([batch.data for batch in batches]).combine_chunks().to_batches()[0]
