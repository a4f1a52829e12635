"""The client against both of its brokers: every test is one behaviour, and must hold for both.

What is tried out on the embedded broker is true of a real one.
"""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

import wherry
from tests.integration.worlds import AT_ONCE, on_both
from wherry.model.key import Right

# ------------------------------------------------------------------------------------------------ publish, pull, settle


@on_both
@pytest.mark.rows("A18")
async def test_what_is_published_is_pulled_and_acked_once(world):
    await world.jobs()
    published = await world.client.publish(
        "jobs", [b"a", "b", wherry.Message(payload=b"c", key="k", headers={"h": "1"})]
    )
    assert published.ids() == ["0-0", "0-1", "0-2"]
    batch = await world.pull()
    assert batch.payloads() == [b"a", b"b", b"c"]
    last = batch.messages()[2]
    assert (last.id, last.key, last.headers, last.attempt, last.offset) == ("0-2", "k", {"h": "1"}, 1, 2)
    await batch.ack()
    await world.later(500)
    assert len(await world.pull()) == 0
    assert (await world.client.stats("jobs")).subscriptions[0].lag == 0


@on_both
@pytest.mark.rows("A18")
async def test_rows_of_a_batch_are_settled_apart(world):
    await world.jobs(partitions=3)
    await world.client.publish("jobs", [wherry.Message(payload=b"%d" % n, key=str(n)) for n in range(30)])
    batch = await world.pull()
    await batch.ack([0, 1, 2, 7])
    await batch.ack([7, 8])  # what is done is done
    await batch.release()
    again = await world.pull()
    assert sorted(again.payloads()) == sorted(
        set(batch.payloads()) - {batch.payloads()[row] for row in (0, 1, 2, 7, 8)}
    )
    assert {message.attempt for message in again} == {1}


@on_both
@pytest.mark.rows("A18")
async def test_a_nack_comes_back_after_its_delay_and_not_before(world):
    await world.jobs(lease_ms=60_000)
    await world.client.publish("jobs", [b"a"])
    await (await world.pull()).nack(delay_ms=600, error="not today")
    assert len(await world.pull()) == 0
    await world.later(600)
    assert [message.attempt for message in await world.pull()] == [2]


@on_both
@pytest.mark.rows("A18", "A6")
async def test_an_ack_after_the_lease_settles_nothing_and_says_so(world):
    await world.jobs(retry=AT_ONCE)
    await world.client.publish("jobs", [b"a"])
    late = await world.pull()
    await world.later(500)
    await world.later(50)
    again = await world.pull(wait_ms=5_000)
    assert again.payloads() == [b"a"]
    with pytest.raises(wherry.StaleLease):
        await late.ack()
    await again.ack()


@on_both
@pytest.mark.rows("A18", "A5")
async def test_a_lease_is_extended_for_long_work(world):
    await world.jobs()
    await world.pull()  # pyarrow imports pandas where it finds it: 150 ms, which the first lease of a node would lose
    await world.client.publish("jobs", [b"a"])
    batch = await world.pull()
    for _ in range(5):
        await world.later(250)
        await batch.extend()
        assert len(await world.pull()) == 0
    await batch.ack()


@on_both
@pytest.mark.rows("A18")
async def test_attempts_used_up_make_a_dead_letter_which_can_be_redriven(world):
    await world.jobs(retry=wherry.Retry(attempts=2, first_ms=10, cap_ms=10, jitter=0.0))
    await world.client.publish("jobs", [b"bad", b"good"])
    await (await world.pull()).nack([0], error="first")
    await world.later(20)
    batch = await world.pull()
    assert batch.payloads() == [b"bad"]
    await batch.nack(error="second")
    dead = await world.client.dead_letters("jobs")
    assert dead.column("payload").to_pylist() == [b"bad"]
    assert dead.column("error").to_pylist() == ["second"]
    assert await world.client.redrive("jobs", wherry.DeadFilter(subscription="workers"), by="me") == 1
    assert (await world.pull()).payloads() == [b"bad"]
    assert [(deed.what, deed.by, deed.messages) for deed in await world.client.audit("jobs")] == [("redriven", "me", 1)]


@on_both
@pytest.mark.rows("A18")
async def test_a_rejected_message_is_dead_at_once(world):
    await world.jobs()
    await world.client.publish("jobs", [b"a"])
    [message] = await world.pull()
    await message.reject(reason="poison", error="unreadable")
    assert (await world.client.dead_letters("jobs")).column("reason").to_pylist() == ["poison"]
    assert await world.client.discard("jobs", wherry.DeadFilter(reason="poison")) == 1


