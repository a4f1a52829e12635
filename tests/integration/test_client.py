"""The client against each of its brokers: publish, pull, settle. Every test is one behaviour, and must hold for each.

What is tried out on the embedded broker is true of a real one.
"""

from __future__ import annotations

import asyncio

import pytest

import wherry
from tests.integration.worlds import AT_ONCE, on_each


@on_each
@pytest.mark.rows("A18")
async def test_what_is_published_is_pulled_and_acked_once(world):
    await world.jobs(lease_ms=3_000)
    published = await world.client.publish(
        "jobs", [b"a", "b", wherry.Message(payload=b"c", key="k", headers={"h": "1"})]
    )
    assert published.ids() == ["0-0", "0-1", "0-2"]
    batch = await world.pull()
    assert batch.payloads() == [b"a", b"b", b"c"]
    last = batch.messages()[2]
    assert (last.id, last.key, last.headers, last.attempt, last.offset) == ("0-2", "k", {"h": "1"}, 1, 2)
    await batch.ack()
    await world.later(3_000)
    assert len(await world.pull()) == 0
    assert (await world.client.stats("jobs")).subscriptions[0].lag == 0


@on_each
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


@on_each
@pytest.mark.rows("A18")
async def test_a_nack_comes_back_after_its_delay_and_not_before(world):
    await world.jobs(lease_ms=60_000)
    await world.client.publish("jobs", [b"a"])
    await (await world.pull()).nack(delay_ms=600, error="not today")
    assert len(await world.pull()) == 0
    await world.later(600)
    assert [message.attempt for message in await world.pull()] == [2]


@on_each
@pytest.mark.rows("A18", "A6")
async def test_an_ack_after_the_lease_settles_nothing_and_raises(world):
    await world.jobs(lease_ms=400, retry=AT_ONCE)
    await world.client.publish("jobs", [b"a"])
    late = await world.pull()
    await world.later(500)
    await world.later(50)
    again = await world.pull(wait_ms=5_000)
    assert again.payloads() == [b"a"]
    with pytest.raises(wherry.StaleLease):
        await late.ack()
    await again.ack()


@on_each
@pytest.mark.rows("A18", "A5")
async def test_a_lease_is_extended_for_long_work(world):
    await world.jobs(lease_ms=6_000)
    await world.client.publish("jobs", [b"a"])
    batch = await world.pull()
    for _ in range(3):
        await world.later(2_100)
        await batch.renew()
        assert len(await world.pull()) == 0
    await batch.ack()


@on_each
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
    assert [(action.what, action.by, action.messages) for action in await world.client.audit("jobs")] == [
        ("redriven", "me", 1)
    ]


@on_each
@pytest.mark.rows("A18")
async def test_a_rejected_message_is_dead_at_once(world):
    await world.jobs()
    await world.client.publish("jobs", [b"a"])
    [message] = await world.pull()
    await message.dead_letter(reason="poison", error="unreadable")
    assert (await world.client.dead_letters("jobs")).column("reason").to_pylist() == ["poison"]
    assert await world.client.discard("jobs", wherry.DeadFilter(reason="poison")) == 1


@on_each
@pytest.mark.rows("A18")
async def test_priority_decides_which_message_is_delivered_first(world):
    await world.jobs(order="priority")
    await world.client.publish("jobs", [wherry.Message(payload=b"%d" % n, priority=n) for n in (5, 1, 3)])
    assert (await world.pull()).payloads() == [b"1", b"3", b"5"]


@on_each
@pytest.mark.rows("A18")
async def test_a_message_is_not_early(world):
    await world.jobs()
    await world.client.publish("jobs", [wherry.Message(payload=b"later", due_ms=world.now_ms + 600)])
    assert len(await world.pull()) == 0
    assert (await world.client.scheduled("jobs", "workers")).num_rows == 1
    await world.later(600)
    assert (await world.pull(wait_ms=5_000)).payloads() == [b"later"]


@on_each
@pytest.mark.rows("A18")
async def test_a_waiting_message_can_be_read_amended_and_cancelled(world):
    await world.jobs()
    await world.client.publish(
        "jobs", [wherry.Message(payload=b"a", id="one"), wherry.Message(payload=b"b", id="two/2")]
    )
    assert (await world.client.amend("jobs", "one", payload=b"\xff", headers={"h": "1"}, version=1)).version == 2
    with pytest.raises(wherry.VersionConflict):
        await world.client.amend("jobs", "one", payload=b"c", version=1)
    assert (await world.client.get("jobs", "two/2")).column("payload").to_pylist() == [b"b"]
    await world.client.cancel("jobs", "two/2")
    assert (await world.client.get("jobs", "two/2")).num_rows == 0
    [message] = await world.pull()
    assert (message.payload, message.headers, message.id) == (b"\xff", {"h": "1"}, "one")
    with pytest.raises(wherry.NotWaiting):
        await world.client.cancel("jobs", "one")


@on_each
@pytest.mark.rows("A18")
async def test_a_listing_of_any_size_comes_whole(world):
    await world.jobs()
    for start in range(0, 600, 100):
        await world.client.publish("jobs", [b"%d " % n + bytes(50_000) for n in range(start, start + 100)])
    listed = await world.client.browse("jobs", limit=550)
    assert [int(payload.split()[0]) for payload in listed.column("payload").to_pylist()] == list(range(550))
    found = await world.client.search("jobs", limit=1_000)
    assert found.num_rows == 600


@on_each
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


@on_each
@pytest.mark.rows("A18", "A27")
async def test_a_publish_may_wait_for_what_becomes_of_its_messages(world):
    await world.jobs(lease_ms=60_000)
    publishing = asyncio.create_task(world.client.publish_and_wait("jobs", [b"good", b"bad"], timeout_ms=20_000))
    batch = await world.pull(wait_ms=5_000)
    await batch.ack([0])
    await batch.dead_letter([1])
    published, fates = await publishing
    assert dict(zip(published.ids(), fates.words(), strict=True)) == {"0-0": "settled", "0-1": "dead"}
    assert [(await world.client.fate("jobs", each)).fate for each in published.ids()] == fates.words()
    _, fates = await world.client.publish_and_wait("jobs", [b"no consumer"], until="delivered", timeout_ms=50)
    assert fates.words() == ["waiting"]
    publishing = asyncio.create_task(world.client.publish_and_wait("jobs", [b"held"], until="delivered"))
    held = await world.pull(2, wait_ms=5_000)
    while b"held" not in held.payloads():
        held = await world.pull(wait_ms=5_000)
    _, fates = await publishing
    assert fates.counts() == {"delivered": 1}
    with pytest.raises(wherry.InvalidInput, match="timeout_ms"):
        await world.client.publish_and_wait("jobs", [b"a"], timeout_ms=0)


@on_each
@pytest.mark.rows("A18", "A27")
async def test_a_callback_is_one_of_the_options_of_a_publish(world):
    await world.jobs()
    with pytest.raises(wherry.InvalidInput) as refused:
        await world.client.publish("jobs", [b"a"], wherry.PublishOptions(callback="gopher://a?b=c&d"))
    assert refused.value.field == "callback"


@on_each
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


@on_each
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
    first, again = await world.client.commit("t1"), await world.client.commit("t1")
    assert first == again == [("done", 0, 0, 1)]
    assert first.mesh == again.mesh == {"done": "safe"}
    assert (await world.client.pull("done", "readers")).payloads() == [b"result"]
    assert (await world.client.stats("jobs")).subscriptions[0].lag == 0
    await world.client.stage("t2", "done", [b"never"])
    await world.client.abort("t2")
    assert len(await world.client.pull("done", "readers")) == 0
