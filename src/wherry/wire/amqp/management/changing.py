"""Changes by management tools: queues, exchanges, bindings, virtual hosts and connections.

Each needs the right that the same change needs over AMQP; virtual hosts and connections are for administrators.
"""

from __future__ import annotations

from urllib.parse import quote

from wherry.model.errors import InvalidInput, NotFound
from wherry.queueing.hosts import exchanges, queue_terms
from wherry.queueing.hosts.queue import Queue
from wherry.queueing.hosts.queue_terms import QueueTerms
from wherry.queueing.hosts.virtual_host import VirtualHost
from wherry.queueing.names import full_name
from wherry.queueing.refusals import Reason, refused
from wherry.wire.amqp.management import people
from wherry.wire.amqp.management.asking import ManagementAnswer, ManagementCall, exchange_name, sessions
from wherry.wire.amqp.management.reads import KINDS, binds, properties_key

# -------------------------------------------------------------------------------------------------------------- queues


async def put_queue(ask: ManagementCall) -> ManagementAnswer:
    """Answer `PUT queues/VHOST/NAME`: declare a queue."""
    host, name = ask.host(ask.parts[1]), ask.parts[2]
    ask.check("admin", full_name(host.name, name))
    wanted = QueueTerms(
        durable=ask.flag("durable"),
        auto_delete=ask.flag("auto_delete"),
        arguments=queue_terms.checked_arguments(host.name, name, ask.table("arguments")),
    )
    queue_terms.check_type(host.name, name, wanted)
    # a user without the right to publish there must not do so through dead letters
    if wanted.dead_exchange is not None:
        where = wanted.dead_exchange or wanted.dead_key
        ask.check("publish", full_name(host.name, where) if where else "*")
    was_there = host.has_queue(name)
    await host.declare_queue(name, wanted, None)
    return ManagementAnswer(204 if was_there else 201)


def _queue(ask: ManagementCall, host: VirtualHost) -> Queue:
    if not host.has_queue(ask.parts[2]):
        raise NotFound("queue", ask.parts[2])
    return host.queue_for(ask.parts[2], None)


async def delete_queue(ask: ManagementCall) -> ManagementAnswer:
    """Answer `DELETE queues/VHOST/NAME`, optionally only `if-empty=true` and `if-unused=true`."""
    host = ask.host(ask.parts[1])
    queue = _queue(ask, host)
    ask.check("admin", queue.topic)
    await _flush(ask)
    where = f"queue '{queue.name}' in vhost '{host.name}'"
    if ask.asks("if-unused") and queue.consumers:
        raise refused(Reason.PRECONDITION_FAILED, f"{where} in use")
    if ask.asks("if-empty") and queue.ready():
        raise refused(Reason.PRECONDITION_FAILED, f"{where} not empty")
    await host.delete_queue(queue)
    return ManagementAnswer(204)


async def purge_queue(ask: ManagementCall) -> ManagementAnswer:
    """Answer `DELETE queues/VHOST/NAME/contents`: delete all ready messages."""
    host = ask.host(ask.parts[1])
    queue = _queue(ask, host)
    ask.check("consume", queue.topic)
    await _flush(ask)
    await host.purge(queue)
    return ManagementAnswer(204)


async def _flush(ask: ManagementCall) -> None:
    """Wait until what clients have published and settled so far is done."""
    await ask.queueing.intake.flush()
    await ask.queueing.settling.flush()


# ----------------------------------------------------------------------------------------------------------- exchanges


async def put_exchange(ask: ManagementCall) -> ManagementAnswer:
    """Answer `PUT exchanges/VHOST/NAME`: declare an exchange."""
    host, name = ask.host(ask.parts[1]), exchange_name(ask.parts[2])
    ask.check("admin", full_name(host.name, name))
    wanted = exchanges.checked_terms(
        ask.text("type", "direct"),
        durable=ask.flag("durable"),
        auto_delete=ask.flag("auto_delete"),
        internal=ask.flag("internal"),
        arguments=ask.table("arguments"),
    )
    if wanted.alternate:
        ask.check("publish", full_name(host.name, wanted.alternate))
    was_there = host.has_exchange(name)
    await host.declare_exchange(name, wanted)
    return ManagementAnswer(204 if was_there else 201)


