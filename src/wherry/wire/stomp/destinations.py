"""Destinations: the names that clients use, and the exchange, routing key or queue that each means.

| destination | SEND | SUBSCRIBE |
|---|---|---|
| `/queue/x`, or `x` | to the queue, which is made if it does not exist | from the queue, likewise |
| `/amq/queue/x` | to the queue, if it exists | from the queue, which must exist |
| `/topic/x` | to `amq.topic` with the key `x` | from a queue of its own, bound with the pattern `x` |
| `/exchange/e/k` | to the exchange with the key `k` | from a queue of its own, bound with the pattern `k` |
| `/reply-queue/q` | to the queue that a `reply-to` named | – |
| `/temp-queue/x` | only as `reply-to`: a queue of the session's own | – |

A slash, a percent sign and characters beyond ASCII are written `%XX` within a name, as in a URL.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote

from wherry.queueing.names import SHORT_BYTES_MAX, is_short
from wherry.wire.stomp.codec import StompFault, shown

TOPICS = "amq.topic"
"""The exchange behind `/topic/`."""

TEMPORARY, REPLY = "/temp-queue/", "/reply-queue/"
OWN = "stomp-subscription-"
"""The prefix of queues that were made for subscriptions."""

Kind = Literal["queue", "amq-queue", "topic", "exchange", "reply-queue", "temp-queue"]

PREFIXES: dict[str, Kind] = {
    TEMPORARY: "temp-queue",
    "/exchange/": "exchange",
    "/topic/": "topic",
    "/queue/": "queue",
    "/amq/queue/": "amq-queue",
    REPLY: "reply-queue",
}


class Destination(NamedTuple):
    """An exchange and a routing key; with the default exchange the key names the queue."""

    kind: Kind
    exchange: str
    key: str


@lru_cache(maxsize=8_192)
def parsed(text: str) -> Destination:
    """Return a destination; raise the fault to answer with."""
    if "/" not in text:
        return _of_kind("queue", f"/{text}" if text else "")
    for prefix, kind in PREFIXES.items():
        if text.startswith(prefix) or text == prefix[:-1]:
            return _of_kind(kind, text[len(prefix) - 1 :])
    known = ", ".join(prefix[:-1] for prefix in PREFIXES)
    text = f"'{shown(text)}' is not a valid destination.\nValid destination types are: {known}.\n"
    raise StompFault("Unknown destination", text)


def _of_kind(kind: Kind, rest: str) -> Destination:
    """Return the destination for what follows the prefix, which begins with a slash unless it is empty."""
    if kind == "reply-queue":  # used as it was given out
        return Destination(kind, "", _checked(kind, rest, rest[1:]))
    parts = [unquote(part, errors="surrogateescape") for part in rest[1:].split("/")]
    if kind == "exchange":
        if len(parts) > 2 or not parts[0]:
            raise _invalid(kind, rest, "/exchange/name or /exchange/name/key, with %2F for a slash")
        key = _bounded(kind, rest, parts[1]) if len(parts) == 2 else ""
        return Destination(kind, _checked(kind, rest, parts[0]), key)
    if len(parts) != 1:
        raise _invalid(kind, rest, "one name, with %2F for a slash")
    return Destination(kind, TOPICS if kind == "topic" else "", _checked(kind, rest, parts[0]))


def _checked(kind: Kind, rest: str, name: str) -> str:
    if not name:
        raise _invalid(kind, rest, "a name that is not empty")
    return _bounded(kind, rest, name)


def _bounded(kind: Kind, rest: str, name: str) -> str:
    if not is_short(name):
        raise _invalid(kind, rest, f"a name of at most {SHORT_BYTES_MAX} bytes, in UTF-8")
    return name


def _invalid(kind: Kind, rest: str, allowed: str) -> StompFault:
    text = f"'{shown(rest)}' is not a valid {kind} destination\n"
    return StompFault("Invalid destination", text, f"allowed: {allowed}")


def missing_destination(command: str) -> StompFault:
    """Return the fault for a frame without a destination."""
    return StompFault("Missing destination", f"\"{command}\" must include a 'destination' header\n")


@lru_cache(maxsize=8_192)
def written(exchange: str, key: str) -> str:
    """Return the destination of a MESSAGE, as a SEND would name it."""
    if exchange == "":
        return f"/queue/{_escaped(key)}"
    if exchange == TOPICS:
        return f"/topic/{_escaped(key)}"
    return f"/exchange/{_escaped(exchange)}" + (f"/{_escaped(key)}" if key else "")


_PLAIN = "".join(chr(code) for code in range(32, 127) if chr(code) not in "/%")


def _escaped(name: str) -> str:
    return quote(name, safe=_PLAIN, errors="surrogateescape")


def lasting_name(owner: str | None, *parts: str) -> str:
    """Return the queue of a durable subscription: for ever the same for the same parts.

    It begins with the name of the key if there are keys. Names that are written so contain no colon: a right to
    `stomp-subscription-mary:*` covers exactly the queues of Mary.
    """
    digest = hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=16)
    if owner is None:
        return OWN + digest.hexdigest()
    name = f"{OWN}{quote(owner, safe='')}:{digest.hexdigest()}"
    if not is_short(name):
        most = SHORT_BYTES_MAX - len(name) + len(quote(owner, safe=""))
        text = f"the key is {owner[:80]!r}; a durable subscription needs one with a name of at most {most} bytes"
        raise StompFault("Not supported", f"{text}, in letters, digits, - . _ ~ or %XX")
    return name