@on_both
@pytest.mark.rows("A18")
async def test_priority_decides_who_leaves_first(world):
    await world.jobs(order="priority")
    await world.client.publish("jobs", [wherry.Message(payload=b"%d" % n, priority=n) for n in (5, 1, 3)])
    assert (await world.pull()).payloads() == [b"1", b"3", b"5"]


@on_both
@pytest.mark.rows("A18")
async def test_a_message_is_not_early(world):
    await world.jobs()
    await world.client.publish("jobs", [wherry.Message(payload=b"later", due_ms=world.now_ms + 600)])
    assert len(await world.pull()) == 0
    assert (await world.client.scheduled("jobs", "workers")).num_rows == 1
    await world.later(600)
    assert (await world.pull(wait_ms=5_000)).payloads() == [b"later"]


@on_both
@pytest.mark.rows("A18")
async def test_a_waiting_message_can_be_read_amended_and_cancelled(world):
    await world.jobs()
    await world.client.publish(
        "jobs", [wherry.Message(payload=b"a", id="one"), wherry.Message(payload=b"b", id="two/2")]
    )
    assert (await world.client.amend("jobs", "one", payload=b"\xff", headers={"h": "1"}, version=1)).version == 2
    with pytest.raises(wherry.VersionConflict):
        await world.client.amend("jobs", "one", payload=b"c", version=1)
    await world.client.cancel("jobs", "two/2")
    assert (await world.client.get("jobs", "two/2")).num_rows == 0
    [message] = await world.pull()
    assert (message.payload, message.headers, message.id) == (b"\xff", {"h": "1"}, "one")
    with pytest.raises(wherry.NotWaiting):
        await world.client.cancel("jobs", "one")


@on_both
@pytest.mark.rows("A18")
async def test_messages_are_found_without_being_consumed(world):
    await world.jobs()
    messages = [wherry.Message(payload=b"%d" % n, key=f"user-{n % 2}", headers={"n": str(n)}) for n in range(6)]
    await world.client.publish("jobs", messages)
    assert (await world.client.search("jobs", key="user-1")).column("payload").to_pylist() == [b"1", b"3", b"5"]
    assert (await world.client.search("jobs", headers={"n": "4"})).column("payload").to_pylist() == [b"4"]
    assert (await world.client.browse("jobs", start=4)).column("offset").to_pylist() == [4, 5]
    assert await world.client.fate("jobs", "0-3") == wherry.Fate("waiting", {"workers": "waiting"})
    assert len(await world.pull()) == 6


@on_both
@pytest.mark.rows("A18", "A27")
async def test_a_publish_may_wait_for_what_becomes_of_its_messages(world):
    await world.jobs(lease_ms=60_000)
    publishing = asyncio.create_task(world.client.publish_and_wait("jobs", [b"good", b"bad"], timeout_ms=20_000))
    batch = await world.pull(wait_ms=5_000)
    await batch.ack([0])
    await batch.reject([1])
    published, fates = await publishing
    assert dict(zip(published.ids(), fates.words(), strict=True)) == {"0-0": "settled", "0-1": "dead"}
    assert [(await world.client.fate("jobs", each)).fate for each in published.ids()] == fates.words()
    _, fates = await world.client.publish_and_wait("jobs", [b"nobody comes"], until="delivered", timeout_ms=50)
    assert fates.words() == ["waiting"]
    publishing = asyncio.create_task(world.client.publish_and_wait("jobs", [b"held"], until="delivered"))
    held = await world.pull(2, wait_ms=5_000)
    while b"held" not in held.payloads():
        held = await world.pull(wait_ms=5_000)
    _, fates = await publishing
    assert fates.counts() == {"delivered": 1}
    with pytest.raises(wherry.InvalidInput, match="timeout_ms"):
        await world.client.publish_and_wait("jobs", [b"a"], timeout_ms=0)


@on_both
@pytest.mark.rows("A18", "A27")
async def test_a_callback_goes_with_the_options_of_a_publish(world):
    await world.jobs()
    with pytest.raises(wherry.InvalidInput) as refused:
        await world.client.publish("jobs", [b"a"], wherry.PublishOptions(callback="gopher://a?b=c&d"))
    assert refused.value.field == "callback"