async def delete_exchange(ask: ManagementCall) -> ManagementAnswer:
    """Answer `DELETE exchanges/VHOST/NAME`, optionally only `if-unused=true`."""
    host, name = ask.host(ask.parts[1]), exchange_name(ask.parts[2])
    if not host.has_exchange(name):
        raise NotFound("exchange", name)
    ask.check("admin", full_name(host.name, name))
    await _flush(ask)
    await host.delete_exchange(name, if_unused=ask.asks("if-unused"))
    return ManagementAnswer(204)


# ------------------------------------------------------------------------------------------------------------ bindings


def _ends(ask: ManagementCall) -> tuple[VirtualHost, str, str, str]:
    """Return the host, the exchange, and the kind and name of what is bound to it; all of them exist."""
    _, where, _, source, kind, to, *_ = ask.parts
    host, exchange = ask.host(where), exchange_name(source)
    if kind not in KINDS:
        raise NotFound("kind of binding", kind)
    to = exchange_name(to) if kind == "e" else to
    if not (host.has_queue(to) if kind == "q" else host.has_exchange(to)):
        raise NotFound(KINDS[kind], to)
    if not host.has_exchange(exchange):
        raise NotFound("exchange", exchange)
    ask.check("admin", full_name(host.name, to))
    return host, exchange, KINDS[kind], to


async def bind(ask: ManagementCall) -> ManagementAnswer:
    """Answer `POST bindings/VHOST/e/EXCHANGE/q|e/NAME`: bind a queue, or another exchange."""
    host, exchange, kind, to = _ends(ask)
    ask.check("consume", full_name(host.name, exchange))
    key, arguments = ask.text("routing_key", ""), ask.table("arguments")
    if kind == "queue":
        await host.bind(exchange, key, arguments, queue=to)
    else:
        await host.bind(exchange, key, arguments, to=to)
    place = f"{kind[0]}/{quote(to, safe='')}/{quote(properties_key(key, arguments), safe='')}"
    return ManagementAnswer(201, location=place)


async def unbind(ask: ManagementCall) -> ManagementAnswer:
    """Answer `DELETE bindings/VHOST/e/EXCHANGE/q|e/NAME/PROPERTIES`: remove the binding with that key."""
    host, exchange, kind, to = _ends(ask)
    for bound, row in binds(host, exchange, kind, to):
        if row["properties_key"] == ask.parts[6]:
            await _flush(ask)
            await host.unbind_this(exchange, bound)
            return ManagementAnswer(204)
    raise NotFound("binding", ask.parts[6])


# --------------------------------------------------------------------------------------- virtual hosts and connections


async def put_host(ask: ManagementCall) -> ManagementAnswer:
    """Answer `PUT vhosts/NAME`: create a virtual host, which stays until it is deleted, over restarts too."""
    ask.check_admin()
    tags = ask.body.get("tags") or ()
    tags = tags.split(",") if isinstance(tags, str) else tags
    if not isinstance(tags, list | tuple) or not all(isinstance(tag, str) for tag in tags):
        raise InvalidInput("tags", tags, "a list of text")
    made = await ask.queueing.make_host(ask.parts[1], ask.text("description", ""), tuple(tags))
    return ManagementAnswer(201 if made else 204)


async def delete_host(ask: ManagementCall) -> ManagementAnswer:
    """Answer `DELETE vhosts/NAME`: delete it with its queues and exchanges, and close its connections with a reason."""
    name = ask.check_known(ask.parts[1])
    ask.queueing.check_made(name)
    await people.revoke_all(ask, name)  # first: a new host of that name must not have the old grants
    await ask.queueing.delete_host(name)
    await people.revoke_all(ask, name)  # of what was granted meanwhile
    return ManagementAnswer(204)


async def close_connection(ask: ManagementCall) -> ManagementAnswer:
    """Answer `DELETE connections/NAME`: close the connection; its client gets the reason."""
    ask.check_admin()
    for session in sessions(ask.queueing):
        if session.is_open and session.name == ask.parts[1]:
            await session.close(ask.reason or "Closed via management plugin")
            return ManagementAnswer(204)
    raise NotFound("connection", ask.parts[1])
