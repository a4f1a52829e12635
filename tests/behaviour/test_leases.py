"""Leases: which consumer holds a message, for how long, and what a late worker can not do; order per key."""

import pytest

from tests.behaviour.world import Home, VirtualClock, bodies, drain, in_loop, in_virtual_time, reader_of
from wherry import Broker, InvalidInput, Message, NotFound, Retry, StaleLease

AT_ONCE = Retry(attempts=None, first_ms=0, jitter=0.0)


@pytest.mark.rows("D13", "G1")
@in_loop
async def test_what_is_not_acked_comes_again_when_the_lease_ends_and_not_before(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t", lease_ms=5_000, retry=AT_ONCE)
    await broker.publish("t", bodies(3))
    delivery = await reader.pull()
    await delivery.ack([1])
    clock.advance(4_999)
    assert len(await reader.pull()) == 0
    clock.advance(1)
    again = await reader.pull()
    assert [(m.payload, m.attempt) for m in again] == [(b"m0", 2), (b"m2", 2)]


@pytest.mark.rows("D13", "G1", "G20")
@in_loop
async def test_messages_on_lease_at_a_restart_are_delivered_again_without_an_attempt_counted(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t", partitions=2)
    reader = await reader_of(broker, "t", retry=Retry(attempts=1))
    for number in range(6):
        await broker.publish("t", f"{number}")
    assert len(await reader.pull()) == 6
    broker = await home.again(how)
    again = await (await broker.consumer("t", "readers")).pull()
    assert sorted((m.payload, m.attempt) for m in again) == [(f"{n}".encode(), 1) for n in range(6)]


@pytest.mark.rows("D14", "A16")
@in_loop
async def test_an_ack_in_time_means_no_second_delivery(home: Home, clock: VirtualClock, how: str):
    broker = await home.open()
    await broker.create_topic("t", partitions=3)
    reader = await reader_of(broker, "t", lease_ms=1_000, retry=AT_ONCE)
    for number in range(30):
        await broker.publish("t", f"{number}")
    delivery = await reader.pull(30)
    clock.advance(999)
    await delivery.ack()
    clock.advance(10_000)
    assert len(await reader.pull()) == 0
    broker = await home.again(how)
    clock.advance(100_000)
    assert await drain(await broker.consumer("t", "readers")) == []
    assert broker.stats("t").messages == 0


@pytest.mark.rows("A5")
@in_loop
async def test_work_of_ten_times_the_lease_with_renewals_is_delivered_once(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t", partitions=2)
    reader = await reader_of(broker, "t", lease_ms=1_000, retry=AT_ONCE)
    other = await broker.consumer("t", "readers")
    for number in range(4):
        await broker.publish("t", f"{number}")
    delivery = await reader.pull(2)
    rest = await other.pull(2)
    await rest.ack()
    for _ in range(12):
        clock.advance(900)
        await delivery.renew()
        await delivery.renew()  # twice to one deadline is once
        assert len(await other.pull()) == 0
    await delivery.ack()
    clock.advance(5_000)
    assert len(await reader.pull()) == len(await other.pull()) == 0
    assert broker.stats("t").subscriptions[0].counters == {"acked": 4}


@pytest.mark.rows("A5")
@in_loop
async def test_a_lease_renewed_several_times_at_one_moment_ends_once(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t", lease_ms=1_000, retry=AT_ONCE)
    await broker.publish("t", [b"x"])
    delivery = await reader.pull()
    for lease_ms in (None, None, 2_000, 1_000):
        await delivery.renew(lease_ms)
    clock.advance(1_000)
    assert [message.attempt for message in await reader.pull()] == [2]


@pytest.mark.rows("A5")
@in_loop
async def test_a_renewal_may_ask_for_its_own_time_within_limits(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t", lease_ms=1_000, retry=AT_ONCE)
    await broker.publish("t", [b"x"])
    delivery = await reader.pull()
    week_ms = 7 * 24 * 3_600_000
    for wrong in (0, -1, week_ms + 1):
        with pytest.raises(InvalidInput, match="lease_ms"):
            await delivery.renew(wrong)
    await delivery.renew(week_ms)
    clock.advance(week_ms - 1)
    assert len(await reader.pull()) == 0
    await delivery.renew(1)
    clock.advance(1)
    assert len(await reader.pull()) == 1
    with pytest.raises(StaleLease):
        await delivery.renew()


@pytest.mark.rows("A6")
@pytest.mark.parametrize("end", ["ack", "nack", "dead_letter", "release", "renew"])
@in_loop
async def test_a_late_worker_settles_nothing_of_what_another_holds_by_now(home: Home, clock: VirtualClock, end: str):
    broker = await home.open()
    await broker.create_topic("t")
    late = await reader_of(broker, "t", lease_ms=1_000, retry=AT_ONCE)
    quick = await broker.consumer("t", "readers")
    await broker.publish("t", bodies(2))
    old = await late.pull()
    clock.advance(1_000)
    new = await quick.pull()
    assert min(new.tokens) > max(old.tokens)
    with pytest.raises(StaleLease, match="nothing was settled"):
        await getattr(old, end)()
    with pytest.raises(StaleLease):
        await broker.ack(old.tokens[0])
    assert broker.stats("t").subscriptions[0].leased == 2
    await new.ack()
    assert broker.stats("t").messages == 0


@pytest.mark.rows("A6")
@in_loop
async def test_a_lease_is_over_at_its_deadline_even_if_no_consumer_took_it_since(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t", lease_ms=1_000, retry=Retry(first_ms=60_000, jitter=0.0))
    await broker.publish("t", [b"x"])
    delivery = await reader.pull()
    clock.advance(1_000)
    with pytest.raises(StaleLease):
        await delivery.ack()
    assert broker.stats("t").subscriptions[0].scheduled == 1


@pytest.mark.rows("A6", "A16")
@in_loop
async def test_a_token_from_before_a_restart_is_stale_and_never_given_again(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    await broker.publish("t", bodies(3))
    tokens = [(await reader.pull(1)).tokens[0] for _ in range(3)]
    broker = await home.again(how)
    reader = await broker.consumer("t", "readers")
    fresh = (await reader.pull()).tokens
    assert not set(tokens) & set(fresh)
    assert min(fresh) > max(tokens)
    for token in tokens:
        with pytest.raises(StaleLease):
            await broker.ack(token)
    assert broker.stats("t").subscriptions[0].leased == 3


@pytest.mark.rows("A6")
@in_loop
async def test_a_settle_of_several_leases_is_all_or_nothing(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t", partitions=2)
    reader = await reader_of(broker, "t", lease_ms=1_000, retry=Retry(first_ms=60_000, jitter=0.0))
    for number in range(2):
        await broker.publish("t", f"{number}")
    delivery = await reader.pull()
    assert len(delivery.tokens) == 2
    clock.advance(500)
    await broker.renew(delivery.tokens[1])
    clock.advance(500)
    with pytest.raises(StaleLease):
        await delivery.ack()
    stats = broker.stats("t").subscriptions[0]
    assert (stats.leased, stats.scheduled) == (1, 1)
    await broker.ack(delivery.tokens[1])


@in_loop
async def test_rows_are_settled_once_and_only_rows_that_are_there(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    await broker.publish("t", bodies(4))
    delivery = await reader.pull()
    for wrong in ([], [4], [-1], ["x"]):
        with pytest.raises(InvalidInput, match="rows"):
            await delivery.ack(wrong)  # type: ignore[arg-type]
    await delivery.ack([3, 1, 1])
    with pytest.raises(StaleLease):
        await delivery.ack([0, 1])
    await delivery.ack([0])
    await delivery.nack(delay_ms=0)
    assert [(m.payload, m.attempt) for m in await reader.pull()] == [(b"m2", 2)]


@in_loop
async def test_released_messages_wait_again_at_their_place_with_no_attempt_counted(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t", retry=Retry(attempts=1))
    await broker.publish("t", bodies(4))
    delivery = await reader.pull(3)
    await delivery.release([0, 2])
    again = await reader.pull()
    assert [(m.payload, m.attempt) for m in again] == [(b"m0", 1), (b"m2", 1), (b"m3", 1)]


@in_loop
async def test_a_consumer_that_leaves_gives_back_what_it_held(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t")
    other = await broker.consumer("t", "readers")
    await broker.publish("t", bodies(3))
    delivery = await reader.pull(2)
    await reader.close()
    assert await drain(other) == bodies(3)
    with pytest.raises(StaleLease):
        await delivery.ack()
    with pytest.raises(NotFound):
        await reader.pull()


@in_loop
async def test_a_closed_consumer_stays_closed_when_another_takes_its_id(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    await broker.subscribe("t", "readers")
    old = await broker.consumer("t", "readers", "same")
    await old.close()
    new = await broker.consumer("t", "readers", "same")
    await broker.publish("t", bodies(2))
    with pytest.raises(NotFound):
        await old.pull()
    delivery = await new.pull()
    await old.close()
    await delivery.ack()
    assert broker.stats("t").subscriptions[0].consumers == 1


@pytest.mark.rows("A5", "D14")
@in_virtual_time
async def test_a_waiting_pull_gets_what_another_lost_at_the_end_of_its_lease(broker: Broker, clock: VirtualClock):
    await broker.create_topic("t")
    reader = await reader_of(broker, "t", lease_ms=2_000, retry=AT_ONCE)
    await broker.publish("t", [b"x"])
    began_ms = clock.now_ms
    assert len(await reader.pull()) == 1
    again = await reader.pull(wait_ms=10_000)
    assert [message.attempt for message in again] == [2]
    assert 2_000 <= clock.now_ms - began_ms <= 3_000  # the housekeeper looks once a second at least


# Order per key.


def keyed(*names: str) -> list[Message]:
    """Make messages with keys; `a0` is the first message of key `a`."""
    return [Message(payload=name.encode(), key=name[0]) for name in names]


@pytest.mark.rows("A8")
@in_loop
async def test_the_next_of_a_key_waits_while_an_earlier_one_is_out_and_other_keys_do_not(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    one = await reader_of(broker, "t", key_order=True)
    other = await broker.consumer("t", "readers")
    await broker.publish("t", [*keyed("a0", "a1", "b0", "a2", "b1"), Message(payload=b"free"), *keyed("c0")])
    first = await one.pull(1)
    assert first.payloads() == [b"a0"]
    second = await other.pull(10)
    assert second.payloads() == [b"b0", b"b1", b"free", b"c0"]
    assert len(await one.pull()) == 0
    await first.ack()
    assert (await one.pull(1)).payloads() == [b"a1"]
    assert len(await other.pull()) == 0


@pytest.mark.rows("A8")
@pytest.mark.parametrize("end", ["nack", "expiry"])
@in_loop
async def test_a_failed_message_holds_its_key_through_back_off_and_restart(
    home: Home, clock: VirtualClock, how: str, end: str
):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t", key_order=True, lease_ms=1_000, retry=Retry(first_ms=5_000, jitter=0.0))
    await broker.publish("t", keyed("a0", "a1", "b0"))
    delivery = await reader.pull(1)
    if end == "nack":
        await delivery.nack()
    else:
        clock.advance(1_000)
        assert (await reader.pull()).payloads() == [b"b0"]
    broker = await home.again(how)
    reader = await broker.consumer("t", "readers")
    assert await drain(reader) == [b"b0"]
    clock.advance(4_999)
    assert await drain(reader) == []
    clock.advance(1)
    assert (await reader.pull(1)).payloads() == [b"a0"]


@pytest.mark.rows("A8")
@in_loop
async def test_a_dead_letter_and_a_released_message_free_their_keys_in_order(home: Home):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t", key_order=True)
    await broker.publish("t", keyed("a0", "a1", "a2"))
    await (await reader.pull(1)).release()
    delivery = await reader.pull(1)
    assert delivery.payloads() == [b"a0"]
    await delivery.dead_letter()
    assert await drain(reader, batch=1) == [b"a1", b"a2"]


@pytest.mark.rows("A8", "A3")
@in_loop
async def test_an_amended_message_keeps_its_place_in_its_key(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t")
    reader = await reader_of(broker, "t", key_order=True)
    answer = await broker.publish("t", keyed("a0", "a1", "b0"))
    await (await reader.pull(1)).release()
    await broker.amend("t", answer.ids()[0], payload=b"A0")
    assert (await reader.pull(1)).payloads() == [b"A0"]
    broker = await home.again(how)
    assert await drain(await broker.consumer("t", "readers"), batch=1) == [b"A0", b"a1", b"b0"]


@pytest.mark.rows("A8")
@in_loop
async def test_order_per_key_holds_with_many_consumers_that_fail_at_random(home: Home, clock: VirtualClock):
    broker = await home.open()
    await broker.create_topic("t", partitions=3)
    await broker.subscribe("t", "readers", key_order=True, retry=AT_ONCE)
    readers = [await broker.consumer("t", "readers") for _ in range(6)]
    names = [f"{'abcdefg'[n % 7]}{n // 7}" for n in range(140)]
    await broker.publish("t", keyed(*names))
    done: dict[str, list[int]] = {key: [] for key in "abcdefg"}
    held = []
    for turn in range(2_000):
        held += [await readers[turn % 6].pull(2)]
        if len(held) < 4 and turn < 1_900:
            continue
        delivery = held.pop(turn % len(held))
        if not len(delivery):
            continue
        if clock.entropy(1)[0] < 0.3:
            await delivery.nack()
        else:
            for message in delivery:
                done[message.payload.decode()[0]].append(int(message.payload.decode()[1:]))
            await delivery.ack()
        if sum(map(len, done.values())) == 140:
            break
    assert done == {key: list(range(20)) for key in "abcdefg"}