@on_both
@pytest.mark.rows("A18")
async def test_a_topic_is_changed_in_the_fields_given_and_no_other(world):
    await world.client.create_topic("jobs", keep="age", keep_ms=60_000, messages_max=10)
    changed = await world.client.create_topic("jobs", messages_max=20)
    assert (changed.messages_max, changed.keep, changed.keep_ms) == (20, "age", 60_000)
    changed = await world.client.create_topic("jobs", messages_max=None)  # though this is the default
    assert (changed.messages_max, changed.keep, changed.keep_ms) == (None, "age", 60_000)
    changed = await world.client.change_topic("jobs", messages_max=30, overflow="drop-oldest")
    assert (changed.messages_max, changed.overflow) == (30, "drop-oldest")
    assert await world.client.topic("jobs") == changed
    whole = wherry.Topic(name="jobs", keep="age", keep_ms=60_000)
    assert await world.client.create_topic(whole) == whole
    with pytest.raises(wherry.InvalidInput, match="partitions"):
        await world.client.change_topic("jobs", partitions=2)
    with pytest.raises(wherry.InvalidInput, match="colour"):
        await world.client.create_topic("jobs", colour="red")
    for wrong in ("", 7):
        with pytest.raises(wherry.InvalidInput, match="topic"):
            await world.client.create_topic(wrong)
    with pytest.raises(wherry.NotFound):
        await world.client.change_topic("nowhere", messages_max=1)


@on_both
@pytest.mark.rows("A18", "D27")
async def test_keys_are_made_listed_changed_and_deleted(world):
    made = await world.client.make_key("ann", ["publish:orders.*", Right("consume", "jobs")])
    assert made.token is not None
    assert made.token not in repr(made)
    assert made.rights == (Right("publish", "orders.*"), Right("consume", "jobs"))
    changed = await world.client.change_key(made.id, rights=["admin"], expires_ms=world.now_ms + 60_000)
    assert (changed.name, changed.rights, changed.token) == ("ann", (Right("admin", "*"),), None)
    assert await world.client.keys() == [changed]
    await world.client.delete_key(made.id)
    assert await world.client.keys() == []
    with pytest.raises(wherry.NotFound):
        await world.client.change_key(made.id, name="bob")
    for wrong in ("admin", ["look"], [7]):
        with pytest.raises(wherry.InvalidInput, match="right"):
            await world.client.make_key("ann", wrong)


@on_both
@pytest.mark.rows("A18")
async def test_a_repeat_of_a_call_is_answered_with_the_old_places(world):
    await world.jobs()
    options = wherry.PublishOptions(producer="p", sequence=10)
    first = await world.client.publish("jobs", [b"a", b"b"], options)
    again = await world.client.publish("jobs", [b"a", b"b"], options)
    assert (again.ids(), again.repeated, first.repeated) == (first.ids(), True, False)
    with pytest.raises(wherry.OutOfSequence):
        await world.client.publish("jobs", [b"b"], wherry.PublishOptions(producer="p", sequence=11))
    assert len(await world.pull()) == 2


@on_both
@pytest.mark.rows("A18")
async def test_a_transaction_shows_all_of_itself_or_nothing(world):
    await world.jobs(lease_ms=60_000)
    await world.client.create_topic("done")
    await world.client.subscribe("done", "readers")
    await world.client.publish("jobs", [b"work"])
    batch = await world.pull()
    await world.client.stage("t1", "done", [b"result"])
    await batch.stage_ack("t1")
    assert len(await world.client.pull("done", "readers")) == 0
    assert await world.client.commit("t1") == [("done", 0, 0, 1)]
    assert await world.client.commit("t1") == [("done", 0, 0, 1)]
    assert (await world.client.pull("done", "readers")).payloads() == [b"result"]
    assert (await world.client.stats("jobs")).subscriptions[0].lag == 0
    await world.client.stage("t2", "done", [b"never"])
    await world.client.abort("t2")
    assert len(await world.client.pull("done", "readers")) == 0


@on_both
@pytest.mark.rows("A18")
async def test_a_route_copies_to_the_topics_that_match(world):
    for name in ("eu", "us"):
        await world.client.create_topic(name)
    bindings = (wherry.Binding(topic="eu", match="order.eu.#"), wherry.Binding(topic="us", match="order.us.#"))
    route = await world.client.put_route(wherry.Route(name="orders", kind="pattern", bindings=bindings))
    assert await world.client.routes() == [route]
    published = await world.client.publish_route("orders", [b"a"], routing_key="order.eu.7")
    assert {topic: each.ids() for topic, each in published.items()} == {"eu": ["0-0"]}
    await world.client.delete_route("orders")
    assert await world.client.routes() == []


