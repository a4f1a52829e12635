"""The publishes of one session: turns a PUBLISH into rows or a batch, in the order in which the frames came.

A large Arrow stream is validated in a thread. Publishes to the same topic that come meanwhile wait behind it; those to
other topics do not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pyarrow as pa

from wherry.broker.port.port import BrokerPort
from wherry.model.calls.publish import PLAIN, PublishOptions
from wherry.model.calls.rows import BARE, ROW_BYTES, Handling, Rows, single_row
from wherry.model.catalog.topic import Topic
from wherry.model.errors import WherryError
from wherry.model.schema import Message, Publishable
from wherry.wire import arrow_stream
from wherry.wire.native.codec.documents import decode_document
from wherry.wire.native.codec.frames import Flag
from wherry.wire.native.codec.publishes import PublishRequest, PublishTerms, decode_publish
from wherry.wire.native.codec.rows import RowFields
from wherry.wire.native.intake import PublishIntake, PublishListener, PublishOwner

ROW_BYTES_MAX = 64 << 10
"""A larger message is not collected with those of other clients: beside its body a batch of its own is cheap."""

Spawn = Callable[[Coroutine[Any, Any, None]], object]


class Publishing:
    """The way of one session's publishes into the intake."""

    def __init__(self, broker: BrokerPort, intake: PublishIntake, session: PublishListener, spawn: Spawn) -> None:
        self._broker, self._intake, self._session, self._spawn = broker, intake, session, spawn
        self._behind: dict[str, deque[tuple[PublishRequest, PublishOptions, PublishOwner]]] = {}
        """By topic: publishes that wait for an Arrow stream which a thread reads."""
        self.unstored_bytes = 0
        """Bytes of this session that are not durable yet."""
        self.under_way = 0
        """Publishes that are not answered yet."""

    def publish(self, number: int, flags: int, body: bytes, check: Callable[[str], object]) -> None:
        """Publish what a frame holds; `check` raises if the client may not publish to a topic."""
        request = decode_publish(flags, body)
        check(request.topic)
        options = self._options(request.options) if request.options else PLAIN
        owner = PublishOwner(
            self._session, number, bool(flags & Flag.QUIET), len(body) + ROW_BYTES * len(request.payloads)
        )
        self.unstored_bytes += owner.size
        self._intake.unstored_bytes += owner.size
        self.under_way += 1
        behind = self._behind.get(request.topic)
        if behind is not None:
            behind.append((request, options, owner))
        elif not self._is_lone(request, owner):
            self._begin(request, options, owner)

    def _is_lone(self, request: PublishRequest, owner: PublishOwner) -> bool:
        """Return whether a publish is one payload without options that has no company so far."""
        if request.options or request.fields is not None or len(request.payloads) != 1:
            return False
        gather = partial(self._begin, request, PLAIN, owner)
        return self._intake.add_lone(request.topic, request.payloads[0], owner, gather)

    def take_stored(self, size: int) -> None:
        """Note that a publish of so many bytes is durable, or refused."""
        self.unstored_bytes -= size
        self._intake.unstored_bytes -= size
        self.under_way -= 1

    def _options(self, text: bytes) -> PublishOptions:
        terms = decode_document("client", PublishTerms, text, "options")
        return PublishOptions(
            partition=terms.partition,
            producer=terms.producer,
            sequence=terms.sequence,
            persistent=terms.persistent,
            callback=terms.callback,
            fingerprint=terms.fingerprint,
        )

    def _begin(self, request: PublishRequest, options: PublishOptions, owner: PublishOwner) -> None:
        """Add the messages of a frame, or begin to read its Arrow stream in a thread."""
        if request.arrow is not None and request.arrow.nbytes > arrow_stream.WHOLE_BYTES:
            self._behind[request.topic] = deque()
            self._spawn(self._read_in_thread(request, options, owner))
            return
        try:
            self._add(request, options, owner, None if request.arrow is None else arrow_stream.read(request.arrow))
        except WherryError as fault:
            self._give_up(owner, fault)

    def _give_up(self, owner: PublishOwner, fault: WherryError) -> None:
        self._session.take_stored(owner.size)
        self._session.refuse(owner.number, fault)

    async def _read_in_thread(self, request: PublishRequest, options: PublishOptions, owner: PublishOwner) -> None:
        assert request.arrow is not None
        try:
            self._add(request, options, owner, await asyncio.to_thread(arrow_stream.read, request.arrow))
        except WherryError as fault:
            self._give_up(owner, fault)
        finally:
            behind = self._behind.pop(request.topic)
            while behind and request.topic not in self._behind:
                self._begin(*behind.popleft())
            if behind:  # another large stream came first
                self._behind[request.topic].extend(behind)

    def _add(
        self, request: PublishRequest, options: PublishOptions, owner: PublishOwner, batch: pa.RecordBatch | None
    ) -> None:
        topic = request.topic
        if batch is None:
            config = self._broker.find_topic(topic) if options is PLAIN or options.is_plain else None
            if config is not None:
                persistent = config.persistent if options.persistent is None else options.persistent
                found = gathered(request, config, persistent=persistent)
                if found is not None:
                    self._intake.add_rows(topic, *found, owner)
                    return
        self._intake.add_batch(topic, batch if batch is not None else messages_of(request), options, owner)


def gathered(request: PublishRequest, config: Topic, *, persistent: bool) -> tuple[Rows, Handling] | None:
    """Return the messages of a frame as rows that may become one batch with those of others; None if they may not.

    Not messages with an id, for which the disk may have to be read while others would wait; not those without a key for
    one of several partitions, which go to one partition after the other by call.
    """
    payloads, fields = request.payloads, request.fields
    if max(map(len, payloads)) > min(ROW_BYTES_MAX, config.payload_bytes_max):
        return None
    if fields is None:
        return (Rows(payloads), BARE[persistent]) if config.partitions == 1 else None
    if len(payloads) > 1 or (config.partitions > 1 and fields[0].key is None):
        return None
    row = single_row(_message(payloads[0], fields[0]))
    return None if row is None else (row.rows, Handling(persistent, row.priority, row.expires, row.due))


def messages_of(request: PublishRequest) -> Publishable:
    """Return the rows of a frame as messages, for a batch of their own."""
    if request.fields is None:
        return request.payloads
    return list(map(_message, request.payloads, request.fields))


def _message(payload: bytes, fields: RowFields) -> Message:
    key, headers, priority, due_ms, expires_ms, message_id, envelope = fields
    return Message(
        payload=payload,
        id=message_id,
        key=key,
        priority=priority,
        due_ms=due_ms,
        expires_ms=expires_ms,
        headers=None if headers is None else dict(headers),
        envelope=envelope,
    )
