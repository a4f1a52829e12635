"""A publish over the native wire: few messages as rows, many as an Arrow stream without a copy."""

from __future__ import annotations

from asyncio import Future
from typing import NamedTuple

from wherry.client.frames import Columns, batch_of, encode
from wherry.client.native.rows import rows_of
from wherry.client.native.session import NativeSession
from wherry.client.native.transport import BODY_BYTES_MAX
from wherry.client.requests import encoded
from wherry.model.calls.publish import Published, PublishOptions
from wherry.model.errors import InvalidInput
from wherry.wire.native.codec.frames import Chunk, chunk_bytes
from wherry.wire.native.codec.rows import RowFields

_OPTIONS = tuple(name for name in PublishOptions.__dataclass_fields__ if name != "origin")
"""What a client may give: where messages come from is what a node says of its peers."""


class PreparedPublish(NamedTuple):
    """The messages of a call, checked: rows, or else the chunks of an Arrow stream; and the options as JSON."""

    messages: int
    payloads: list[bytes]
    fields: list[RowFields] | None
    chunks: list[Chunk]
    options: bytes

    @property
    def fits(self) -> bool:
        """Whether a frame can hold it."""
        return chunk_bytes(self.chunks) <= BODY_BYTES_MAX

    def send(self, session: NativeSession, topic: str) -> Future[Published]:
        """Send the messages in this turn; the future has their places once they are stored."""
        if self.chunks:
            return session.publish_arrow(topic, self.chunks, self.messages, self.options)
        return session.publish(topic, self.payloads, self.fields, self.options)


def prepare(topic: object, messages: Columns, options: PublishOptions | None) -> PreparedPublish:
    """Check what a caller publishes; raise `InvalidInput` before anything is sent, or even connected."""
    if type(topic) is not str:
        raise InvalidInput("topic", topic, "text")
    terms = b"" if options is None else _terms(options)
    rows = rows_of(messages)
    if rows is not None:
        return PreparedPublish(len(rows[0]), *rows, [], terms)
    batch = batch_of(messages)
    return PreparedPublish(batch.num_rows, [], None, encode(batch), terms)


def _terms(options: PublishOptions) -> bytes:
    """Return the options that are given as JSON."""
    if not isinstance(options, PublishOptions):
        raise InvalidInput("options", options, "PublishOptions, or None")
    given = {name: value for name in _OPTIONS if (value := getattr(options, name)) is not None}
    return encoded(given) if given else b""
