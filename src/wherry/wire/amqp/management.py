"""What tools ask RabbitMQ's management interface for: queues, exchanges, bindings, connections, in its shapes.

Only what Flower, `rabbitmqadmin list` and clients of the kind read, and a way to close connections. What else changes
something is a matter of the protocol itself, or of `/v1`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import isfinite
from typing import Any
from urllib.parse import unquote

from wherry.core import stats
from wherry.wire.amqp import exchanges
from wherry.wire.amqp.channel import Channel
from wherry.wire.amqp.exchanges import ExchangeTerms
from wherry.wire.amqp.host import Host
from wherry.wire.amqp.house import House
from wherry.wire.amqp.names import SUBSCRIPTION, host_and_name
from wherry.wire.amqp.queue import Queue
from wherry.wire.amqp.session import PROPERTIES, Session

NODE = "wherry"

May = Callable[[str], bool]
"""Whether whoever asks may see a topic."""


def answer(house: House, path: str, user: str, may: May) -> Any | None:
    """What is at a path below `/api/`, to be written as JSON; None if there is nothing."""
    what, *rest = [unquote(part) for part in path.strip("/").split("/")]
    if what in _ALL or what in _IN_HOSTS:
        return _looked_up(house, what, rest, may)
    if what == "overview":
        return _overview(house)
    if what == "whoami":
        return {"name": user or "guest", "tags": ["administrator"]}
    if what == "aliveness-test":
        return {"status": "ok"} if rest[:1] and rest[0] in house.hosts else None
    return {"status": "ok"} if what in ("health", "healthchecks") else None


async def close_connection(house: House, name: str, why: str) -> bool:
    """End a connection, telling its client why; whether there was one of that name."""
    for session in list(house.sessions):
        if session.is_open and session.name == name:
            await session.close(why)
            return True
    return False


def _looked_up(house: House, what: str, rest: list[str], may: May) -> Any | None:
    """All rows, those of a virtual host, or the one of a name."""
    if what in _ONE and len(rest) == (2 if what in _IN_HOSTS else 1):
        rows = _visible(_ONE[what](house, *rest), may)
        return rows[0] if rows else None
    if what in _ALL:
        return _visible(_ALL[what](house), may) if not rest else None
    if len(rest) > 1:
        return None
    hosts = (host for name, host in house.hosts.items() if not rest or name == rest[0])
    return _visible((row for host in hosts for row in _IN_HOSTS[what](house, host)), may)


def _visible(rows: Iterable[dict[str, Any]], may: May) -> list[dict[str, Any]]:
    """Those that whoever asks may see."""
    seen = [row for row in rows if may(row.get("_topic", "*"))]
    return [{name: row[name] for name in row if name != "_topic"} for row in seen]


def _overview(house: House) -> dict[str, Any]:
    queues = [row for host in house.hosts.values() for row in _queues(house, host)]
    totals = ("messages", "messages_ready", "messages_unacknowledged")
    return {
        "product_name": PROPERTIES["product"],
        "product_version": PROPERTIES["version"],
        "rabbitmq_version": PROPERTIES["version"],
        "management_version": PROPERTIES["version"],
        "cluster_name": PROPERTIES["cluster_name"],
        "node": NODE,
        "queue_totals": {name: sum(queue[name] for queue in queues) for name in totals},
        "object_totals": {
            "connections": len(house.sessions),
            "channels": sum(len(session.channels) for session in house.sessions),
            "exchanges": sum(len(host.exchanges()) for host in house.hosts.values()),
            "queues": len(queues),
            "consumers": sum(queue["consumers"] for queue in queues),
        },
        "message_stats": {},
    }


def _hosts(house: House) -> Iterator[dict[str, Any]]:
    for name in house.hosts:
        yield {"name": name, "tracing": False, "description": "", "tags": []}


def _nodes(_: House) -> Iterator[dict[str, Any]]:
    yield {"name": NODE, "type": "disc", "running": True, "mem_alarm": False, "disk_free_alarm": False}


def _one_host(house: House, name: str) -> Iterator[dict[str, Any]]:
    yield from (row for row in _hosts(house) if row["name"] == name)


def _one_node(house: House, name: str) -> Iterator[dict[str, Any]]:
    yield from (row for row in _nodes(house) if row["name"] == name)


def _queues(house: House, host: Host) -> Iterator[dict[str, Any]]:
    for queue in host.queues():
        yield _queue(house, host, queue)


def _one_queue(house: House, host: str, name: str) -> Iterator[dict[str, Any]]:
    if host in house.hosts and house.hosts[host].has_queue(name):
        yield _queue(house, house.hosts[host], house.hosts[host].queue(name))


def _queue(house: House, host: Host, queue: Queue) -> dict[str, Any]:
    shard = house.broker.shard
    topic = shard.state.topic(queue.topic)
    known = [each for each in topic.subscriptions.values() if each.config.name == SUBSCRIPTION]
    counts = [stats.of_subscription(each, shard.now().wall_ms) for each in known]
    ready, leased = sum(each.ready for each in counts), sum(each.leased for each in counts)
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
        "message_bytes": topic.bytes,
        "consumers": len(queue.subscribers),
        "policy": None,
        "message_stats": {},
    }


def _exchanges(_: House, host: Host) -> Iterator[dict[str, Any]]:
    for name, terms in host.exchanges():
        yield _exchange(host, name, terms)


def _one_exchange(house: House, host: str, name: str) -> Iterator[dict[str, Any]]:
    if host in house.hosts and house.hosts[host].has_exchange(name):
        yield _exchange(house.hosts[host], name, house.hosts[host].router.terms(name))


def _exchange(host: Host, name: str, terms: ExchangeTerms) -> dict[str, Any]:
    return {
        "name": name,
        "vhost": host.name,
        "type": terms.type,
        "durable": terms.durable,
        "auto_delete": terms.auto_delete,
        "internal": terms.internal,
        "arguments": {"alternate-exchange": terms.alternate} if terms.alternate else {},
    }


def _bindings(_: House, host: Host) -> Iterator[dict[str, Any]]:
    for queue in host.queues():  # each has one to the default exchange
        yield _binding(host, "", queue.name, "queue", queue.name, {}, queue.topic)
    for source, bound in host.bindings():
        kind = "queue" if bound.topic is not None else "exchange"
        full = bound.topic if bound.topic is not None else bound.route or ""
        arguments = _plain(exchanges.arguments_of(bound))
        yield _binding(host, source, host_and_name(full)[1], kind, bound.match, arguments, full)


def _binding(
    host: Host, source: str, to: str, kind: str, key: str, arguments: dict[str, Any], topic: str
) -> dict[str, Any]:
    return {
        "_topic": topic,
        "source": source,
        "vhost": host.name,
        "destination": to,
        "destination_type": kind,
        "routing_key": key,
        "arguments": arguments,
        "properties_key": key or "~",
    }


def _plain(value: Any) -> Any:
    """A value of a field table as JSON has it."""
    if isinstance(value, dict):
        return {_plain(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if isfinite(value) else str(value)
    return str(value).encode("utf-8", "replace").decode()


def _connections(house: House) -> Iterator[dict[str, Any]]:
    for session in house.sessions:
        if session.is_open:
            yield _connection(session)


def _one_connection(house: House, name: str) -> Iterator[dict[str, Any]]:
    for session in house.sessions:
        if session.is_open and session.name == name:
            yield _connection(session)


def _connection(session: Session) -> dict[str, Any]:
    ends = [end.rpartition(":") for end in session.name.split(" -> ")]
    (peer_host, _, peer_port), (host, _, port) = ends[0], ends[-1]
    return {
        "name": session.name,
        "peer_host": peer_host,
        "peer_port": int(peer_port) if peer_port.isdecimal() else None,
        "host": host,
        "port": int(port) if port.isdecimal() else None,
        "vhost": session.host.name,
        "user": _plain(session.user),
        "state": "running",
        "channels": len(session.channels),
        "protocol": "AMQP 0-9-1",
        "client_properties": _plain(session.client),
        "frame_max": session.frame_max,
        "channel_max": session.channel_max,
    }


def _channels(house: House) -> Iterator[dict[str, Any]]:
    for session, channel in _open_channels(house):
        yield _channel(session, channel)


def _one_channel(house: House, name: str) -> Iterator[dict[str, Any]]:
    for session, channel in _open_channels(house):
        if _channel_name(session, channel) == name:
            yield _channel(session, channel)


def _channel_name(session: Session, channel: Channel) -> str:
    return f"{session.name} ({channel.number})"


def _channel(session: Session, channel: Channel) -> dict[str, Any]:
    return {
        "name": _channel_name(session, channel),
        "vhost": session.host.name,
        "user": _plain(session.user),
        "number": channel.number,
        "state": "running",
        "confirm": channel.confirms,
        "transactional": channel.transaction is not None,
        "consumer_count": len(channel.consumers),
        "messages_unacknowledged": len(channel.unacked),
        "prefetch_count": channel.prefetch,
        "global_prefetch_count": channel.limit,
    }


def _consumers(house: House, host: Host) -> Iterator[dict[str, Any]]:
    for session, channel in _open_channels(house):
        for consumer in channel.consumers.values() if session.host is host else ():
            yield {
                "_topic": consumer.queue.topic,
                "vhost": host.name,
                "queue": {"name": consumer.queue.name, "vhost": host.name},
                "consumer_tag": _plain(consumer.tag),
                "ack_required": not consumer.no_ack,
                "exclusive": consumer.exclusive,
                "prefetch_count": consumer.limit,
                "active": True,
                "channel_details": {"name": _channel_name(session, channel), "number": channel.number},
            }


def _open_channels(house: House) -> Iterator[tuple[Session, Channel]]:
    for session in house.sessions:
        for channel in session.channels.values() if session.is_open else ():
            yield session, channel


_Rows = Iterator[dict[str, Any]]

_ALL: dict[str, Callable[[House], _Rows]] = {
    "vhosts": _hosts,
    "nodes": _nodes,
    "connections": _connections,
    "channels": _channels,
}
_IN_HOSTS: dict[str, Callable[[House, Host], _Rows]] = {
    "queues": _queues,
    "exchanges": _exchanges,
    "bindings": _bindings,
    "consumers": _consumers,
}
"""What is in a virtual host: at the name alone those of all of them."""

_ONE: dict[str, Callable[..., _Rows]] = {
    "vhosts": _one_host,
    "nodes": _one_node,
    "connections": _one_connection,
    "channels": _one_channel,
    "queues": _one_queue,
    "exchanges": _one_exchange,
}
"""The one of a name, found without a look at all the others: tools ask for one queue after the other."""