@on_both
@pytest.mark.rows("A18")
async def test_what_is_wrong_is_told_as_the_broker_tells_it(world):
    await world.jobs()
    with pytest.raises(wherry.NotFound, match="nowhere"):
        await world.client.publish("nowhere", [b"a"])
    with pytest.raises(wherry.InvalidInput) as refused:
        await world.client.create_topic("jobs", partitions=0)
    assert (refused.value.field, refused.value.code) == ("partitions", "invalid-input")
    with pytest.raises(wherry.InvalidInput) as refused:
        await world.pull(messages=70_000)
    assert refused.value.field == "messages"
    with pytest.raises(wherry.InvalidInput, match="payload"):
        await world.client.publish("jobs", [b"x" * 70_000])
    with pytest.raises(wherry.AlreadyExists):
        await world.client.subscribe("jobs", "workers", lease_ms=1)
    with pytest.raises(wherry.InvalidInput):
        await world.client.subscribe("jobs", "other", colour="red")
    await world.client.unsubscribe("jobs", "workers")
    await world.client.delete_topic("jobs")
    assert await world.client.topics() == []


@on_both
@pytest.mark.rows("A18")
async def test_a_subscription_can_be_changed_in_what_may_change(world):
    await world.jobs()
    changed = await world.client.change_subscription("jobs", "workers", lease_ms=5_000, retry=AT_ONCE)
    assert (changed.lease_ms, changed.retry) == (5_000, AT_ONCE)
    assert await world.client.subscription("jobs", "workers") == changed
    with pytest.raises(wherry.InvalidInput, match="acks"):
        await world.client.change_subscription("jobs", "workers", acks=False)


@on_both
@pytest.mark.rows("A18")
async def test_names_may_hold_anything(world):
    name = "a/b?c=d&é %2F#"
    await world.client.create_topic(name)
    await world.client.subscribe(name, name)
    await world.client.publish(name, [wherry.Message(payload=b"a", id="x/ y?")])
    assert [message.id for message in await world.client.pull(name, name)] == ["x/ y?"]
    assert [topic.name for topic in await world.client.topics()] == [name]


# ---------------------------------------------------------------------------------------------------- tables, producers


