"""What tools read: queues, exchanges, bindings and connections, in the JSON of RabbitMQ."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator
from math import isfinite
from typing import Any

import msgspec

from wherry.model.catalog.route import Binding
from wherry.queueing.hosts import exchanges
from wherry.queueing.hosts.exchanges import ExchangeTerms
from wherry.queueing.hosts.queue import Queue
from wherry.queueing.hosts.virtual_host import VirtualHost
from wherry.queueing.introduction import PROPERTIES
from wherry.queueing.names import SUBSCRIPTION, full_name, host_and_name
from wherry.queueing.queueing import Queueing
from wherry.wire.amqp.channel import Channel, Consumer
from wherry.wire.amqp.management.asking import ManagementCall, Row, exchange_name, sessions
from wherry.wire.amqp.session import Session

_Rows = Iterator[Row]

NODE = "wherry"

_NOTHING = ("policies", "operator-policies", "parameters", "global-parameters", "topic-permissions")
"""What only RabbitMQ has: lists of it are empty."""


def answer(ask: ManagementCall) -> Any | None:
    """Return what is at a path, to be written as JSON; None if there is nothing."""
    what, *rest = ask.parts
    if what in _ALL or what in _IN_HOSTS:
        return _found(ask, what, rest)
    if what in _NOTHING:
        return []
    if what == "aliveness-test" and (not rest or rest[0] not in ask.queueing.hosts):
        return None
    return _SINGLE[what](ask) if what in _SINGLE else None


def _whoami(ask: ManagementCall) -> Row:
    return {"name": plain(ask.login.user), "tags": list(ask.login.tags)}


def _found(ask: ManagementCall, what: str, rest: list[str]) -> Any | None:
    """Return all rows, those of a virtual host, the one of a name, or its bindings."""
    queueing = ask.queueing
    if what in _ONE and len(rest) == (2 if what in _IN_HOSTS else 1):
        rows = _visible(ask, _ONE[what](queueing, *rest))
        return rows[0] if rows else None
    if what in _ALL:
        return _visible(ask, _ALL[what](queueing)) if not rest else None
    if len(rest) > 1:
        return _bound(ask, what, rest)
    if rest and rest[0] not in queueing.hosts:
        return None
    hosts = (host for name, host in queueing.hosts.items() if not rest or name == rest[0])
    return _visible(ask, (row for host in hosts for row in _IN_HOSTS[what](queueing, host)))


def _visible(ask: ManagementCall, rows: Iterable[Row]) -> list[Row]:
    """Return the rows that the user may see, its own and those of its virtual hosts, without their marks."""
    all_of_them = ask.sees_all
    seen = [row for row in rows if all_of_them or _sees(ask, row)]
    return [{name: row[name] for name in row if name not in _MARKS} for row in seen]


_MARKS = ("_topic", "_owner", "_host")
"""Fields of a row that name its topic, user or virtual host; a row without them is visible to all users."""


def _sees(ask: ManagementCall, row: Row) -> bool:
    if "_topic" in row:
        return ask.sees(row["_topic"])
    if "_owner" in row:
        return bool(row["_owner"] == ask.login.user)
    return "_host" not in row or ask.sees_host(row["_host"])


def _bound(ask: ManagementCall, what: str, rest: list[str]) -> Any | None:
    """Return the bindings of a queue, of an exchange, or between two."""
    if rest[0] not in ask.queueing.hosts:
        return None
    host, name = ask.queueing.hosts[rest[0]], rest[1]
    rows: Iterable[Row]
    if what == "queues" and rest[2:] == ["bindings"] and host.has_queue(name):
        rows = bindings_to(host, "queue", name)
    elif what == "exchanges" and rest[2:3] == ["bindings"] and host.has_exchange(exchange_name(name)):
        if rest[3:] == ["source"]:
            rows = bindings_from(host, exchange_name(name))
        elif rest[3:] == ["destination"]:
            rows = bindings_to(host, "exchange", exchange_name(name))
        else:
            return None
    elif what == "bindings" and name == "e" and len(rest) in (5, 6) and rest[3] in KINDS:
        found = bindings_between(host, exchange_name(rest[2]), KINDS[rest[3]], rest[4])
        if len(rest) == 5:
            rows = found
        else:
            one = _visible(ask, (row for row in found if row["properties_key"] == rest[5]))
            return one[0] if one else None
    else:
        return None
    return _visible(ask, rows)


def _overview(ask: ManagementCall) -> Row:
    queueing = ask.queueing

    def seen(what: Callable[[Queueing, VirtualHost], _Rows]) -> list[Row]:
        return _visible(ask, (row for host in queueing.hosts.values() for row in what(queueing, host)))

    queues = seen(_queues)
    totals = ("messages", "messages_ready", "messages_unacknowledged")
    return {
        "product_name": PROPERTIES["product"],
        "product_version": PROPERTIES["version"],
        "rabbitmq_version": PROPERTIES["version"],
        "management_version": PROPERTIES["version"],
        "cluster_name": PROPERTIES["cluster_name"],
        "node": NODE,
        "contexts": [{"node": NODE, "description": "RabbitMQ Management", "path": "/"}],
        "listeners": [],
        "exchange_types": [{"name": name, "enabled": True} for name in exchanges.KINDS],
        "queue_totals": {name: sum(queue[name] for queue in queues) for name in totals},
        "object_totals": {
            "connections": len(_visible(ask, _connections(queueing))),
            "channels": len(_visible(ask, _channels(queueing))),
            "exchanges": len(seen(_exchanges)),
            "queues": len(queues),
            "consumers": sum(queue["consumers"] for queue in queues),
        },
        "message_stats": {},
    }


def _hosts(queueing: Queueing) -> Iterator[Row]:
    for name in queueing.hosts:
        note = queueing.note_of(name)
        yield {
            "_host": name,
            "name": name,
            "tracing": False,
            "description": note.description,
            "tags": list(note.tags),
            "metadata": {"description": note.description, "tags": list(note.tags)},
            "cluster_state": {NODE: "running"},
        }


def _nodes(_: Queueing) -> Iterator[Row]:
    yield {"name": NODE, "type": "disc", "running": True, "mem_alarm": False, "disk_free_alarm": False}


def _one_host(queueing: Queueing, name: str) -> Iterator[Row]:
    yield from (row for row in _hosts(queueing) if row["name"] == name)


def _one_node(queueing: Queueing, name: str) -> Iterator[Row]:
    yield from (row for row in _nodes(queueing) if row["name"] == name)


def _queues(queueing: Queueing, host: VirtualHost) -> Iterator[Row]:
    for queue in host.queues():
        yield _queue(queueing, host, queue)


def _one_queue(queueing: Queueing, host: str, name: str) -> Iterator[Row]:
    if host in queueing.hosts and queueing.hosts[host].has_queue(name):
        queue = queueing.hosts[host].queue(name)
        rows = [_consumer(each) for each in queue.consumers if isinstance(each, Consumer)]
        details = [{name: row[name] for name in row if name not in _MARKS} for row in rows]
        yield {**_queue(queueing, queueing.hosts[host], queue), "consumer_details": details}


def _queue(queueing: Queueing, host: VirtualHost, queue: Queue) -> Row:
    broker = queueing.broker
    size, ready, leased = broker.topic_size(queue.topic), 0, 0
    if broker.has_subscription(queue.topic, SUBSCRIPTION):
        counts = broker.subscription_stats(queue.topic, SUBSCRIPTION)
        ready, leased = counts.ready, counts.leased
    terms = queue.terms
    return {
        "_topic": queue.topic,
        "name": queue.name,
        "vhost": host.name,
        "durable": terms.durable,
        "auto_delete": terms.auto_delete,
        "exclusive": terms.exclusive,
        "arguments": terms.arguments,
        "type": terms.arguments.get("x-queue-type", "classic"),
        "node": NODE,
        "state": "running",
        "messages": ready + leased,
        "messages_ready": ready,
        "messages_unacknowledged": leased,
        "message_bytes": 0 if size is None else size.bytes,
        "consumers": len(queue.consumers),
        "policy": None,
        "message_stats": {},
    }


def _exchanges(_: Queueing, host: VirtualHost) -> Iterator[Row]:
    for name, terms in host.exchanges():
        yield _exchange(host, name, terms)


def _one_exchange(queueing: Queueing, host: str, name: str) -> Iterator[Row]:
    if host in queueing.hosts and queueing.hosts[host].has_exchange(name):
        yield _exchange(queueing.hosts[host], name, queueing.hosts[host].exchange_index.terms(name))


def _exchange(host: VirtualHost, name: str, terms: ExchangeTerms) -> Row:
    return {
        "_host": host.name,
        "name": name,
        "vhost": host.name,
        "type": terms.type,
        "durable": terms.durable,
        "auto_delete": terms.auto_delete,
        "internal": terms.internal,
        "arguments": {"alternate-exchange": terms.alternate} if terms.alternate else {},
    }


KINDS = {"q": "queue", "e": "exchange"}
"""What a binding leads to, by the letter in a path."""


def _bindings(_: Queueing, host: VirtualHost) -> Iterator[Row]:
    for queue in host.queues():  # each has one to the default exchange
        yield _by_default(host, queue.name)
    for source, bound in host.bindings():
        yield _of(host, source, bound)


def bindings_to(host: VirtualHost, kind: str, name: str) -> Iterator[Row]:
    """Yield the bindings that lead to a queue or to an exchange."""
    if kind == "queue":
        yield _by_default(host, name)
    full = full_name(host.name, name)
    for source, bound in host.bindings():
        if (bound.topic if kind == "queue" else bound.route) == full:
            yield _of(host, source, bound)


def bindings_from(host: VirtualHost, exchange: str) -> Iterator[Row]:
    """Yield the bindings of an exchange."""
    if exchange == "":
        yield from (_by_default(host, queue.name) for queue in host.queues())
    for bound in host.bindings_of(exchange):
        yield _of(host, exchange, bound)


def bindings_between(host: VirtualHost, source: str, kind: str, name: str) -> Iterator[Row]:
    """Yield the bindings of an exchange that lead to one queue or exchange."""
    if source == "" and kind == "queue" and host.has_queue(name):
        yield _by_default(host, name)
    for _, row in binds(host, source, kind, name):
        yield row


def binds(host: VirtualHost, source: str, kind: str, name: str) -> Iterator[tuple[Binding, Row]]:
    """Yield the same bindings, except that of the default exchange, each as it is kept and as it is shown."""
    full = full_name(host.name, name)
    for bound in host.bindings_of(source):
        if (bound.topic if kind == "queue" else bound.route) == full:
            yield bound, _of(host, source, bound)


def _by_default(host: VirtualHost, queue: str) -> Row:
    return _binding(host, "", queue, "queue", queue, {}, full_name(host.name, queue))


def _of(host: VirtualHost, source: str, bound: Binding) -> Row:
    kind = "queue" if bound.topic is not None else "exchange"
    full = bound.topic if bound.topic is not None else bound.route or ""
    arguments = plain(exchanges.arguments_of(bound))
    return _binding(host, source, host_and_name(full)[1], kind, bound.match, arguments, full)


def _binding(host: VirtualHost, source: str, to: str, kind: str, key: str, arguments: Row, topic: str) -> Row:
    return {
        "_topic": topic,
        "source": source,
        "vhost": host.name,
        "destination": to,
        "destination_type": kind,
        "routing_key": key,
        "arguments": arguments,
        "properties_key": properties_key(key, arguments),
    }


def properties_key(key: str, arguments: Row) -> str:
    """Return the name of a binding in a path: its routing key, and after a `~` a hash of its arguments if any."""
    quoted = key.replace("%", "%25").replace("~", "%7E")
    if not arguments:
        return quoted or "~"
    digest = hashlib.sha256(msgspec.json.encode(arguments, order="deterministic")).digest()
    return f"{quoted}~{base64.urlsafe_b64encode(digest[:12]).decode('ascii')}"


def plain(value: Any) -> Any:
    """Return a value of a field table as a value of JSON."""
    if isinstance(value, dict):
        return {plain(name): plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if isfinite(value) else str(value)
    return str(value).encode("utf-8", "replace").decode()


def _connections(queueing: Queueing) -> Iterator[Row]:
    for session in sessions(queueing):
        if session.is_open:
            yield _connection(session)


def _one_connection(queueing: Queueing, name: str) -> Iterator[Row]:
    for session in sessions(queueing):
        if session.is_open and session.name == name:
            yield _connection(session)


def _connection(session: Session) -> Row:
    ends = [end.rpartition(":") for end in session.name.split(" -> ")]
    (peer_host, _, peer_port), (host, _, port) = ends[0], ends[-1]
    return {
        "_owner": session.user,
        "name": session.name,
        "peer_host": peer_host,
        "peer_port": int(peer_port) if peer_port.isdecimal() else None,
        "host": host,
        "port": int(port) if port.isdecimal() else None,
        "vhost": session.host.name,
        "user": plain(session.user),
        "state": "running",
        "channels": len(session.channels),
        "protocol": "AMQP 0-9-1",
        "client_properties": plain(session.client),
        "frame_max": session.frame_max,
        "channel_max": session.channel_max,
    }


def _channels(queueing: Queueing) -> Iterator[Row]:
    for session, channel in _open_channels(queueing):
        yield _channel(session, channel)


def _one_channel(queueing: Queueing, name: str) -> Iterator[Row]:
    for session, channel in _open_channels(queueing):
        if _channel_name(session, channel) == name:
            yield _channel(session, channel)


def _channel_name(session: Session, channel: Channel) -> str:
    return f"{session.name} ({channel.number})"


def _channel(session: Session, channel: Channel) -> Row:
    return {
        "_owner": session.user,
        "name": _channel_name(session, channel),
        "vhost": session.host.name,
        "user": plain(session.user),
        "number": channel.number,
        "state": "running",
        "confirm": channel.confirms,
        "transactional": channel.transaction is not None,
        "consumer_count": len(channel.consumers),
        "messages_unacknowledged": len(channel.unacked),
        "prefetch_count": channel.prefetch,
        "global_prefetch_count": channel.limit,
    }


def _consumers(queueing: Queueing, host: VirtualHost) -> Iterator[Row]:
    for session, channel in _open_channels(queueing):
        for consumer in channel.consumers.values() if session.host is host else ():
            yield _consumer(consumer)


def _consumer(consumer: Consumer) -> Row:
    channel, host = consumer.channel, consumer.queue.host
    return {
        "_topic": consumer.queue.topic,
        "vhost": host,
        "queue": {"name": consumer.queue.name, "vhost": host},
        "consumer_tag": plain(consumer.tag),
        "ack_required": not consumer.no_ack,
        "exclusive": consumer.exclusive,
        "prefetch_count": consumer.limit,
        "active": True,
        "channel_details": {
            "name": _channel_name(channel.session, channel),
            "number": channel.number,
            "connection_name": channel.session.name,
            "user": plain(channel.session.user),
        },
    }


def _open_channels(queueing: Queueing) -> Iterator[tuple[Session, Channel]]:
    for session in sessions(queueing):
        for channel in session.channels.values() if session.is_open else ():
            yield session, channel


def _is_well(_: ManagementCall) -> Row:
    return {"status": "ok"}


_SINGLE: dict[str, Callable[[ManagementCall], Row]] = {
    "overview": _overview,
    "whoami": _whoami,
    "cluster-name": lambda _: {"name": PROPERTIES["cluster_name"]},
    "aliveness-test": _is_well,
    "health": _is_well,
    "healthchecks": _is_well,
}
"""Paths with a single answer."""

_ALL: dict[str, Callable[[Queueing], _Rows]] = {
    "vhosts": _hosts,
    "nodes": _nodes,
    "connections": _connections,
    "channels": _channels,
}
_IN_HOSTS: dict[str, Callable[[Queueing, VirtualHost], _Rows]] = {
    "queues": _queues,
    "exchanges": _exchanges,
    "bindings": _bindings,
    "consumers": _consumers,
}
"""Lists of a virtual host; without its name, of all of them."""

_ONE: dict[str, Callable[..., _Rows]] = {
    "vhosts": _one_host,
    "nodes": _one_node,
    "connections": _one_connection,
    "channels": _one_channel,
    "queues": _one_queue,
    "exchanges": _one_exchange,
}
"""Single rows by name, found without reading all others: tools ask for one queue after the other."""
