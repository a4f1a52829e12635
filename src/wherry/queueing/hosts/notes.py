"""Virtual hosts that were made while the node ran: each is kept as the route that would be its default exchange.

Queues and exchanges of `staging` are the topics and routes `@staging/…`. Its default exchange has no name and needs no
route, so the route of that name holds the note about the virtual host itself.
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
    """A virtual host, with the description and tags that it was made with."""

    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    is_shut: bool = False
    """Whether only users with a grant in it may enter: `guest`, who may do everything else, may not."""


def route_of(note: HostNote) -> Route:
    """Return the route that keeps a virtual host."""
    if not note.name or note.name == ROOT or not is_short(note.name):
        raise InvalidInput("vhost", note.name, "a name of 1 to 255 bytes")
    terms = msgspec.json.encode(ExchangeTerms(durable=True)).decode()
    labels = {LABEL: terms, HOST_LABEL: msgspec.json.encode(note).decode()}
    return Route(name=full_name(note.name, ""), kind="direct", labels=labels)


def note_of(route: Route) -> HostNote | None:
    """Return the virtual host that a route keeps; None for other routes, whatever clients wrote into their labels."""
    label = route.labels.get(HOST_LABEL)
    if label is None:
        return None
    try:
        note = msgspec.json.decode(label, type=HostNote)
    except (msgspec.DecodeError, ValueError):
        note = HostNote(name="")
    if not note.name or note.name == ROOT or route.name != full_name(note.name, ""):
        _log.warning("ignored a label that is not of a virtual host", extra={"route": route.name, "label": HOST_LABEL})
        return None
    return note
