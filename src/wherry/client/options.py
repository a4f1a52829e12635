"""The options of producers and consumers, by name; each has a default and a bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypedDict

from wherry.model import check
from wherry.model.catalog.subscription import BUFFER_MAX
from wherry.model.errors import InvalidInput
from wherry.model.limits import BATCH_MESSAGES_MAX, CONSUMER_ID_CHARS_MAX


class ProducerOptions(TypedDict, total=False):
    """Options of a producer.

    Parameters
    ----------
    name
        What its name at the broker begins with. The rest is random: the numbers of its messages begin at 0 each time,
        so a name that was used before would have new messages taken for old ones.
    linger_ms
        How long a message waits for others to be sent with. While a request is under way the next batch grows by
        itself; a linger makes batches larger for producers that publish slowly.
    batch_messages, batch_bytes
        Of one request.
    buffer_messages, buffer_bytes
        In this client, not answered yet; when the buffer is full, `publish` waits.
    in_flight
        Senders. With more than one, order holds only among the messages of one sender.
    patience_s
        How long a batch is tried again while the broker cannot be reached.
    """

    name: str
    linger_ms: int
    batch_messages: int
    batch_bytes: int
    buffer_messages: int
    buffer_bytes: int
    in_flight: int
    patience_s: float


class ConsumerOptions(TypedDict, total=False):
    """Options of a consumer.

    Parameters
    ----------
    name
        What its name at the broker begins with, so that people know it there. The rest is random: of two consumers with
        the same name, one would send the other away when it leaves.
    ack
        `manual`: each message is settled by the caller. `auto`: a message is acked when the loop asks for the next
        one. It is not when the loop ends: after an error it has failed, after a `break` it is given back untouched.
    pull_messages, pull_bytes
        Of one pull, at most: pulls begin small and grow with the pace of the reader. 1 for work that takes minutes.
    buffer_messages
        Messages not settled at a time, waiting here or with the reader; when the reader has all of them, no more are
        pulled until some are settled.
    ack_linger_ms
        How long an ack that no call waits for is kept back, to be sent with others.
    renew
        Whether leases are renewed while messages are held.
    """

    name: str
    ack: Literal["manual", "auto"]
    pull_messages: int
    pull_bytes: int
    buffer_messages: int
    ack_linger_ms: int
    renew: bool


PRODUCER: ProducerOptions = {
    "linger_ms": 0,
    "batch_messages": 2_000,
    "batch_bytes": 1 << 20,
    "buffer_messages": 20_000,
    "buffer_bytes": 16 << 20,
    "in_flight": 1,
    "patience_s": 120.0,
}

CONSUMER: ConsumerOptions = {
    "ack": "manual",
    "pull_messages": 2_000,
    "pull_bytes": 16 << 20,
    "buffer_messages": 8_000,
    "ack_linger_ms": 5,
    "renew": True,
}

NAME_CHARS_MAX = CONSUMER_ID_CHARS_MAX - 20
"""The end of a name, `-0123456789abcdef/63` at most, has to fit too."""

_BOUNDS = {
    "linger_ms": (0, 60_000),
    "batch_messages": (1, BATCH_MESSAGES_MAX),
    "batch_bytes": (1, 32 << 20),
    "buffer_messages": (1, BUFFER_MAX),
    "buffer_bytes": (1, BUFFER_MAX),
    "in_flight": (1, 64),
    "pull_messages": (1, 65_536),
    "pull_bytes": (1, BUFFER_MAX),
    "ack_linger_ms": (0, 60_000),
}


def producer_options(given: ProducerOptions) -> ProducerOptions:
    """Return these options with the defaults, or raise `InvalidInput`."""
    _check(given, PRODUCER)
    return {**PRODUCER, **given}


def consumer_options(given: ConsumerOptions) -> ConsumerOptions:
    """Return these options with the defaults, or raise `InvalidInput`."""
    _check(given, CONSUMER)
    return {**CONSUMER, **given}


def _check(given: Mapping[str, object], known: Mapping[str, object]) -> None:
    for name, value in given.items():
        if name == "name":
            check.graphic(name, value, NAME_CHARS_MAX)
        elif name not in known:
            raise InvalidInput(name, value, "one of name, " + ", ".join(known))
        elif name in _BOUNDS:
            check.integer(name, value, *_BOUNDS[name])
        elif name == "ack":
            check.one_of(name, value, ("manual", "auto"))
        elif name == "renew":
            check.flag(name, value)
        else:
            check.number(name, value, 0, 1e9)
