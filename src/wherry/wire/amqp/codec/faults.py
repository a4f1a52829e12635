"""Faults of a peer, with the reply code of the protocol for each."""

from __future__ import annotations

from enum import IntEnum


class ReplyCode(IntEnum):
    """The reply codes of the specification. RabbitMQ's reply texts begin with their names."""

    SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541


SOFT = frozenset(
    {
        ReplyCode.CONTENT_TOO_LARGE,
        ReplyCode.NO_ROUTE,
        ReplyCode.NO_CONSUMERS,
        ReplyCode.ACCESS_REFUSED,
        ReplyCode.NOT_FOUND,
        ReplyCode.RESOURCE_LOCKED,
        ReplyCode.PRECONDITION_FAILED,
    }
)
"""The codes that end a channel only, unless the fault overrides it; all others end the connection."""

NO_METHOD = (0, 0)
"""The class and method of a fault that no method caused."""


class AmqpFault(Exception):
    """A broken rule of the protocol: the peer gets a close with this code, text, class and method.

    A hard fault ends the connection; a soft one ends its channel. The kind follows from the code where `hard` is not
    given.
    """

    def __init__(
        self,
        code: ReplyCode,
        detail: str,
        *,
        channel: int = 0,
        ids: tuple[int, int] = NO_METHOD,
        hard: bool | None = None,
    ) -> None:
        super().__init__(code, detail, channel, ids)
        self.code = code
        self.detail = detail
        self.channel = channel
        self.class_id, self.method_id = ids
        self.hard = channel == 0 or (code not in SOFT if hard is None else hard)

    @property
    def text(self) -> str:
        """Return the reply text: the name of the code, then the detail, cut to the length of a short string."""
        return short(f"{self.code.name} - {self.detail}")

    def __str__(self) -> str:
        return f"{int(self.code)} {self.text}"


def short(text: str, bound: int = 255) -> str:
    """Return a text cut to so many bytes of UTF-8, between two characters."""
    encoded = text.encode("utf-8", "surrogateescape")
    if len(encoded) <= bound:
        return text
    return encoded[: bound - 3].decode("utf-8", "ignore") + "…"
