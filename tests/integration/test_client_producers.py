"""The client against each of its brokers: tables in one call, and messages one by one."""

from __future__ import annotations

import pyarrow as pa
import pytest

import wherry
from tests.integration.worlds import on_each


class Foreign:
    """A table of another library, known by its protocol alone."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


@on_each
@pytest.mark.rows("A22")
async def test_tables_are_published_and_columns_are_consumed(world):
    await world.jobs(lease_ms=60_000)
    table = pa.table(
        {
            "payload": pa.array([b"%d" % n for n in range(2_500)], pa.large_binary()),
            "key": [str(n % 7) for n in range(2_500)],
        }
    )
    published = await world.client.publish_batch("jobs", Foreign(table), batch_messages=1_000, producer="load")
    assert published.offset.tolist() == list(range(2_500))
    again = await world.client.publish_batch("jobs", table, batch_messages=1_000, producer="load")
    assert again.repeated
    assert again.ids() == published.ids()
    got = []
    async with world.client.consumer("jobs", "workers", pull_messages=700) as consumer:
        async for batch in consumer.consume_batches():
            assert isinstance(batch.data, pa.RecordBatch)
            got += batch.data.column("payload").to_pylist()
            await batch.ack()
            if len(got) == 2_500:
                break
    assert got == table.column("payload").to_pylist()
    await world.client.create_topic("copy")
    await world.client.publish("copy", batch.data)  # a batch that was pulled can be published as it is


@on_each
@pytest.mark.rows("A18")
async def test_a_producer_batches_in_the_background_and_keeps_the_order(world):
    await world.jobs(lease_ms=60_000)
    async with world.client.producer("jobs", batch_messages=100, buffer_messages=250) as producer:
        tickets = [await producer.publish(b"%d" % n, key="k" if n % 3 else None) for n in range(1_000)]
        assert [await tickets[n].stored() for n in (0, 999)] == ["0-0", "0-999"]
        own = await producer.publish("text", id="mine", headers={"h": "1"}, priority=7)
        assert await own.stored() == "mine"
    batch = await world.pull(2_000)
    assert batch.payloads()[:1_000] == [b"%d" % n for n in range(1_000)]
    last = batch.messages()[-1]
    assert (last.payload, last.headers, last.priority) == (b"text", {"h": "1"}, 7)


@on_each
@pytest.mark.rows("A18")
async def test_a_message_that_is_refused_is_refused_alone(world):
    await world.jobs()
    await world.client.publish("jobs", [wherry.Message(payload=b"", id="taken")])
    with pytest.raises(wherry.DuplicateId) as caught:
        async with world.client.producer("jobs", linger_ms=20) as producer:
            tickets = [await producer.publish(b"%d" % n) for n in range(50)]
            large = await producer.publish(b"x" * 70_000)
            with pytest.raises(wherry.InvalidInput):
                await producer.publish(b"a", priority="high")
            negative = await producer.publish(b"a", priority=-1)
            tickets += [await producer.publish(b"%d" % n) for n in range(50)]
            with pytest.raises(wherry.InvalidInput):
                await large.stored()
            with pytest.raises(wherry.InvalidInput):
                await negative.stored()
            assert len({await ticket.stored() for ticket in tickets}) == 100
            await producer.publish(b"", id="taken")  # this call is not awaited: the end of the producer raises for it
    assert caught.value.code == "duplicate-id"
    assert (await world.client.stats("jobs")).messages == 101
