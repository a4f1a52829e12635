"""Commits the transaction of a queue client: its publishes and acks are one entry of the journal.

Publishes are stored in one stage and acks in another, and both are committed together: a crash leaves all of them or
none. The broker has no stage for requeues and rejects, so they follow after the commit. After a crash between the two,
such a message is back in its queue.
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
"""Leases that the acks of one transaction with publishes may belong to: each lease is an operation of the one entry,
and no other client is served while the entry is applied."""

TRIES = 3
"""How often a commit is tried: a lease that ends between its check and the commit makes the commit do nothing."""


async def commit(broker: BrokerPort, calls: Sequence[tuple[str, pa.RecordBatch]], acks: Sequence[LeasePart]) -> None:
    """Publish and ack, all of it or nothing; durable on return. Acks of messages no longer on lease are left out."""
    if not calls:
        await _ack(broker, acks)
        return
    if len(acks) > LEASES_MAX:
        text = f"a transaction acks messages of at most {LEASES_MAX} deliveries"
        raise refused(Reason.RESOURCE_ERROR, text)
    key = f"amqp/{secrets.token_hex(16)}"  # of any wire; the key is stored, so its prefix stays as it was
    stages: list[str] = []
    try:
        for topic, batch in calls:
            with suppress(NotFound):  # the queue was deleted meanwhile: as if before the publish
                await broker.stage(f"{key}/0", topic, batch)
                stages = [f"{key}/0"]
        await _commit(broker, key, stages, acks)
    except WherryError:
        with suppress(WherryError):  # a stage that is left over ends within an hour
            for stage in stages:
                await broker.abort(stage)
        raise


async def _commit(broker: BrokerPort, key: str, stages: list[str], acks: Sequence[LeasePart]) -> None:
    """Stage the acks beside the stages that exist, and commit."""
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
    """Ack without a stage: acks alone are one entry anyway."""
    for left in reversed(range(TRIES)):
        held = broker.settler.still_held(acks)
        try:
            if held:
                await broker.settler.ack(held)
            return
        except StaleLease:
            if not left:
                raise
