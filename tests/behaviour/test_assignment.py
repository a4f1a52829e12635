"""How partitions are shared out among consumers that come and go."""

from collections.abc import Iterator

import pytest

from tests.behaviour.world import Home, bodies, drain, in_loop, reader_of
from wherry import AlreadyExists, Consumer, InvalidInput, PublishOptions
from wherry.core.state import assignment
from wherry.model.catalog.subscription import ASSIGNMENTS


def shares(consumers: list[Consumer]) -> list[int]:
    return sorted(partition for consumer in consumers for partition in consumer.partitions)


@pytest.mark.rows("D11")
@pytest.mark.parametrize("strategy", ["balanced", "ordered"])
@in_loop
async def test_partitions_are_shared_out_anew_as_consumers_join_and_leave(home: Home, strategy: str):
    broker = await home.open()
    await broker.create_topic("t", partitions=10)
    await broker.subscribe("t", "readers", assignment=strategy)
    active: list[Consumer] = []
    for step in "++++-+--+-":
        if step == "+":
            active.append(await broker.consumer("t", "readers"))
        else:
            await active.pop(0).close()
        sizes = [len(consumer.partitions) for consumer in active]
        assert shares(active) == list(range(10))
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.rows("D11", "D13")
@in_loop
async def test_partitions_of_a_consumer_that_leaves_are_read_on_by_the_others(home: Home):
    broker = await home.open()
    await broker.create_topic("t", partitions=4)
    await broker.subscribe("t", "readers", assignment="ordered")
    one, other = [await broker.consumer("t", "readers") for _ in range(2)]
    for partition in range(4):
        await broker.publish("t", bodies(3, f"{partition}-"), PublishOptions(partition=partition))
    held = await one.pull(4)
    await held.ack([0])
    seen = held.payloads()[:1] + await drain(other)
    assert len(seen) == 7  # of the two partitions of this consumer only
    await one.close()
    seen += await drain(other)
    assert sorted(seen) == sorted(body for partition in range(4) for body in bodies(3, f"{partition}-"))


@pytest.mark.rows("D11")
@in_loop
async def test_consumers_beyond_the_partitions_stand_by_where_order_is_asked_for(home: Home):
    broker = await home.open()
    await broker.create_topic("t", partitions=2)
    await broker.subscribe("t", "readers", assignment="ordered")
    consumers = [await broker.consumer("t", "readers") for _ in range(4)]
    assert [len(consumer.partitions) for consumer in consumers] == [1, 1, 0, 0]
    await broker.publish("t", bodies(4), PublishOptions(partition=consumers[0].partitions[0]))
    assert len(await consumers[2].pull()) == 0
    await (await consumers[0].pull(1)).ack()
    await consumers[0].close()
    assert await drain(consumers[2]) == bodies(4)[1:]
    assert shares([consumers[1], consumers[2]]) == [0, 1]


@pytest.mark.rows("D11")
@in_loop
async def test_exclusive_gives_all_to_the_first_consumer_and_shared_all_to_each(home: Home):
    broker = await home.open()
    await broker.create_topic("t", partitions=2)
    for name in ("exclusive", "shared"):
        await broker.subscribe("t", name, assignment=name)
    first, second = [await broker.consumer("t", "exclusive") for _ in range(2)]
    sharing = [await broker.consumer("t", "shared") for _ in range(2)]
    for _ in range(4):
        await broker.publish("t", [b"x"])
    assert len(await second.pull()) == 0
    assert len(await first.pull(1)) == 1
    await first.close()
    assert len(await drain(second)) == 4
    assert [consumer.partitions for consumer in sharing] == [[0, 1], [0, 1]]
    assert [len(await consumer.pull(2)) for consumer in sharing] == [2, 2]


@pytest.mark.rows("D24")
@in_loop
async def test_several_consumers_work_off_one_partition_that_lags(home: Home):
    broker = await home.open()
    await broker.create_topic("t", partitions=3)
    await broker.subscribe("t", "readers")
    consumers = [await broker.consumer("t", "readers") for _ in range(3)]
    lagging = consumers[0].partitions[0]
    await broker.publish("t", bodies(9), PublishOptions(partition=lagging))
    deliveries = [await consumer.pull(3) for consumer in reversed(consumers)]
    assert [delivery.payloads() for delivery in deliveries] == [bodies(9)[:3], bodies(9)[3:6], bodies(9)[6:]]


@pytest.mark.rows("D24")
@in_loop
async def test_a_consumer_reads_its_own_partitions_first_and_helps_where_most_waits_when_it_is_idle(home: Home):
    broker = await home.open()
    await broker.create_topic("t", partitions=3)
    await broker.subscribe("t", "readers")
    consumers = [await broker.consumer("t", "readers") for _ in range(3)]
    (own,), (little,), (much,) = (consumer.partitions for consumer in consumers)
    await broker.publish("t", bodies(50, "much"), PublishOptions(partition=much))
    await broker.publish("t", bodies(2, "own"), PublishOptions(partition=own))
    await broker.publish("t", bodies(5, "little"), PublishOptions(partition=little))
    helper = consumers[0]
    assert (await helper.pull(10)).payloads() == bodies(2, "own")
    assert (await helper.pull(48)).payloads() == bodies(50, "much")[:48]
    assert (await helper.pull(3)).payloads() == bodies(5, "little")[:3]


