"""Transactions of a channel: publishes and acks that wait for a commit, and then are one entry of the journal.

Publishes are put aside in one stage and acks in another, and both are committed together: a crash leaves all of them
or none. What else can be said of a message (to come again, to be a dead letter) is done after the commit: the broker
has no stage for it. After a crash between, such a message is back in its queue.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa

from wherry.broker.port.port import BrokerPort
from wherry.model.calls.lease import LeasePart
from wherry.model.errors import NotFound, StaleLease, WherryError
from wherry.queueing.refusals import Reason, refused

TRANSACTION_MAX = 65_536
"""Publishes and acks of one transaction."""

TRANSACTION_BYTES_MAX = 64 << 20
"""Bodies of one transaction."""

LEASES_MAX = 1_024
"""Leases that the acks of one transaction with publishes are of: each is an operation of the one entry, and nobody else
has a turn while it is applied."""

TRIES = 3
"""A lease may end between the look at it and the commit, which then takes nothing: looked at again so often."""


async def commit(broker: BrokerPort, calls: Sequence[tuple[str, pa.RecordBatch]], acks: Sequence[LeasePart]) -> None:
    """Publish and ack, all of it or nothing; durable on return. Acks of what is on lease no more are passed over."""
    if not calls:
        await _ack(broker, acks)
        return
    if len(acks) > LEASES_MAX:
        text = f"a transaction acks messages of at most {LEASES_MAX} deliveries"
        raise refused(Reason.RESOURCE_ERROR, text)
    key = f"amqp/{secrets.token_hex(16)}"
    stages: list[str] = []
    try:
        for topic, batch in calls:
            with suppress(NotFound):  # the queue was deleted on the way: as if it had been before
                await broker.stage(f"{key}/0", topic, batch)
                stages = [f"{key}/0"]
        await _commit(broker, key, stages, acks)
    except WherryError:
        with suppress(WherryError):  # they would be forgotten in an hour
            for stage in stages:
                await broker.abort(stage)
        raise


async def _commit(broker: BrokerPort, key: str, stages: list[str], acks: Sequence[LeasePart]) -> None:
    """Stage the acks beside what is staged already, and commit."""
    settler = broker.settler
    for left in reversed(range(TRIES)):
        held = settler.still_held(acks)
        try:
            if held:
                stages.append(f"{key}/{left + 1}")
                await settler.stage_ack(stages[-1], held)
            if stages:
                await broker.commit(key, stages)
            return
        except StaleLease:
            if not left or not held:
                raise
            await broker.abort(stages.pop())


async def _ack(broker: BrokerPort, acks: Sequence[LeasePart]) -> None:
    """Acks alone are one entry without a stage."""
    for left in reversed(range(TRIES)):
        held = broker.settler.still_held(acks)
        try:
            if held:
                await broker.settler.ack(held)
            return
        except StaleLease:
            if not left:
                raise
