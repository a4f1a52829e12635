"""Failed deliveries: back-off, attempts, dead letters, redrive."""

import asyncio
import datetime
from random import Random
from typing import Any

import pytest

from tests.behaviour.world import Home, VirtualClock, bodies, drain, in_loop, in_virtual_time, reader_of
from wherry import Broker, DeadFilter, InvalidInput, LimitReached, Message, NotFound, PublishOptions, Retry
from wherry.broker.opening import start
from wherry.journal.memory import MemoryEngine
from wherry.model import ops
from wherry.sim.world.clock import SimClock
from wherry.sim.world.loop import run as sim_run


def when(ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)


@pytest.mark.rows("G16", "G17", "A23")
@in_loop
async def test_each_pause_is_longer_by_the_factor_up_to_the_cap(home: Home, clock: VirtualClock, how: str):
    policy = Retry(attempts=None, first_ms=100, factor=3.0, cap_ms=2_000, jitter=0.0)
    broker = await home.open()
    await broker.create_topic("t")
    await broker.subscribe("t", "readers", retry=policy)
    await broker.publish("t", [b"x"])
    for attempt, pause_ms in enumerate([100, 300, 900, 2_000, 2_000], 1):
        reader = await broker.consumer("t", "readers")
        delivery = await reader.pull()
        assert [message.attempt for message in delivery] == [attempt]
        await delivery.nack()
        broker = await home.again(how)
        reader = await broker.consumer("t", "readers")
        clock.advance(pause_ms - 1)
        assert len(await reader.pull()) == 0
        clock.advance(1)
    assert len(await reader.pull()) == 1


