"""Virtual hosts that are made while the node runs: each is kept as the route that would be its default exchange.

Queues and exchanges of `staging` are the topics and routes `@staging/…`; its exchange without a name, which needs no
route to do its work, is the place where the host itself is written down.
"""

from __future__ import annotations

import logging

import msgspec

from wherry.model.catalog.route import Route
from wherry.model.errors import InvalidInput
from wherry.queueing.hosts.exchanges import ExchangeTerms
from wherry.queueing.names import LABEL, ROOT, full_name, is_short

HOST_LABEL = "amqp-vhost"

_log = logging.getLogger("wherry.queueing")


class HostNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A virtual host, and what was said of it when it was made."""

    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    is_shut: bool = False
    """Whether it is only for users who were granted something in it: `guest`, who may do everything, is not let in."""


def route_of(note: HostNote) -> Route:
    """Where a virtual host is kept."""
    if not note.name or note.name == ROOT or not is_short(note.name):
        raise InvalidInput("vhost", note.name, "a name of 1 to 255 bytes")
    terms = msgspec.json.encode(ExchangeTerms(durable=True)).decode()
    labels = {LABEL: terms, HOST_LABEL: msgspec.json.encode(note).decode()}
    return Route(name=full_name(note.name, ""), kind="direct", labels=labels)


def note_of(route: Route) -> HostNote | None:
    """The virtual host that is kept in a route; None for every other one, whatever others wrote into its labels."""
    label = route.labels.get(HOST_LABEL)
    if label is None:
        return None
    try:
        note = msgspec.json.decode(label, type=HostNote)
    except (msgspec.DecodeError, ValueError):
        note = HostNote(name="")
    if not note.name or note.name == ROOT or route.name != full_name(note.name, ""):
        _log.warning("a label is no virtual host", extra={"route": route.name, "label": HOST_LABEL})
        return None
    return note