@pytest.mark.rows("D24")
@in_loop
async def test_no_partition_of_a_consumer_is_starved_by_another(home: Home):
    broker = await home.open()
    await broker.create_topic("t", partitions=3)
    reader = await reader_of(broker, "t")
    for partition in range(3):
        await broker.publish("t", [b"%d" % partition] * 10, PublishOptions(partition=partition))
    first_three = [(await reader.pull(1)).payloads()[0] for _ in range(3)]
    assert sorted(first_three) == [b"0", b"1", b"2"]


@in_loop
async def test_consumers_that_take_turns_starve_no_partition_either(home: Home):
    broker = await home.open()
    await broker.create_topic("t", partitions=4)
    await broker.subscribe("t", "readers")
    consumers = [await broker.consumer("t", "readers") for _ in range(2)]
    for partition in range(4):
        await broker.publish("t", [b"%d" % partition] * 10, PublishOptions(partition=partition))
    for consumer in consumers:
        assert len(consumer.partitions) == 2
    seen: list[set[bytes]] = [set(), set()]
    for turn in range(8):
        seen[turn % 2] |= set((await consumers[turn % 2].pull(1)).payloads())
    assert seen[0] | seen[1] == {b"0", b"1", b"2", b"3"}
    for consumer in consumers:
        await consumer.close()
    brief = set()
    for _ in range(8):
        async with await broker.consumer("t", "readers") as consumer:
            delivery = await consumer.pull(1)
            brief |= set(delivery.payloads())
            await delivery.ack()
    assert brief == {b"0", b"1", b"2", b"3"}


class Backwards:
    """A strategy of our own: every consumer reads every partition, the highest first."""

    helps = False
    rotates = False

    def __init__(self, partitions: int) -> None:
        self._all = range(partitions - 1, -1, -1)
        self.seen: list[str] = []

    def join(self, consumer: str) -> None:
        self.seen.append(f"+{consumer}")

    def leave(self, consumer: str) -> None:
        self.seen.append(f"-{consumer}")

    def of(self, consumer: str) -> range:
        return self._all


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Backwards]]:
    """Register a strategy of our own, and yield the instances that were made."""
    monkeypatch.setattr(assignment, "_STRATEGIES", dict(assignment._STRATEGIES))
    monkeypatch.setattr(assignment, "ASSIGNMENTS", list(ASSIGNMENTS))
    made: list[Backwards] = []

    def make(partitions: int) -> Backwards:
        made.append(Backwards(partitions))
        return made[-1]

    assignment.register("backwards", make)
    yield made


@pytest.mark.rows("D12")
@in_loop
async def test_a_strategy_can_be_added_and_is_used_by_name_also_after_a_restart(
    home: Home, how: str, backwards: list[Backwards]
):
    broker = await home.open()
    await broker.create_topic("t", partitions=3)
    await broker.subscribe("t", "readers", assignment="backwards")
    broker = await home.again(how)
    reader = await broker.consumer("t", "readers", "me")
    assert reader.partitions == [2, 1, 0]
    await broker.publish("t", [b"x"], PublishOptions(partition=1))
    assert await drain(reader) == [b"x"]
    await reader.close()
    assert backwards[-1].seen == ["+me", "-me"]
    with pytest.raises(InvalidInput, match="not taken"):
        assignment.register("balanced", Backwards)
    with pytest.raises(InvalidInput, match="one of backwards, balanced, exclusive, ordered, shared"):
        await broker.subscribe("t", "other", assignment="unknown")


@pytest.mark.rows("D24", "D12")
@in_loop
async def test_a_strategy_can_give_a_consumer_a_priority_for_each_partition(home: Home, backwards: list[Backwards]):
    broker = await home.open()
    await broker.create_topic("t", partitions=3)
    reader = await reader_of(broker, "t", assignment="backwards")
    for partition in range(3):
        await broker.publish("t", [b"%d" % partition] * 2, PublishOptions(partition=partition))
    assert await drain(reader, batch=1) == [b"2", b"2", b"1", b"1", b"0", b"0"]


@in_loop
async def test_a_topic_gets_more_partitions_and_consumers_share_them(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t", partitions=2)
    await broker.subscribe("t", "s", assignment="ordered")
    await broker.publish("t", bodies(4), PublishOptions(partition=1))
    first, second = await broker.consumer("t", "s"), await broker.consumer("t", "s")
    held = await second.pull() if 1 in second.partitions else await first.pull()
    assert (await broker.create_topic("t", partitions=5)).partitions == 5
    assert sorted([*first.partitions, *second.partitions]) == [0, 1, 2, 3, 4]
    for number in range(5):
        await broker.publish("t", [b"%d" % number], PublishOptions(partition=number))
    await held.ack()
    assert sorted(await drain(first) + await drain(second)) == [b"0", b"1", b"2", b"3", b"4"]
    broker = await home.again(how)
    assert broker.stats("t").partitions == 5
    await broker.publish("t", bodies(1), PublishOptions(partition=4))
    assert await drain(await broker.consumer("t", "s")) == bodies(1)
    with pytest.raises(AlreadyExists, match="partitions is 5 and cannot become 3"):
        await broker.create_topic("t", partitions=3)
