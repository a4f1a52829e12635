"""The methods that a client may call on a channel: each function returns the answer, or raises a refusal."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine
from typing import Any

from wherry.queueing.hosts import exchanges, queue_terms
from wherry.queueing.hosts.queue import Queue
from wherry.queueing.hosts.queue_terms import QueueTerms
from wherry.queueing.names import REPLY_TO, full_name
from wherry.queueing.refusals import Reason, no_queue, on_default_exchange, refused
from wherry.wire.amqp.channel import Channel, Consumer, UnackedMessage
from wherry.wire.amqp.codec import methods as m
from wherry.wire.amqp.codec import writer
from wherry.wire.amqp.codec.methods import Method
from wherry.wire.amqp.transaction import Transaction

CONSUMERS_MAX = 10_000
"""Consumers of one channel."""

MethodHandler = Callable[[Channel, Any], Coroutine[Any, Any, Method | None]]

CALLS: dict[type[Method], MethodHandler] = {}


def call(kind: type[Method]) -> Callable[[MethodHandler], MethodHandler]:
    """Register a function as the handler of a method."""

    def register(function: MethodHandler) -> MethodHandler:
        CALLS[kind] = function
        return function

    return register


def _named(channel: Channel, name: str) -> str:
    """Return the name of a queue; an empty one means the last queue that was declared on the channel."""
    if name:
        return name
    if not channel.last_queue:
        raise refused(Reason.NOT_FOUND, "no previously declared queue")
    return channel.last_queue


def _queue(channel: Channel, name: str) -> Queue:
    return channel.session.host.queue_for(_named(channel, name), channel.session)


# ------------------------------------------------------------------------------------------------------------ channels


@call(m.ChannelFlow)
async def _flow(channel: Channel, method: m.ChannelFlow) -> Method:
    channel.flows = method.active
    _wake(channel)
    return m.ChannelFlowOk(active=method.active)


@call(m.ChannelFlowOk)
async def _flow_ok(channel: Channel, method: m.ChannelFlowOk) -> None:
    return None


@call(m.AccessRequest)
async def _access(channel: Channel, method: m.AccessRequest) -> Method:
    """Accept: the method is of an earlier version of the protocol, and some clients still send it."""
    return m.AccessRequestOk()


def _wake(channel: Channel) -> None:
    for consumer in channel.consumers.values():
        consumer.queue.wake()


# ----------------------------------------------------------------------------------------------------------- exchanges


@call(m.ExchangeDeclare)
async def _exchange_declare(channel: Channel, method: m.ExchangeDeclare) -> Method:
    session = channel.session
    if method.exchange == "":
        raise on_default_exchange()
    if method.passive:
        session.host.exchange_index.terms(method.exchange)
        return m.ExchangeDeclareOk()
    session.rights.check("admin", full_name(session.host.name, method.exchange))
    wanted = exchanges.checked_terms(
        method.type,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
        arguments=method.arguments,
    )
    if wanted.alternate:
        session.rights.check("publish", full_name(session.host.name, wanted.alternate))
    await session.host.declare_exchange(method.exchange, wanted)
    return m.ExchangeDeclareOk()


@call(m.ExchangeDelete)
async def _exchange_delete(channel: Channel, method: m.ExchangeDelete) -> Method:
    session = channel.session
    session.rights.check("admin", full_name(session.host.name, method.exchange))
    await session.flush()
    await session.host.delete_exchange(method.exchange, if_unused=method.if_unused)
    return m.ExchangeDeleteOk()


@call(m.ExchangeBind)
async def _exchange_bind(channel: Channel, method: m.ExchangeBind) -> Method:
    session = channel.session
    session.rights.check("admin", full_name(session.host.name, method.destination))
    session.rights.check("consume", full_name(session.host.name, method.source))
    if method.destination == "":
        raise on_default_exchange()
    await session.host.bind(method.source, method.routing_key, method.arguments, to=method.destination)
    return m.ExchangeBindOk()


@call(m.ExchangeUnbind)
async def _exchange_unbind(channel: Channel, method: m.ExchangeUnbind) -> Method:
    session = channel.session
    session.rights.check("admin", full_name(session.host.name, method.destination))
    if method.destination == "":
        raise on_default_exchange()
    await session.flush()
    await session.host.unbind(method.source, method.routing_key, method.arguments, to=method.destination)
    return m.ExchangeUnbindOk()


# -------------------------------------------------------------------------------------------------------------- queues


@call(m.QueueDeclare)
async def _queue_declare(channel: Channel, method: m.QueueDeclare) -> Method:
    session, name = channel.session, method.queue
    if name == REPLY_TO or name.startswith(REPLY_TO + "."):
        if name != REPLY_TO and name not in session.replies:
            raise no_queue(session.host.name, name)
        return m.QueueDeclareOk(queue=name, consumer_count=1)
    if method.passive:
        queue = _queue(channel, name)
        if session.rights.may_any(("consume", "publish", "admin"), queue.topic) == "consume":
            await session.host.have_subscription(queue)
    else:
        session.rights.check("admin", full_name(session.host.name, name))
        wanted = QueueTerms(
            durable=method.durable and not method.exclusive,  # an exclusive queue ends with its connection
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
            arguments=queue_terms.checked_arguments(session.host.name, name, method.arguments),
        )
        queue_terms.check_type(session.host.name, name, wanted)
        if wanted.dead_exchange is not None:  # or the broker would publish for a client that may not
            where = wanted.dead_exchange or wanted.dead_key
            session.rights.check("publish", full_name(session.host.name, where) if where else "*")
        queue = await session.host.declare_queue(name, wanted, session)
        if session.is_over and queue.owner is session:  # the client is gone, and nothing else would delete it
            await session.host.delete_queue(queue)
            return m.QueueDeclareOk(queue=queue.name)
    channel.last_queue = queue.name
    await session.flush()
    return m.QueueDeclareOk(queue=queue.name, message_count=queue.ready(), consumer_count=len(queue.consumers))


@call(m.QueueBind)
async def _queue_bind(channel: Channel, method: m.QueueBind) -> Method:
    session = channel.session
    queue = _queue(channel, method.queue)
    session.rights.check("admin", queue.topic)
    session.rights.check("consume", full_name(session.host.name, method.exchange))
    key = queue.name if not method.queue and not method.routing_key else method.routing_key
    await session.host.bind(method.exchange, key, method.arguments, queue=queue.name)
    return m.QueueBindOk()


@call(m.QueueUnbind)
async def _queue_unbind(channel: Channel, method: m.QueueUnbind) -> Method:
    session = channel.session
    name = _named(channel, method.queue)
    session.rights.check("admin", full_name(session.host.name, name))
    if not session.host.has_queue(name):
        return m.QueueUnbindOk()
    queue = _queue(channel, name)
    await session.flush()
    key = queue.name if not method.queue and not method.routing_key else method.routing_key
    await session.host.unbind(method.exchange, key, method.arguments, queue=queue.name)
    return m.QueueUnbindOk()


@call(m.QueuePurge)
async def _queue_purge(channel: Channel, method: m.QueuePurge) -> Method:
    session = channel.session
    queue = _queue(channel, method.queue)
    session.rights.check("consume", queue.topic)
    await session.flush()
    return m.QueuePurgeOk(message_count=await session.host.purge(queue))


@call(m.QueueDelete)
async def _queue_delete(channel: Channel, method: m.QueueDelete) -> Method:
    session = channel.session
    name = _named(channel, method.queue)
    if not session.host.has_queue(name):
        return m.QueueDeleteOk(message_count=0)
    queue = _queue(channel, name)
    session.rights.check("admin", queue.topic)
    await session.flush()
    where = f"queue '{name}' in vhost '{session.host.name}'"
    if method.if_unused and queue.consumers:
        raise refused(Reason.PRECONDITION_FAILED, f"{where} in use")
    if method.if_empty and queue.ready():
        raise refused(Reason.PRECONDITION_FAILED, f"{where} not empty")
    return m.QueueDeleteOk(message_count=await session.host.delete_queue(queue))


# ----------------------------------------------------------------------------------------------------------- consumers


@call(m.BasicQos)
async def _qos(channel: Channel, method: m.BasicQos) -> Method:
    if method.prefetch_size:
        raise refused(Reason.NOT_IMPLEMENTED, "prefetch_size!=0", hard=True)
    if method.global_:
        channel.limit = method.prefetch_count
        _wake(channel)
    else:
        channel.prefetch = method.prefetch_count
    return m.BasicQosOk()


@call(m.BasicConsume)
async def _consume(channel: Channel, method: m.BasicConsume) -> Method:
    session = channel.session
    tag = method.consumer_tag or f"amq.ctag-{secrets.token_urlsafe(16)}"
    if tag in channel.consumers or tag == channel.reply_consumer:
        raise refused(Reason.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'", hard=True)
    if len(channel.consumers) >= CONSUMERS_MAX:
        raise refused(Reason.RESOURCE_ERROR, f"a channel has at most {CONSUMERS_MAX} consumers")
    if method.queue == REPLY_TO:
        channel.consume_replies(tag, no_ack=method.no_ack)
        return m.BasicConsumeOk(consumer_tag=tag)
    queue = _queue(channel, method.queue)
    session.rights.check("consume", queue.topic)
    priority = method.arguments.get("x-priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise refused(Reason.PRECONDITION_FAILED, f"x-priority is {priority!r}; allowed: a whole number")
    await session.host.have_subscription(queue)
    await session.intake.flush()
    if channel.is_over:  # it was closed meanwhile
        return m.BasicConsumeOk(consumer_tag=tag)
    queue = _queue(channel, method.queue)  # nothing is awaited until `join`: exclusivity cannot change
    if queue.exclusive_to is not None or (method.exclusive and (queue.consumers or queue.terms.single_active)):
        text = f"queue '{queue.name}' in vhost '{session.host.name}' in exclusive use"
        raise refused(Reason.ACCESS_REFUSED, text)
    consumer = Consumer(
        channel,
        tag,
        queue,
        no_ack=method.no_ack,
        exclusive=method.exclusive,
        priority=priority,
        limit=channel.prefetch,
    )
    channel.consumers[tag] = consumer
    if method.exclusive:
        queue.exclusive_to = consumer
    consumer.is_consume_ok_sent = method.no_wait
    queue.join(consumer)
    await queue.wait_for_hand_over()  # ready messages are sent in one write with consume-ok
    consumer.send_consume_ok()
    return None  # type: ignore[return-value]


@call(m.BasicCancel)
async def _cancel(channel: Channel, method: m.BasicCancel) -> Method:
    channel.cancel(method.consumer_tag)
    await channel.session.queueing.background_done()
    return m.BasicCancelOk(consumer_tag=method.consumer_tag)


@call(m.BasicCancelOk)
async def _cancel_ok(channel: Channel, method: m.BasicCancelOk) -> None:
    return None


@call(m.BasicGet)
async def _get(channel: Channel, method: m.BasicGet) -> Method | None:
    session = channel.session
    queue = _queue(channel, method.queue)
    session.rights.check("consume", queue.topic)
    if not method.no_ack and not session.holding.room():
        raise refused(Reason.RESOURCE_ERROR, "the connection holds too much that it has not acked")
    await session.host.have_subscription(queue)
    await session.flush()
    found = await queue.get()
    if found is None:
        return m.BasicGetEmpty()
    queue_delivery, (((again, exchange, key, raw), body),) = found
    if channel.is_over:  # it was closed meanwhile
        queue_delivery.release([0])
        return None
    tag = channel.next_tag
    channel.next_tag += 1
    if method.no_ack:
        session.settling.add(queue_delivery, "ack", (0,))
    else:
        queue_delivery.give([0], session.holding)
        channel.unacked[tag] = UnackedMessage(tag, queue_delivery, 0, queue, None)
    answer = m.BasicGetOk(
        delivery_tag=tag, redelivered=again, exchange=exchange, routing_key=key, message_count=queue.ready()
    )
    session.send_all(writer.content(channel.number, answer, raw, body, session.frame_max))
    return None


@call(m.BasicNack)
async def _nack(channel: Channel, method: m.BasicNack) -> None:
    channel.settle(method.delivery_tag, multiple=method.multiple, verb="requeue" if method.requeue else "reject")


@call(m.BasicReject)
async def _reject(channel: Channel, method: m.BasicReject) -> None:
    channel.settle(method.delivery_tag, multiple=False, verb="requeue" if method.requeue else "reject")


@call(m.BasicRecover)
async def _recover(channel: Channel, method: m.BasicRecover) -> Method:
    _check_recover(requeue=method.requeue)
    channel.requeue_all()
    return m.BasicRecoverOk()


@call(m.BasicRecoverAsync)
async def _recover_async(channel: Channel, method: m.BasicRecoverAsync) -> None:
    _check_recover(requeue=method.requeue)
    channel.requeue_all()


def _check_recover(*, requeue: bool) -> None:
    if not requeue:
        raise refused(Reason.NOT_IMPLEMENTED, "requeue=false", hard=True)


# ---------------------------------------------------------------------------------------- confirms and transactions


@call(m.ConfirmSelect)
async def _confirm_select(channel: Channel, method: m.ConfirmSelect) -> Method:
    if channel.transaction is not None:
        raise refused(Reason.PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    channel.confirms = True
    return m.ConfirmSelectOk()


@call(m.TxSelect)
async def _tx_select(channel: Channel, method: m.TxSelect) -> Method:
    if channel.confirms:
        raise refused(Reason.PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if channel.transaction is None:
        channel.transaction = Transaction()
    return m.TxSelectOk()


@call(m.TxCommit)
async def _tx_commit(channel: Channel, method: m.TxCommit) -> Method:
    _check_transaction(channel)
    await channel.commit(channel.session.queueing.broker)
    return m.TxCommitOk()


@call(m.TxRollback)
async def _tx_rollback(channel: Channel, method: m.TxRollback) -> Method:
    _check_transaction(channel)
    channel.rollback()
    return m.TxRollbackOk()


def _check_transaction(channel: Channel) -> None:
    if channel.transaction is None:
        raise refused(Reason.PRECONDITION_FAILED, "channel is not transactional")
