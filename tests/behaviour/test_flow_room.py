"""A full `flow` topic: peers that do not read make room, and subscriptions of the node itself do not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.behaviour.test_flow_topics import peer, read
from tests.behaviour.world import Home, bodies, in_loop
from wherry import CutOff, LimitReached, Message, PublishOptions, StaleLease
from wherry.broker.broker import Broker
from wherry.core.decide import flow, room
from wherry.core.decide.flow import FULL
from wherry.core.state.state import REMOVALS_MAX
from wherry.sim.patch import patched

BOUNDS = pytest.mark.parametrize("bound", [{"messages_max": 10}, {"bytes_max": 30}], ids=["messages", "bytes"])
"""Ten messages of three bytes each."""


def some(first: int, count: int = 5) -> list[bytes]:
    return [b"%03d" % number for number in range(first, first + count)]


def cut_off(broker: Broker) -> list[str]:
    found = [each for each in broker.stats("t").removals if each.why == FULL]
    assert len(found) == len(broker.stats("t").removals) == broker.stats("t").counters.get("cut_off", 0)
    return [each.subscription for each in found]


@pytest.mark.rows("Q18", "Q19")
@BOUNDS
@pytest.mark.parametrize("persistent", [True, False])
@in_loop
async def test_a_peer_that_fills_a_topic_is_cut_off_and_the_publish_flows(
    home: Home, how: str, bound: dict[str, int], persistent: bool
):
    broker = await home.open()
    await broker.create_topic("t", mesh="flow", persistent=persistent, **bound)
    await broker.subscribe("t", "own")
    await peer(broker, "down")
    await peer(broker, "reads")
    sent = []
    for first in range(0, 40, 5):
        sent += some(first)
        assert (await broker.publish("t", some(first))).mesh == "flow"
        assert await read(broker, "own") == await read(broker, "mesh.reads") == some(first)
        assert cut_off(broker) == (["mesh.down"] if first >= 10 else [])
    broker = await home.again(how)
    assert cut_off(broker) == ["mesh.down"]
    assert {each.name for each in broker.subscriptions("t")} == {"own", "mesh.reads"}
    assert broker.stats("t").messages == 0


@pytest.mark.rows("Q18", "Q19")
@BOUNDS
@in_loop
async def test_only_the_peers_that_have_to_go_are_cut_off(home: Home, bound: dict[str, int]):
    broker = await home.open()
    await broker.create_topic("t", mesh="flow", **bound)
    await broker.subscribe("t", "own")
    for node in ("far", "near"):
        await peer(broker, node)
    await broker.publish("t", some(0))
    await read(broker, "mesh.near")
    await broker.publish("t", some(5))
    await read(broker, "own")
    await broker.publish("t", some(10))
    assert cut_off(broker) == ["mesh.far"]
    await read(broker, "own")
    await broker.publish("t", some(15))
    assert cut_off(broker) == ["mesh.far", "mesh.near"]
    assert broker.stats("t").messages == 5


@pytest.mark.rows("Q19")
@BOUNDS
@in_loop
async def test_what_a_subscription_of_the_node_keeps_is_a_reason_to_refuse(home: Home, bound: dict[str, int]):
    broker = await home.open()
    await broker.create_topic("t", mesh="flow", **bound)
    await broker.subscribe("t", "slow")
    await peer(broker, "down")
    await broker.publish("t", some(0, 8))
    consumer = await broker.consumer("t", "slow")
    await (await consumer.pull(2)).ack()  # six are kept: a peer's end would free two, and three are needed
    with pytest.raises(LimitReached):
        await broker.publish("t", some(8, 5))
    with pytest.raises(LimitReached):  # larger than all that the topic may hold
        await broker.publish("t", some(8, 11))
    assert cut_off(broker) == []
    await broker.publish("t", some(8, 4))
    assert cut_off(broker) == ["mesh.down"]
    assert broker.stats("t").messages == 10
    with pytest.raises(LimitReached):
        await broker.publish("t", some(12, 1))
    await consumer.close()
    assert await read(broker, "slow") == some(2, 10)


@pytest.mark.rows("Q18")
@BOUNDS
@in_loop
async def test_a_topic_that_no_subscription_reads_keeps_the_newest(home: Home, how: str, bound: dict[str, int]):
    """For the next subscription, such as that of the peer when it is back."""
    broker = await home.open()
    await broker.create_topic("t", mesh="flow", partitions=2, **bound)
    await peer(broker, "down")
    for number in range(25):
        home.clock.advance(1)
        await broker.publish("t", some(number, 1), PublishOptions(partition=number % 2))
    assert cut_off(broker) == ["mesh.down"]
    assert broker.stats("t").counters["dropped"] == 15
    broker = await home.again(how)
    assert broker.stats("t").messages == 10
    await broker.subscribe("t", "mesh.down", peer="down", start="offset", start_offset=0)
    assert sorted(await read(broker, "mesh.down")) == some(15, 10)


@pytest.mark.rows("Q18")
@BOUNDS
@pytest.mark.parametrize("first", [0, 1])
@in_loop
async def test_what_goes_with_the_peers_makes_room_before_anything_is_dropped(
    home: Home, how: str, bound: dict[str, int], first: int
):
    """Each of two peers has read messages that the other one has not; in which order they are cut off decides."""
    broker = await home.open()
    await broker.create_topic("t", mesh="flow", partitions=2, **bound)
    for number, node in enumerate(("a", "b")):
        await peer(broker, node)
        await broker.publish("t", some(5 * number), PublishOptions(partition=number))
    for node, partition in (("a", first), ("b", 1 - first)):
        async with await broker.consumer("t", f"mesh.{node}") as consumer:
            delivery = await consumer.pull()
            await delivery.ack([row for row, each in enumerate(delivery) if each.partition == partition][:2])
    await broker.publish("t", some(10, 3), PublishOptions(partition=0))
    assert cut_off(broker) == ["mesh.a", "mesh.b"]
    assert (broker.stats("t").messages, broker.stats("t").counters["dropped"]) == (10, 1)
    broker = await home.again(how)
    assert broker.stats("t").messages == 10


@pytest.mark.rows("Q19")
@pytest.mark.parametrize("counted", ["all", "waiting"])
@in_loop
async def test_a_refusal_looks_at_messages_only_where_peers_may_make_room(home: Home, counted: str):
    broker = await home.open()
    await broker.create_topic("t", mesh="flow", messages_max=10, counted=counted)
    await broker.subscribe("t", "slow")
    await peer(broker, "down")
    await broker.publish("t", bodies(10))
    async with await broker.consumer("t", "slow") as consumer:
        await (await consumer.pull(1)).ack()
    looks = []

    def noted(unfinished: Any) -> Any:
        def call(topic: Any) -> Any:
            looks.append(topic)
            return unfinished(topic)

        return call

    with patched(flow, "_unfinished", noted):
        for _ in range(3):
            with pytest.raises(LimitReached):
                await broker.publish("t", bodies(2))
        assert len(looks) == (0 if counted == "all" else 3)
        await broker.publish("t", bodies(1))
    assert cut_off(broker) == ["mesh.down"]


@in_loop
async def test_an_ephemeral_subscription_that_is_slow_loses_nothing_to_a_peer(home: Home):
    broker = await home.open()
    await broker.create_topic("t", mesh="flow", messages_max=10)
    await broker.subscribe("t", "here", durable=False)
    consumer = await broker.consumer("t", "here")
    await peer(broker, "down")
    await broker.publish("t", some(0, 10))
    with pytest.raises(LimitReached):
        await broker.publish("t", some(10))
    await (await consumer.pull(5)).ack()
    await broker.publish("t", some(10))
    assert (await consumer.pull(100)).batch.column("payload").to_pylist() == some(5, 10)


@in_loop
async def test_a_refusal_does_not_look_at_each_batch_that_an_ephemeral_subscription_has_to_read(home: Home):
    broker = await home.open()
    await broker.create_topic("t", mesh="flow", messages_max=200)
    await broker.subscribe("t", "here", durable=False)
    consumer = await broker.consumer("t", "here")
    await peer(broker, "down")
    for _ in range(200):
        home.clock.advance(1)
        await broker.publish("t", b"x")
    looks = []

    def noted(nobodys: Any) -> Any:
        def call(*given: Any) -> Any:
            looks.append(given)
            return nobodys(*given)

        return call

    with patched(room, "nobodys", noted):
        with pytest.raises(LimitReached):
            await broker.publish("t", b"y")
        assert len(looks) <= room.LOOKS + 1
        await (await consumer.pull(200)).ack([197, 198, 199])
        looks.clear()
        await broker.publish("t", [b"y"] * 2)
        assert len(looks) <= room.LOOKS + 3
    assert cut_off(broker) == ["mesh.down"]
    assert (broker.stats("t").messages, broker.stats("t").counters["dropped"]) == (200, 2)
    with pytest.raises(LimitReached):
        await broker.publish("t", [b"y"] * 2)
    await broker.publish("t", b"y")
    assert (await consumer.pull(300)).payloads() == [b"y"] * 3


@in_loop
async def test_a_peer_that_holds_messages_gets_the_reason(home: Home):
    broker = await home.open()
    await broker.create_topic("t", mesh="flow", messages_max=10, counted="waiting")
    await broker.subscribe("t", "own")
    await peer(broker, "slow")
    consumer = await broker.consumer("t", "mesh.slow")
    await broker.publish("t", bodies(10))
    await read(broker, "own")
    held = await consumer.pull(4)
    await broker.publish("t", bodies(4))  # what is held does not count
    await read(broker, "own")
    assert cut_off(broker) == []
    await broker.publish("t", bodies(1))
    assert cut_off(broker) == ["mesh.slow"]
    with pytest.raises(CutOff, match=FULL):
        await consumer.pull(1)
    with pytest.raises(StaleLease):
        await held.ack()
    assert broker.stats("t").messages == 1


@in_loop
async def test_a_commit_that_cuts_off_the_peer_whose_messages_it_settles_is_whole(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t", mesh="flow", messages_max=10)
    await broker.subscribe("t", "own")
    await peer(broker, "slow")
    await broker.publish("t", bodies(10))
    await read(broker, "own")
    consumer = await broker.consumer("t", "mesh.slow")
    held = await consumer.pull(2)
    await broker.stage("k", "t", [Message(payload=b"x")] * 9)
    await held.stage_ack("k")
    assert (await broker.commit("k")).mesh == {"t": "flow"}
    assert cut_off(broker) == ["mesh.slow"]
    broker = await home.again(how)
    assert await read(broker, "own") == [b"x"] * 9


@in_loop
async def test_a_topic_that_is_kept_by_age_and_a_safe_one_refuse_as_before(home: Home):
    broker = await home.open()
    for fields in ({"mesh": "flow", "keep": "age", "keep_ms": 10**9}, {"mesh": "safe"}):
        await broker.create_topic("t", messages_max=10, **fields)
        await peer(broker, "down")
        await broker.publish("t", bodies(10))
        with pytest.raises(LimitReached):
            await broker.publish("t", bodies(1))
        assert cut_off(broker) == []
        await broker.delete_topic("t")


@pytest.mark.rows("Q19")
@in_loop
async def test_the_last_cut_off_of_a_peer_is_remembered_until_its_subscription_is_deleted(home: Home, how: str):
    """However often others are cut off: a peer that is away for long asks for it when it is back."""
    broker = await home.open()
    await broker.create_topic("t", mesh="flow")

    def whys() -> list[tuple[str, str | None]]:
        return [(each.subscription, each.peer) for each in broker.stats("t").removals]

    for _ in range(2):
        await broker.subscribe("t", "mesh.away", peer="away", buffer_messages=1)
        await broker.publish("t", bodies(2))
    assert whys() == [("mesh.away", "away")]
    for number in range(REMOVALS_MAX + 5):
        await broker.subscribe("t", f"s{number}", buffer_messages=1, start="latest")
        await broker.publish("t", bodies(2))
    broker = await home.again(how)
    assert len(whys()) == REMOVALS_MAX
    assert whys()[:2] == [("mesh.away", "away"), ("s6", None)]
    await broker.subscribe("t", "mesh.away", peer="away")
    assert whys()[0] == ("mesh.away", "away")
    await broker.unsubscribe("t", "mesh.away")
    assert ("mesh.away", "away") not in whys()
