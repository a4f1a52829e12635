"""What is bounded: topics, consumers, subscriptions, and the stated answer when a bound is reached."""

import pytest

import wherry
from tests.behaviour.world import Home, VirtualClock, bodies, drain, in_loop, reader_of
from wherry import (
    AlreadyExists,
    CutOff,
    DeadFilter,
    InvalidInput,
    LimitReached,
    Message,
    PublishOptions,
    StaleLease,
)

# Topics that are full.


@pytest.mark.rows("K15", "A23")
@in_loop
async def test_the_oldest_makes_room_as_a_dead_letter_while_those_have_room(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    await broker.create_topic("t", messages_max=2, overflow="dead-letter-oldest", dead_messages_max=3, partitions=2)
    reader = await reader_of(broker, "t")
    for number in range(4):
        clock.advance(1)
        await broker.publish("t", [b"%d" % number])
    dead = await broker.dead_letters("t")
    assert (dead.column("payload").to_pylist(), set(dead.column("reason").to_pylist())) == ([b"0", b"1"], {"overflow"})
    await broker.publish("t", [b"4", b"5"])  # of the two that go, one is a dead letter and the other finds no room
    broker = await home.again(how)
    assert (await broker.dead_letters("t")).num_rows == 3
    reader = await broker.consumer("t", "readers")
    assert sorted(await drain(reader)) == [b"4", b"5"]


@pytest.mark.rows("K15")
@in_loop
async def test_the_dead_letters_of_each_subscription_count_where_the_oldest_make_room(home: Home):
    broker = await home.open()
    await broker.create_topic("t", messages_max=2, overflow="dead-letter-oldest", dead_messages_max=3)
    for name in ("a", "b"):
        await broker.subscribe("t", name)
    for payload in (b"0", b"1"):  # two batches, so that one is dropped after the other
        await broker.publish("t", payload)
    await broker.publish("t", [b"2", b"3"])
    assert broker.stats("t").dead == 3


@pytest.mark.rows("K15")
@in_loop
async def test_leased_messages_do_not_count_where_the_topic_is_set_so(home: Home):
    broker = await home.open()
    await broker.create_topic("t", messages_max=2, overflow="drop-oldest", counted="waiting")
    await broker.create_topic("u", bytes_max=20, counted="waiting")
    for topic in ("t", "u"):
        reader = await reader_of(broker, topic)
        await broker.publish(topic, [b"0123456789", b"0123456789"])
        held = await reader.pull()
        await broker.publish(topic, [b"abcdefghij", b"abcdefghij"])
        assert len(held) == 2
        await held.nack(delay_ms=0)
        assert len(await drain(reader)) == 4
    await broker.publish("u", [b"0123456789", b"0123456789"])
    with pytest.raises(LimitReached, match="bytes of the topic"):
        await broker.publish("u", [b"x"])


@pytest.mark.rows("K15", "G22")
@in_loop
async def test_a_full_topic_refuses_and_stores_nothing_of_the_call(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t", messages_max=3, partitions=2)
    await broker.subscribe("t", "readers")
    await broker.publish("t", bodies(2))
    with pytest.raises(LimitReached, match="limit is 3, this call would make it 4") as refused:
        await broker.publish("t", [b"x", b"y"])
    assert (refused.value.limit, refused.value.asked) == (3, 4)
    await broker.publish("t", [b"last"])
    broker = await home.again(how)
    with pytest.raises(LimitReached):
        await broker.publish("t", [b"x"])
    reader = await broker.consumer("t", "readers")
    await (await reader.pull(1)).ack()
    await broker.publish("t", [b"room"])
    assert sorted(await drain(reader)) == [b"last", b"m1", b"room"]


@pytest.mark.rows("G22")
@in_loop
async def test_leased_delayed_and_transient_messages_count_and_settled_and_dead_ones_do_not(home: Home):
    broker = await home.open()
    await broker.create_topic("t", messages_max=4)
    reader = await reader_of(broker, "t")
    await broker.publish("t", bodies(3))
    await broker.publish("t", [b"transient"], PublishOptions(persistent=False))
    delivery = await reader.pull(3)
    await delivery.nack([0], delay_ms=60_000)
    with pytest.raises(LimitReached):
        await broker.publish("t", [b"x"])
    await delivery.dead_letter([1])
    await broker.publish("t", [b"after a death"])
    with pytest.raises(LimitReached):
        await broker.publish("t", [b"x"])
    await delivery.ack([2])
    await broker.publish("t", [b"after an ack"])
    assert broker.stats("t").messages == 4


@pytest.mark.rows("G22")
@in_loop
async def test_a_message_counts_until_the_last_durable_subscription_is_done_with_it(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t", messages_max=1)
    quick = await reader_of(broker, "t", "quick")
    await broker.subscribe("t", "slow")
    await broker.subscribe("t", "gone", durable=False)
    await broker.publish("t", [b"1"])
    await drain(quick)
    with pytest.raises(LimitReached):
        await broker.publish("t", [b"2"])
    broker = await home.again(how)
    await broker.unsubscribe("t", "slow")
    await broker.publish("t", [b"2"])


@pytest.mark.rows("G22")
@in_loop
async def test_bytes_are_bounded_as_well_as_messages(home: Home):
    broker = await home.open()
    await broker.create_topic("t", bytes_max=100)
    reader = await reader_of(broker, "t")
    await broker.publish("t", [b"x" * 60])
    with pytest.raises(LimitReached, match="bytes"):
        await broker.publish("t", [b"x" * 41])
    await broker.publish("t", [b"x" * 40])
    assert broker.stats("t").bytes == 100
    await drain(reader)
    await broker.publish("t", [Message(payload=b"x" * 90, key="k" * 10)])
    with pytest.raises(LimitReached):
        await broker.publish("t", b"x")


@pytest.mark.rows("G23", "A11")
@in_loop
async def test_a_message_that_does_not_fit_becomes_a_dead_letter_where_the_topic_is_set_so(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t", messages_max=2, overflow="dead-letter")
    await broker.subscribe("t", "readers")
    answer = await broker.publish("t", bodies(5))
    assert (answer.dead, answer.offset.tolist()) == (3, [0, 1, 2, 3, 4])
    broker = await home.again(how)
    reader = await broker.consumer("t", "readers")
    assert await drain(reader) == [b"m0", b"m1"]
    dead = await broker.dead_letters("t", DeadFilter(subscription=""))
    assert dead.column("payload").to_pylist() == [b"m2", b"m3", b"m4"]
    assert set(dead.column("reason").to_pylist()) == {"overflow"}
    with pytest.raises(LimitReached):
        await broker.redrive("t")
    assert await broker.redrive("t", DeadFilter(limit=2)) == 2
    broker = await home.again(how)
    assert await drain(await broker.consumer("t", "readers")) == [b"m2", b"m3"]
    assert await broker.redrive("t") == 1
    assert await broker.redrive("t") == 0
    assert await drain(await broker.consumer("t", "readers")) == [b"m4"]


@pytest.mark.rows("G23", "G22")
@pytest.mark.parametrize("sizes", [[150, 10], [10, 150, 5], [90, 20], [1, 99, 1], [50, 50]])
@in_loop
async def test_a_bound_of_bytes_is_never_exceeded_by_uneven_messages(home: Home, sizes: list[int]):
    broker = await home.open()
    await broker.create_topic("t", bytes_max=100, overflow="dead-letter")
    await broker.subscribe("t", "readers")
    answer = await broker.publish("t", [b"x" * size for size in sizes])
    fit = 0
    while fit < len(sizes) and sum(sizes[: fit + 1]) <= 100:
        fit += 1
    assert (broker.stats("t").bytes, answer.dead) == (sum(sizes[:fit]), len(sizes) - fit)


@pytest.mark.rows("G23")
@in_loop
async def test_when_the_dead_letters_are_full_too_the_publish_is_refused(home: Home):
    broker = await home.open()
    await broker.create_topic("t", messages_max=1, overflow="dead-letter", dead_messages_max=2)
    await broker.publish("t", bodies(3))
    with pytest.raises(LimitReached, match="dead letters"):
        await broker.publish("t", [b"x"])
    stats = broker.stats("t")
    assert (stats.messages, stats.dead) == (1, 2)


@in_loop
async def test_drop_oldest_makes_room_by_time_over_all_partitions_and_spares_what_is_out(
    home: Home, clock: VirtualClock, how: str
):
    broker = await home.open()
    await broker.create_topic("t", messages_max=4, overflow="drop-oldest", partitions=2)
    reader = await reader_of(broker, "t")
    for number, partition in enumerate((1, 0, 1, 0)):
        await broker.publish("t", f"{number}", PublishOptions(partition=partition))
        clock.advance(1)
    held = await reader.pull(1)  # the consumer takes from one partition at a time, in turn
    (out,) = held.payloads()
    await broker.publish("t", [b"4", b"5"])
    await held.ack()
    oldest_free = [body for body in (b"0", b"1", b"2", b"3") if body != out][:2]
    broker = await home.again(how)
    left = await drain(await broker.consumer("t", "readers"))
    assert sorted(left) == sorted({b"0", b"1", b"2", b"3", b"4", b"5"} - {out, *oldest_free})
    assert broker.stats("t").counters["dropped"] == 2


@in_loop
async def test_drop_oldest_drops_as_many_small_messages_as_a_large_one_needs_and_no_more(home: Home):
    broker = await home.open()
    await broker.create_topic("t", bytes_max=1_000, overflow="drop-oldest")
    reader = await reader_of(broker, "t")
    await broker.publish("t", [b"s" * 10] * 10)
    await broker.publish("t", [b"L" * 800])
    await broker.publish("t", [b"n" * 150])
    assert broker.stats("t").bytes == 1_000
    assert [len(body) for body in await drain(reader)] == [10] * 5 + [800, 150]
    await broker.publish("t", [b"s" * 10] * 10)
    await broker.publish("t", [b"L" * 800])
    await broker.publish("t", [b"n" * 500])
    assert [len(body) for body in await drain(reader)] == [500]


@in_loop
async def test_drop_oldest_refuses_when_everything_is_out_or_the_call_alone_is_too_large(home: Home):
    broker = await home.open()
    await broker.create_topic("t", messages_max=2, overflow="drop-oldest")
    reader = await reader_of(broker, "t")
    with pytest.raises(LimitReached):
        await broker.publish("t", bodies(3))
    await broker.publish("t", bodies(2))
    delivery = await reader.pull()
    with pytest.raises(LimitReached):
        await broker.publish("t", [b"x"])
    await delivery.ack([0])
    await broker.publish("t", [b"x"])
    assert await drain(reader) == [b"x"]


@in_loop
async def test_an_ephemeral_reader_does_not_hold_up_drop_oldest_and_loses_what_was_dropped(home: Home):
    broker = await home.open()
    await broker.create_topic("t", messages_max=2, overflow="drop-oldest")
    await broker.subscribe("t", "durable")
    tab = await reader_of(broker, "t", "tab", durable=False)
    stays = await broker.consumer("t", "tab")
    await broker.publish("t", bodies(2))
    held = await tab.pull()
    await broker.publish("t", [b"new"])
    with pytest.raises(StaleLease):
        await held.ack([0])
    await held.nack(delay_ms=0)
    await tab.close()
    assert await drain(stays) == [b"m1", b"new"]
    assert await drain(await broker.consumer("t", "durable")) == [b"m1", b"new"]


@in_loop
async def test_bounds_may_change_while_the_topic_lives_but_not_its_shape(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t", messages_max=1)
    await broker.create_topic("t", messages_max=2)
    broker = await home.again(how)
    await broker.publish("t", bodies(2))
    await broker.create_topic("t", messages_max=1, overflow="drop-oldest")
    await broker.publish("t", [b"x"])
    assert broker.stats("t").messages == 1
    for shape in ({"order": "priority"}, {"persistent": False}, {"keep": "age", "keep_ms": 5}):
        with pytest.raises(AlreadyExists):
            await broker.create_topic("t", messages_max=1, overflow="drop-oldest", **shape)


# What is held for a consumer.


@pytest.mark.rows("Q2", "Q5")
@in_loop
async def test_a_consumer_never_holds_more_messages_than_it_declared(home: Home):
    broker = await home.open()
    await broker.create_topic("t", partitions=3)
    await broker.subscribe("t", "readers")
    small = await broker.consumer("t", "readers", buffer_messages=5)
    for number in range(12):
        await broker.publish("t", f"{number}")
    first = await small.pull(3)
    second = await small.pull(1_000)
    assert (len(first), len(second), len(await small.pull())) == (3, 2, 0)
    await first.ack([0])
    await second.release([1])
    third = await small.pull(1_000)
    assert len(third) == 2
    assert len(await small.pull()) == 0
    large = await broker.consumer("t", "readers")
    assert len(await drain(large)) == 6  # the other consumers continue


@pytest.mark.rows("Q2", "Q4")
@in_loop
async def test_a_consumer_never_holds_more_bytes_than_it_declared(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.subscribe("t", "readers")
    small = await broker.consumer("t", "readers", buffer_bytes=100)
    await broker.publish("t", [b"x" * 40] * 5)
    first = await small.pull()
    assert len(first) == 2
    assert len(await small.pull(bytes_max=10)) == 0  # 20 left: a message of 40 does not fit, whatever the pull asks
    await first.ack([0])
    assert len(await small.pull()) == 1


@pytest.mark.rows("Q4")
@in_loop
async def test_one_message_above_the_buffer_is_handed_over_alone(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.subscribe("t", "readers")
    small = await broker.consumer("t", "readers", buffer_bytes=100)
    await broker.publish("t", [b"x" * 10, b"L" * 5_000, b"y" * 10])
    first = await small.pull()
    assert [len(body) for body in first.payloads()] == [10]
    assert len(await small.pull(1, bytes_max=50)) == 0
    await first.ack()
    second = await small.pull()
    assert [len(body) for body in second.payloads()] == [5_000]
    assert len(await small.pull()) == 0
    await second.ack()
    assert [len(body) for body in (await small.pull()).payloads()] == [10]


@in_loop
async def test_a_pull_is_bounded_by_bytes_over_partitions_and_gives_at_least_one(home: Home):
    broker = await home.open()
    await broker.create_topic("t", partitions=2)
    reader = await reader_of(broker, "t")
    for _ in range(4):
        await broker.publish("t", [b"x" * 100] * 3)
    assert len(await reader.pull(bytes_max=1)) == 1
    assert len(await reader.pull(bytes_max=99)) == 1
    assert len(await reader.pull(bytes_max=200)) == 2
    assert len(await reader.pull(bytes_max=299)) == 2
    assert len(await reader.pull(5, bytes_max=100_000)) == 5
    assert len(await reader.pull(bytes_max=100_000)) == 1


@in_loop
async def test_credit_bounds_what_is_pushed(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    await broker.publish("t", bodies(10))
    reader.grant(2)
    assert (await reader.pull()).payloads() == [b"m0", b"m1"]
    assert len(await reader.pull()) == 0
    reader.grant(1)
    reader.grant(1)
    assert (await reader.pull()).payloads() == [b"m2", b"m3"]
    with pytest.raises(InvalidInput):
        reader.grant(0)


@pytest.mark.rows("Q2", "Q3", "Q5")
@pytest.mark.parametrize("durable", [False, True])
@in_loop
async def test_a_subscription_over_its_buffer_is_cut_off_and_no_other_notices(home: Home, how: str, durable: bool):
    broker = await home.open()
    await broker.create_topic("t", partitions=2)
    good = await reader_of(broker, "t", "good")
    bad = await reader_of(broker, "t", "bad", durable=durable, buffer_messages=3)
    for number in range(3):
        await broker.publish("t", f"{number}")
    held = await bad.pull(2)
    await held.ack([0])
    await broker.publish("t", [b"3"])  # three behind: at the edge
    assert len(await bad.pull(1)) == 1
    await broker.publish("t", [b"4"])
    with pytest.raises(CutOff, match="buffer it declared"):
        await bad.pull()
    with pytest.raises(StaleLease):
        await held.ack([1])
    await bad.close()
    assert [each.name for each in broker.stats("t").subscriptions] == ["good"]
    assert broker.stats("t").counters["cut_off"] == 1
    assert sorted(await drain(good)) == [b"0", b"1", b"2", b"3", b"4"]
    assert broker.stats("t").messages == 0
    broker = await home.again(how)
    assert [each.name for each in broker.stats("t").subscriptions] == ["good"]
    await broker.publish("t", [b"5"])
    assert await drain(await broker.consumer("t", "good")) == [b"5"]


@pytest.mark.rows("Q3", "Q4")
@in_loop
async def test_a_subscription_over_its_bytes_is_cut_off(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    bad = await reader_of(broker, "t", "bad", durable=False, buffer_bytes=100)
    await broker.publish("t", [b"x" * 50] * 2)
    await drain(bad)
    await broker.publish("t", [b"x" * 100])
    assert len(await bad.pull()) == 1
    await broker.publish("t", [b"x"])
    with pytest.raises(CutOff):
        await bad.pull()


@pytest.mark.rows("Q3")
@in_loop
async def test_one_batch_larger_than_the_buffer_cuts_off_at_once_and_a_new_one_may_come(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    bad = await reader_of(broker, "t", "bad", durable=False, buffer_messages=2)
    await broker.publish("t", bodies(3))
    with pytest.raises(CutOff):
        await bad.pull()
    fresh = await reader_of(broker, "t", "bad", durable=False, buffer_messages=2)
    await broker.publish("t", bodies(2))
    assert await drain(fresh) == bodies(2)


@in_loop
async def test_creating_a_topic_again_changes_only_what_is_given(home: Home):
    broker = await home.open()
    await broker.create_topic("t", messages_max=10, overflow="dead-letter", keep="age", keep_ms=1_000)
    same = await broker.create_topic("t")
    assert (same.messages_max, same.overflow, same.keep_ms) == (10, "dead-letter", 1_000)
    changed = await broker.create_topic("t", messages_max=20)
    assert (changed.messages_max, changed.overflow, changed.keep_ms) == (20, "dead-letter", 1_000)
    assert (await broker.create_topic("t", keep_ms=2_000)).keep_ms == 2_000
    with pytest.raises(InvalidInput, match="messages_max"):
        await broker.create_topic("t", messages_max=0)
    with pytest.raises(wherry.AlreadyExists, match="keep is 'age' and cannot become 'bytes'"):
        await broker.create_topic("t", keep="bytes", keep_bytes=1)
    whole = await broker.create_topic(wherry.Topic(name="t", keep="age", keep_ms=1_000))
    assert (whole.messages_max, whole.overflow) == (None, "refuse")