class Foreign:
    """A table of another library, known by its protocol alone."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


@on_both
@pytest.mark.rows("A22")
async def test_tables_go_in_and_columns_come_out(world):
    await world.jobs()
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
    await world.client.publish("copy", batch.data)  # what was handed out can be passed on as it is


@on_both
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


@on_both
@pytest.mark.rows("A18")
async def test_a_message_that_is_refused_is_refused_alone(world):
    await world.jobs()
    await world.client.publish("jobs", [wherry.Message(payload=b"", id="taken")])
    with pytest.raises(wherry.DuplicateId) as told:
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
            await producer.publish(b"", id="taken")  # nobody looks at this one: the end tells of it
    assert told.value.code == "duplicate-id"
    assert (await world.client.stats("jobs")).messages == 101


# ------------------------------------------------------------------------------------------------------------ consumers


@on_both
@pytest.mark.rows("A18")
async def test_a_consumer_hands_out_each_message_and_acks_together(world):
    await world.jobs(lease_ms=60_000)
    await world.client.publish("jobs", [b"%d" % n for n in range(500)])
    seen = []
    async with world.client.consumer("jobs", "workers", pull_messages=64, buffer_messages=128) as consumer:
        async for message in consumer:
            seen.append(int(message.payload))
            message.ack_later()
            if len(seen) == 100:
                break
        async for message in consumer:  # goes on where it stood
            seen.append(int(message.payload))
            await message.ack()
            if len(seen) == 120:
                break
        stats = (await world.client.stats("jobs")).subscriptions[0]
        assert stats.leased <= 128
        assert stats.counters["acked"] >= 20
    assert seen == list(range(120))
    batch = await world.pull()
    assert batch.payloads()[0] == b"120"  # what was held and not settled waits again, no attempt counted
    assert {message.attempt for message in batch} == {1}


@on_both
@pytest.mark.rows("A18")
async def test_a_slow_consumer_leaves_the_rest_to_others(world):
    await world.jobs(lease_ms=60_000, assignment="shared")
    await world.client.publish("jobs", [b"%d" % n for n in range(2_000)])
    async with world.client.consumer("jobs", "workers") as slow, world.client.consumer("jobs", "workers") as fast:
        async for _ in slow:
            break
        await asyncio.sleep(0.2)
        seen = 0
        async for message in fast:
            message.ack_later()
            seen += 1
            if seen == 1_800:
                break
        await fast.flush()
        assert (await world.client.stats("jobs")).subscriptions[0].leased <= 200


@on_both
@pytest.mark.rows("A18")
async def test_a_consumer_may_ack_by_itself_what_its_loop_has_dealt_with(world):
    await world.jobs(lease_ms=60_000)
    await world.client.publish("jobs", [b"%d" % n for n in range(10)])
    with pytest.raises(ZeroDivisionError):
        async with world.client.consumer("jobs", "workers", ack="auto") as consumer:
            async for message in consumer:
                if message.payload == b"3":
                    await message.nack(delay_ms=0)
                elif message.payload == b"7":
                    raise ZeroDivisionError
    assert sorted((await world.pull()).payloads()) == [b"3", b"7", b"8", b"9"]


@on_both
@pytest.mark.rows("A5")
async def test_a_consumer_renews_the_lease_of_work_ten_times_its_length(world):
    await world.jobs(lease_ms=400)
    await world.pull()  # as above
    await world.client.publish("jobs", [b"long"])
    async with world.client.consumer("jobs", "workers") as consumer:
        async for message in consumer:
            begun_ms = world.now_ms
            while world.now_ms < begun_ms + 4_000:
                await asyncio.sleep(0.1)
                await world.later(100)
            await message.ack()
            break
        assert (await world.client.stats("jobs")).subscriptions[0].counters == {"acked": 1}


@on_both
@pytest.mark.rows("A6")
async def test_a_consumer_whose_lease_is_lost_is_told(world):
    await world.jobs()
    await world.client.publish("jobs", [b"a", b"b"])
    async with world.client.consumer("jobs", "workers", renew=False) as consumer:
        async for message in consumer:
            await world.later(500)
            with pytest.raises(wherry.StaleLease):
                await message.ack()
            with pytest.raises(wherry.StaleLease):
                await message.nack()
            break


@on_both
@pytest.mark.rows("A18")
async def test_without_acks_a_message_is_handed_out_once(world):
    await world.jobs(acks=False)
    await world.client.publish("jobs", [b"a", b"b"])
    async with world.client.consumer("jobs", "workers", ack="auto") as consumer:
        async for message in consumer:
            await message.ack()  # nothing to do, and no error
            break
    assert (await world.client.stats("jobs")).subscriptions[0].lag == 0


@on_both
async def test_a_consumer_of_nothing_says_so(world):
    with pytest.raises(wherry.NotFound):
        async with world.client.consumer("nowhere", "workers"):
            pass
    await world.jobs()
    async with world.client.consumer("jobs", "workers") as consumer:
        deleting = asyncio.create_task(world.client.delete_topic("jobs"))
        with pytest.raises((wherry.CutOff, wherry.NotFound)):
            async for _ in consumer:
                pass
        await deleting


def test_others_may_connect_to_it():
    with wherry.embedded_sync() as here, wherry.connect_sync(here.listen()) as there:
        there.create_topic("jobs")
        assert [topic.name for topic in here.topics()] == ["jobs"]
        with pytest.raises(wherry.InvalidInput, match="clock"):
            here.clock.advance(1)


@pytest.mark.rows("K14")
@on_both
async def test_workers_are_attached_at_any_time_and_share_the_work(world):
    await world.jobs(partitions=4)
    jobs = [wherry.Message(payload=b"x", key=str(number)) for number in range(40)]
    at_work = {"first": asyncio.Event(), "second": asyncio.Event()}

    async def work(name: str) -> None:
        async with world.client.consumer("jobs", "workers", pull_messages=5) as consumer:
            async for message in consumer:
                await message.ack()
                at_work[name].set()

    await world.client.publish("jobs", jobs)
    first = asyncio.create_task(work("first"))
    await at_work["first"].wait()
    second = asyncio.create_task(work("second"))
    while not at_work["second"].is_set():
        await world.client.publish("jobs", jobs)
        await asyncio.sleep(0.02)
    for task in (first, second):
        task.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
