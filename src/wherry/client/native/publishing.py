"""A publish over the native wire: few messages as rows, many as an Arrow stream without a copy."""

from __future__ import annotations

from asyncio import Future

from wherry.client.frames import Columns, batch_of, encode
from wherry.client.native.rows import rows_of
from wherry.client.native.session import NativeSession
from wherry.client.native.transport import BODY_BYTES_MAX
from wherry.client.requests import encoded
from wherry.model.calls.publish import Published, PublishOptions
from wherry.model.errors import InvalidInput
from wherry.wire.native.codec.frames import chunk_bytes

_OPTIONS = tuple(PublishOptions.__dataclass_fields__)


def send_publish(
    session: NativeSession, topic: str, messages: Columns, options: PublishOptions | None
) -> Future[Published] | None:
    """Send messages in this turn; return the future of their places, or None if they are too large for a frame."""
    terms = b"" if options is None else _terms(options)
    if type(topic) is not str:
        raise InvalidInput("topic", topic, "text")
    rows = rows_of(messages)
    if rows is not None:
        return session.publish(topic, *rows, terms)
    batch = batch_of(messages)
    chunks = encode(batch)
    if chunk_bytes(chunks) > BODY_BYTES_MAX:
        return None
    return session.publish_arrow(topic, chunks, batch.num_rows, terms)


def _terms(options: PublishOptions) -> bytes:
    """Return the options that are given as JSON."""
    if not isinstance(options, PublishOptions):
        raise InvalidInput("options", options, "PublishOptions, or None")
    given = {name: value for name in _OPTIONS if (value := getattr(options, name)) is not None}
    return encoded(given) if given else b""
