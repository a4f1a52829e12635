"""What tools have done: queues, exchanges, bindings and virtual hosts come and go, and connections are closed.

Each asks for the right that the same thing asks for over AMQP; virtual hosts and connections are for administrators.
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
from wherry.wire.amqp.management.asking import Ask, Reply, exchange_name, sessions
from wherry.wire.amqp.management.looking import KINDS, binds, properties_key

# -------------------------------------------------------------------------------------------------------------- queues


async def put_queue(ask: Ask) -> Reply:
    """`PUT queues/VHOST/NAME`: have a queue as it is wanted."""
    host, name = ask.host(ask.parts[1]), ask.parts[2]
    ask.check("admin", full_name(host.name, name))
    wanted = QueueTerms(
        durable=ask.flag("durable"),
        auto_delete=ask.flag("auto_delete"),
        arguments=queue_terms.checked_arguments(host.name, name, ask.table("arguments")),
    )
    queue_terms.check_type(host.name, name, wanted)
    if wanted.dead_exchange is not None:  # who could not publish there must not have it done
        where = wanted.dead_exchange or wanted.dead_key
        ask.check("publish", full_name(host.name, where) if where else "*")
    was_there = host.has_queue(name)
    await host.declare_queue(name, wanted, None)
    return Reply(204 if was_there else 201)


def _queue(ask: Ask, host: VirtualHost) -> Queue:
    if not host.has_queue(ask.parts[2]):
        raise NotFound("queue", ask.parts[2])
    return host.queue_for(ask.parts[2], None)


async def delete_queue(ask: Ask) -> Reply:
    """`DELETE queues/VHOST/NAME`, with `if-empty=true` and `if-unused=true` only then."""
    host = ask.host(ask.parts[1])
    queue = _queue(ask, host)
    ask.check("admin", queue.topic)
    await _flush(ask)
    where = f"queue '{queue.name}' in vhost '{host.name}'"
    if ask.asks("if-unused") and queue.subscribers:
        raise refused(Reason.PRECONDITION_FAILED, f"{where} in use")
    if ask.asks("if-empty") and queue.ready():
        raise refused(Reason.PRECONDITION_FAILED, f"{where} not empty")
    await host.delete_queue(queue)
    return Reply(204)


async def purge_queue(ask: Ask) -> Reply:
    """`DELETE queues/VHOST/NAME/contents`: all messages that are ready go."""
    host = ask.host(ask.parts[1])
    queue = _queue(ask, host)
    ask.check("consume", queue.topic)
    await _flush(ask)
    await host.purge(queue)
    return Reply(204)


async def _flush(ask: Ask) -> None:
    """Until what clients have published and settled so far is done."""
    await ask.queueing.intake.flush()
    await ask.queueing.settling.flush()


# ----------------------------------------------------------------------------------------------------------- exchanges


async def put_exchange(ask: Ask) -> Reply:
    """`PUT exchanges/VHOST/NAME`: have an exchange as it is wanted."""
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
    return Reply(204 if was_there else 201)


async def delete_exchange(ask: Ask) -> Reply:
    """`DELETE exchanges/VHOST/NAME`, with `if-unused=true` only then."""
    host, name = ask.host(ask.parts[1]), exchange_name(ask.parts[2])
    if not host.has_exchange(name):
        raise NotFound("exchange", name)
    ask.check("admin", full_name(host.name, name))
    await _flush(ask)
    await host.delete_exchange(name, if_unused=ask.asks("if-unused"))
    return Reply(204)


# ------------------------------------------------------------------------------------------------------------ bindings


def _ends(ask: Ask) -> tuple[VirtualHost, str, str, str]:
    """Host, exchange, and kind and name of what is bound to it; all of them are there."""
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


async def bind(ask: Ask) -> Reply:
    """`POST bindings/VHOST/e/EXCHANGE/q|e/NAME`: bind a queue, or another exchange."""
    host, exchange, kind, to = _ends(ask)
    ask.check("consume", full_name(host.name, exchange))
    key, arguments = ask.text("routing_key", ""), ask.table("arguments")
    if kind == "queue":
        await host.bind(exchange, key, arguments, queue=to)
    else:
        await host.bind(exchange, key, arguments, to=to)
    place = f"{kind[0]}/{quote(to, safe='')}/{quote(properties_key(key, arguments), safe='')}"
    return Reply(201, location=place)


async def unbind(ask: Ask) -> Reply:
    """`DELETE bindings/VHOST/e/EXCHANGE/q|e/NAME/PROPERTIES`: undo the binding that is shown with that key."""
    host, exchange, kind, to = _ends(ask)
    for bound, row in binds(host, exchange, kind, to):
        if row["properties_key"] == ask.parts[6]:
            await _flush(ask)
            await host.unbind_this(exchange, bound)
            return Reply(204)
    raise NotFound("binding", ask.parts[6])


# --------------------------------------------------------------------------------------- virtual hosts and connections


async def put_host(ask: Ask) -> Reply:
    """`PUT vhosts/NAME`: a virtual host that stays until it is deleted, over restarts too."""
    ask.check_admin()
    tags = ask.body.get("tags") or ()
    tags = tags.split(",") if isinstance(tags, str) else tags
    if not isinstance(tags, list | tuple) or not all(isinstance(tag, str) for tag in tags):
        raise InvalidInput("tags", tags, "a list of text")
    made = await ask.queueing.make_host(ask.parts[1], ask.text("description", ""), tuple(tags))
    return Reply(201 if made else 204)


async def delete_host(ask: Ask) -> Reply:
    """`DELETE vhosts/NAME`: with all its queues and exchanges; who is connected to it is told, and cut off."""
    name = ask.check_known(ask.parts[1])
    ask.queueing.check_made(name)
    await people.revoke_all(ask, name)  # first: nobody shall find old grants in a new host of that name
    await ask.queueing.delete_host(name)
    await people.revoke_all(ask, name)  # of what was granted meanwhile
    return Reply(204)


async def close_connection(ask: Ask) -> Reply:
    """`DELETE connections/NAME`: its client is told why."""
    ask.check_admin()
    for session in sessions(ask.queueing):
        if session.is_open and session.name == ask.parts[1]:
            await session.close(ask.reason or "Closed via management plugin")
            return Reply(204)
    raise NotFound("connection", ask.parts[1])