@pytest.mark.rows("G16", "G17")
@in_loop
async def test_jitter_spreads_a_burst_within_its_share(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t", retry=Retry(first_ms=1_000, jitter=0.5))
    await broker.publish("t", bodies(200))
    await (await reader.pull()).nack()
    clock.advance(499)
    assert len(await reader.pull()) == 0
    arrivals = []
    for _ in range(11):
        clock.advance(101)
        arrivals.append(len(await drain(reader)))
    assert sum(arrivals) == 200
    assert sum(count > 0 for count in arrivals) >= 9


@pytest.mark.rows("G17")
@in_loop
async def test_a_nack_may_give_its_own_pause(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    await broker.publish("t", bodies(2))
    delivery = await reader.pull()
    with pytest.raises(InvalidInput, match="delay_ms"):
        await delivery.nack(delay_ms=-1)
    await delivery.nack([0], delay_ms=0)
    await delivery.nack([1], delay_ms=77)
    assert await drain(reader) == [b"m0"]
    clock.advance(76)
    assert await drain(reader) == []
    clock.advance(1)
    assert await drain(reader) == [b"m1"]


@pytest.mark.rows("A23")
@in_loop
async def test_a_message_in_back_off_holds_up_nothing_behind_it(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t", retry=Retry(first_ms=60_000, jitter=0.0))
    await broker.publish("t", bodies(5))
    await (await reader.pull(1)).nack()
    assert await drain(reader) == bodies(5)[1:]
    await broker.publish("t", [b"later"])
    clock.advance(60_000)
    assert await drain(reader) == [b"m0", b"later"]  # the message is back at its place


@pytest.mark.rows("A23", "G16")
@in_virtual_time
async def test_a_waiting_pull_is_served_when_the_back_off_is_over(broker: Broker, clock: VirtualClock):
    await broker.create_topic("t")
    reader = await reader_of(broker, "t", retry=Retry(first_ms=3_456, jitter=0.0))
    await broker.publish("t", [b"x"])
    began_ms = clock.now_ms
    await (await reader.pull()).nack()
    assert (await reader.pull(wait_ms=None)).payloads() == [b"x"]
    assert 3_456 <= clock.now_ms - began_ms <= 3_460


@pytest.mark.rows("G17", "G18", "A11")
@in_loop
async def test_used_up_attempts_make_a_dead_letter_with_all_that_happened(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    await broker.create_topic("t", partitions=2)
    await broker.subscribe("t", "readers", retry=Retry(attempts=3, first_ms=10, factor=1.0, jitter=0.0))
    await broker.subscribe("t", "others")
    sent = Message(payload=b"\x00poison", id="mine", key="k", priority=3, headers={"h": "v"}, envelope=b"e")
    await broker.publish("t", [sent], PublishOptions(partition=1))
    times = []
    for attempt in range(3):
        broker = await home.again(how) if attempt == 1 else broker
        clock.advance(10)
        times.append(clock.now_ms)
        delivery = await (await broker.consumer("t", "readers")).pull()
        await delivery.nack(error=f"failed {attempt}")
    clock.advance(1_000_000)
    broker = await home.again(how)
    assert await drain(await broker.consumer("t", "readers")) == []
    (dead,) = (await broker.dead_letters("t")).to_pylist()
    assert (dead["payload"], dead["id"], dead["key"], dead["priority"]) == (b"\x00poison", "mine", "k", 3)
    assert (dead["headers"], dead["envelope"], dead["partition"], dead["offset"]) == ([("h", "v")], b"e", 1, 0)
    assert (dead["subscription"], dead["reason"], dead["error"]) == ("readers", "3 failed deliveries", "failed 2")
    assert (dead["attempts"], dead["first_failed"], dead["last_failed"]) == (3, when(times[0]), when(times[2]))
    assert dead["died"] == when(times[2])
    assert await drain(await broker.consumer("t", "others")) == [b"\x00poison"]  # dead for one only
    assert broker.stats("t").dead == 1


@pytest.mark.rows("G18")
@in_loop
async def test_a_lost_lease_counts_as_a_failed_attempt(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t", lease_ms=100, retry=Retry(attempts=2, first_ms=0, jitter=0.0))
    await broker.publish("t", [b"x"])
    for _ in range(2):
        assert len(await reader.pull()) == 1
        clock.advance(100)
    assert len(await reader.pull()) == 0
    assert (await broker.dead_letters("t")).column("error").to_pylist() == ["the lease expired"]


@pytest.mark.rows("G17")
@in_loop
async def test_one_attempt_means_no_retry_and_none_means_for_ever(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    once = await reader_of(broker, "t", "once", retry=Retry(attempts=1))
    ever = await reader_of(broker, "t", "ever", retry=Retry(attempts=None, first_ms=0, jitter=0.0))
    await broker.publish("t", [b"x"])
    await (await once.pull()).nack()
    for _ in range(100):
        await (await ever.pull()).nack()
    stats = {each.name: (each.dead, each.ready) for each in broker.stats("t").subscriptions}
    assert stats == {"once": (1, 0), "ever": (0, 1)}


@pytest.mark.rows("A11")
@in_loop
async def test_a_consumer_can_give_up_at_once_for_rows_it_names(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    await broker.publish("t", bodies(3))
    delivery = await reader.pull()
    await delivery.dead_letter([1], reason="bad schema", error="no field x")
    await delivery.ack([0, 2])
    broker = await home.again(how)
    dead = (await broker.dead_letters("t")).select(["payload", "reason", "error", "attempts"]).to_pylist()
    assert dead == [{"payload": b"m1", "reason": "bad schema", "error": "no field x", "attempts": 1}]
    assert broker.stats("t").messages == 0  # a dead letter does not count against the bounds


async def dead_topic(home: Home, count: int = 6) -> Broker:
    """Make a topic with dead letters of two reasons, at two times."""
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t", retry=Retry(attempts=1))
    await broker.publish("t", bodies(count))
    delivery = await reader.pull()
    await delivery.dead_letter(list(range(count // 2)), reason="schema")
    home.clock.advance(1_000)
    await delivery.nack(error="timeout after 3 s")
    return broker


@pytest.mark.rows("A12")
@in_loop
async def test_dead_letters_are_chosen_by_reason_error_time_offset_and_number(home: Home, clock: VirtualClock):
    broker = await dead_topic(home)
    cases = {
        DeadFilter(): 6,
        DeadFilter(reason="schema"): 3,
        DeadFilter(reason="timeout"): 3,
        DeadFilter(reason="nothing like it"): 0,
        DeadFilter(subscription="readers"): 6,
        DeadFilter(subscription=""): 0,
        DeadFilter(from_ms=clock.now_ms): 3,
        DeadFilter(to_ms=clock.now_ms): 3,
        DeadFilter(from_ms=clock.now_ms - 1_000, to_ms=clock.now_ms + 1): 6,
        DeadFilter(offsets=(0, 5, 99)): 2,
        DeadFilter(partition=1): 0,
        DeadFilter(limit=4): 4,
    }
    assert {wanted: (await broker.dead_letters("t", wanted)).num_rows for wanted in cases} == cases
    with pytest.raises(NotFound):
        await broker.dead_letters("t", DeadFilter(subscription="nobody"))
    with pytest.raises(InvalidInput):
        await broker.dead_letters("t", DeadFilter(limit=0))


@pytest.mark.rows("A12")
@in_loop
async def test_redrive_brings_back_what_the_filter_means_and_twice_is_once(home: Home, how: str):
    broker = await dead_topic(home)
    assert await broker.redrive("t", DeadFilter(reason="schema"), by="ann") == 3
    assert await broker.redrive("t", DeadFilter(reason="schema"), by="ann") == 0
    broker = await home.again(how)
    assert await broker.redrive("t", DeadFilter(reason="schema"), by="ann") == 0
    reader = await broker.consumer("t", "readers")
    again = await reader.pull()
    assert [(m.payload, m.attempt) for m in again] == [(b"m0", 1), (b"m1", 1), (b"m2", 1)]
    await again.ack()
    assert await broker.redrive("t") == 3
    assert await drain(reader) == [b"m3", b"m4", b"m5"]
    assert await broker.redrive("t") == 0
    stats = broker.stats("t")
    assert (stats.dead, stats.messages, stats.subscriptions[0].counters["redriven"]) == (0, 0, 6)


@pytest.mark.rows("A12")
@in_loop
async def test_a_redriven_message_can_die_and_be_redriven_again(home: Home, how: str):
    broker = await dead_topic(home, 2)
    for _ in range(3):
        assert await broker.redrive("t") == 2
        broker = await home.again(how)
        await (await (await broker.consumer("t", "readers")).pull()).nack(error="again")
        assert (await broker.dead_letters("t")).column("attempts").to_pylist() == [1, 1]


@pytest.mark.rows("A12")
@in_loop
async def test_a_limit_redrives_piece_by_piece_oldest_first(home: Home):
    broker = await dead_topic(home)
    seen = []
    reader = await broker.consumer("t", "readers")
    while await broker.redrive("t", DeadFilter(limit=2)):
        seen.append(await drain(reader))
    assert seen == [[b"m0", b"m1"], [b"m2", b"m3"], [b"m4", b"m5"]]


@pytest.mark.rows("A12")
@in_loop
async def test_the_journal_has_the_names_of_redrives_and_discards(home: Home):
    broker = await dead_topic(home)
    await broker.redrive("t", DeadFilter(offsets=(0, 1)), by="ann")
    assert await broker.discard("t", DeadFilter(offsets=(2,)), by="bob") == 1
    assert await broker.discard("t", DeadFilter(offsets=(2,)), by="bob") == 0
    found = await home.journal()
    redriven = [(op.by, op.offsets.tolist()) for op in found if isinstance(op, ops.Redrive)]
    discarded = [(op.by, op.offsets.tolist()) for op in found if isinstance(op, ops.Discard)]
    assert (redriven, discarded) == ([("ann", [0, 1])], [("bob", [2])])
    assert (await broker.get("t", "0-2")).num_rows == 0


@pytest.mark.rows("A12")
@in_loop
async def test_the_topic_keeps_the_names_of_redrives_and_discards(home: Home, how: str):
    broker = await dead_topic(home)
    await broker.redrive("t", DeadFilter(offsets=(0, 1)), by="ann")
    await broker.discard("t", DeadFilter(offsets=(2,)), by="bob")
    broker = await home.again(how)
    actions = [(action.what, action.by, action.subscription, action.messages) for action in broker.audit("t")]
    assert actions == [("redriven", "ann", "readers", 2), ("discarded", "bob", "readers", 1)]


@pytest.mark.rows("A12")
def test_a_redrive_with_a_rate_takes_its_time():
    async def main() -> list[tuple[int, int]]:
        loop = asyncio.get_running_loop()
        engine = MemoryEngine()
        broker = await start(engine, None, SimClock(Random(1)))
        await broker.create_topic("t")
        await broker.subscribe("t", "readers", retry=Retry(attempts=1))
        reader = await broker.consumer("t", "readers")
        await broker.publish("t", bodies(100))
        await (await reader.pull()).nack()
        redriving = asyncio.create_task(broker.redrive("t", rate=20, by="ann"))
        seen, began = 0, loop.time()
        growth = []
        while not redriving.done():
            await asyncio.sleep(1)
            seen += len(await drain(reader))
            growth.append((round(loop.time() - began), seen))
        assert await redriving == 100
        await broker.close()
        return growth

    for seconds, seen in sim_run(main()):
        assert seen <= 20 * seconds + 2
        assert seen >= min(100, 20 * seconds - 2)


@pytest.mark.rows("A12")
@in_loop
async def test_a_redrive_does_not_push_a_topic_over_its_bound(home: Home):
    broker = await home.open()
    await broker.create_topic("t", messages_max=2)
    reader = await reader_of(broker, "t", retry=Retry(attempts=1))
    await broker.publish("t", bodies(2))
    await (await reader.pull()).nack()
    await broker.publish("t", bodies(1, "new"))
    with pytest.raises(LimitReached):
        await broker.redrive("t")
    assert await broker.redrive("t", DeadFilter(limit=1)) == 1
    assert broker.stats("t").messages == 2


@pytest.mark.rows("A11")
@in_loop
async def test_full_dead_letters_keep_a_message_in_retry_and_refuse_to_give_up(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t", dead_messages_max=1)
    reader = await reader_of(broker, "t", retry=Retry(attempts=1, first_ms=10, jitter=0.0))
    await broker.publish("t", bodies(2))
    delivery = await reader.pull()
    await delivery.nack([0])
    await delivery.nack([1])
    assert broker.stats("t").dead == 1
    clock.advance(10)
    again = await reader.pull()
    assert [(m.payload, m.attempt) for m in again] == [(b"m1", 2)]
    with pytest.raises(LimitReached, match="dead letters"):
        await again.dead_letter()
    await again.ack()
    broker = await home.again()
    assert broker.stats("t").dead == 1


@pytest.mark.rows("A11", "A12")
@in_loop
async def test_dead_letters_are_deleted_with_their_subscription_and_others_stay(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    first = await reader_of(broker, "t", "first")
    second = await reader_of(broker, "t", "second")
    await broker.publish("t", bodies(2))
    await (await first.pull()).dead_letter()
    await (await second.pull(1)).dead_letter()
    await broker.unsubscribe("t", "first")
    assert (await broker.dead_letters("t")).column("subscription").to_pylist() == ["second"]
    broker = await home.again(how)
    await broker.unsubscribe("t", "second")
    assert broker.stats("t").dead == 0
    broker = await home.again(how)
    late = await reader_of(broker, "t", "late")
    assert await drain(late) == [b"m1"]  # no subscription had settled it; the dead letter was removed
    assert broker.stats("t").messages == 0


@pytest.mark.rows("G18")
@in_loop
@pytest.mark.parametrize("keep", [{}, {"keep": "age", "keep_ms": 10**9}], ids=["queue", "stream"])
async def test_dead_letters_outlive_a_subscription_that_is_cut_off(home: Home, how: str, keep: dict[str, Any]):
    broker = await home.open()
    await broker.create_topic("t", **keep)
    slow = await reader_of(broker, "t", "slow", buffer_messages=3)
    other = await reader_of(broker, "t", "other")
    await broker.publish("t", bodies(3))
    await (await slow.pull(2)).dead_letter(reason="bad", error="no JSON")
    await (await other.pull(1)).ack()
    await broker.publish("t", bodies(3))
    assert broker.stats("t").removals[0].subscription == "slow"
    broker = await home.again(how)
    letters = (await broker.dead_letters("t")).to_pylist()
    rows = [(row["subscription"], row["offset"], row["reason"], row["error"], row["attempts"]) for row in letters]
    assert rows == [("", 0, "bad", "no JSON", 1), ("", 1, "bad", "no JSON", 1)]
    assert broker.stats("t").dead == 2
    other = await broker.consumer("t", "other")
    assert await drain(other) == [b"m1", b"m2", b"m0", b"m1", b"m2"], "subscriptions that wait for them still get them"
    broker = await home.again(how)
    assert await broker.discard("t", DeadFilter(offsets=(0,))) == 1
    assert await broker.redrive("t", by="ann") == 1, "published anew, for the subscriptions of now"
    broker = await home.again(how)
    other = await broker.consumer("t", "other")
    assert await drain(other) == [b"m1"]
    assert (broker.stats("t").dead, broker.stats("t").messages) == (0, 7 if keep else 0)


@pytest.mark.rows("G18")
@in_loop
async def test_a_dead_letter_of_two_that_were_cut_off_is_one_and_is_removed_when_no_subscription_keeps_it(
    home: Home, how: str
):
    broker = await home.open()
    await broker.create_topic("t")
    readers = [await reader_of(broker, "t", name, buffer_messages=2) for name in ("a", "b")]
    await reader_of(broker, "t", "c")
    await broker.publish("t", bodies(1))
    for reader in readers:
        await (await reader.pull()).dead_letter()
    await broker.publish("t", bodies(3))
    assert len(broker.stats("t").removals) == 2
    assert broker.stats("t").dead == 1
    broker = await home.again(how)
    await broker.discard("t", DeadFilter())
    last = await broker.consumer("t", "c")
    delivery = await last.pull(1)
    assert [message.payload for message in delivery] == [b"m0"], (
        "its body is kept for the subscription that waits for it"
    )
    await delivery.ack()
    assert await drain(last) == [b"m0", b"m1", b"m2"]
    broker = await home.again(how)
    assert broker.stats("t").messages == 0
    assert (await broker.browse("t")).num_rows == 0


@pytest.mark.rows("A11", "A7")
@in_loop
async def test_a_redriven_message_waits_at_its_priority_or_due_time(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    await broker.create_topic("p", order="priority")
    await broker.create_topic("d", order="timeline")
    urgent = await reader_of(broker, "p")
    timed = await reader_of(broker, "d")
    await broker.publish("p", [Message(payload=str(n).encode(), priority=n) for n in (1, 2, 3)])
    await broker.publish("d", [Message(payload=str(n).encode(), due_ms=clock.now_ms + n) for n in (1, 2, 3)])
    clock.advance(10)
    for reader in (urgent, timed):
        delivery = await reader.pull()
        await delivery.dead_letter([1])
        await delivery.release([0, 2])
    broker = await home.again(how)
    for topic in ("p", "d"):
        assert await broker.redrive(topic) == 1
        assert await drain(await broker.consumer(topic, "readers")) == [b"1", b"2", b"3"]
