"""Flow topics in one broker: what they take, what they answer, and what each peer gets of them."""

import asyncio

import numpy as np
import pytest

from tests.behaviour.world import Home, bodies, drain, in_loop
from wherry import InvalidInput, Message, PublishOptions
from wherry.broker.broker import Broker
from wherry.core.state import producers
from wherry.mesh.flow.links import HUBS_MAX, LEAVES_MAX, MeshNode
from wherry.model import limits
from wherry.model.calls.dead import DeadCopy, DeadRow
from wherry.model.calls.origin import (
    HEADER,
    HEADER_BYTES_MAX,
    RUN_CHARS_MAX,
    Origin,
    OriginPlace,
    read_origin,
    show_origin,
)
from wherry.model.catalog.subscription import Retry, Role
from wherry.node.mesh.at_peer import Backlog, peer_terms

A = OriginPlace("a", "r1", 0)


def came(*offsets: int, place: OriginPlace = A, role: Role = "hub") -> PublishOptions:
    return PublishOptions(origin=Origin(place=place, offsets=np.array(offsets), role=role))


async def peer(broker: Broker, node: str, role: Role = "hub") -> None:
    await broker.subscribe("t", f"mesh.{node}", peer=node, peer_role=role, retry=Retry(attempts=None, first_ms=0))


async def read(broker: Broker, subscription: str) -> list[bytes]:
    consumer = await broker.consumer("t", subscription)
    try:
        return await drain(consumer)
    finally:
        await consumer.close()


@pytest.mark.rows("Q18")
@in_loop
async def test_the_answer_to_a_publish_names_the_guarantee(home: Home):
    broker = await home.open()
    await broker.create_topic("t", mesh="flow")
    await broker.create_topic("s")
    for messages in ([b"one"], bodies(3), [Message(payload=b"x", headers={"a": "b"})]):
        assert (await broker.publish("t", messages)).mesh == "flow"
        assert (await broker.publish("s", messages)).mesh == "safe"
    answers = await asyncio.gather(*(broker.publish("t", [b"x"]) for _ in range(5)))  # gathered to one batch
    assert {each.mesh for each in answers} == {"flow"}
    for _ in range(2):
        assert (await broker.publish("t", [b"x"], PublishOptions(producer="p", sequence=0))).mesh == "flow"


@pytest.mark.rows("Q18")
@in_loop
async def test_the_answer_to_a_commit_names_the_guarantee_of_each_topic(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t", mesh="flow")
    for topic in ("s", "gone"):
        await broker.create_topic(topic)
    for topic in ("t", "s", "t", "gone"):
        await broker.stage("k", topic, [b"x"])
    first = await broker.commit("k")
    assert first == [("t", 0, 0, 1), ("s", 0, 0, 1), ("t", 0, 1, 1), ("gone", 0, 0, 1)]
    assert first.mesh == {"t": "flow", "s": "safe", "gone": "safe"}
    await broker.delete_topic("gone")
    broker = await home.again(how)
    again = await broker.commit("k")
    assert again == [*first[:3], ("", 0, 0, 1)]
    assert again.mesh == {"t": "flow", "s": "safe"}


@pytest.mark.rows("Q21")
@in_loop
async def test_messages_of_a_peer_are_stored_once_over_any_restart(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t", mesh="flow")
    await broker.subscribe("t", "readers")
    await broker.publish("t", bodies(3), came(0, 5, 7))
    for _ in range(2):
        broker = await home.again(how)
        again = await broker.publish("t", bodies(3), came(0, 5, 7))
        assert (again.repeated, len(again)) == (True, 0)
    # other cuts between the calls: what is new is stored, and nothing else
    answer = await broker.publish("t", [*bodies(2), b"new"], came(5, 7, 9))
    assert (len(answer), answer.repeated, answer.mesh) == (1, False, "flow")
    await broker.publish("t", [b"of another run"], came(0, place=A._replace(run="r2")))
    await broker.publish("t", [b"of another node"], came(0, place=A._replace(node="b")))
    broker = await home.again(how)
    assert (await broker.publish("t", [b"n"], came(9))).repeated
    assert await read(broker, "readers") == [*bodies(3), b"new", b"of another run", b"of another node"]


@pytest.mark.rows("Q21")
@in_loop
async def test_what_comes_again_of_a_run_that_is_forgotten_is_stored_again(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t", mesh="flow")
    for run in range(producers.RUNS_MAX + 1):
        await broker.publish("t", [b"x"], came(0, place=A._replace(run=f"r{run}")))
    broker = await home.again(how)
    for run in range(1, producers.RUNS_MAX + 1):
        assert (await broker.publish("t", [b"x"], came(0, place=A._replace(run=f"r{run}")))).repeated
    assert not (await broker.publish("t", [b"x"], came(0, place=A._replace(run="r0")))).repeated


@in_loop
async def test_no_number_of_other_producers_pushes_an_origin_out(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 3)
    broker = await home.open()
    await broker.create_topic("t", mesh="flow")
    await broker.publish("t", [b"x"], came(4))
    for number in range(10):
        await broker.publish("t", [b"y"], PublishOptions(producer=f"p{number}", sequence=0))
    broker = await home.again("crash")
    assert (await broker.publish("t", [b"x"], came(4))).repeated


@pytest.mark.rows("Q21", "Q23")
@pytest.mark.parametrize("many", [1, 100])  # as rows, and as columns
@in_loop
async def test_each_peer_gets_what_takes_one_way_to_it(home: Home, how: str, many: int):
    broker = await home.open()
    await broker.create_topic("t", mesh="flow")
    await broker.subscribe("t", "own")
    await peer(broker, "h")
    for node in ("l", "m"):
        await peer(broker, node, "leaf")
    offsets = range(many)
    await broker.publish("t", [b"here"] * many)
    await broker.publish("t", [b"of h"] * many, came(*offsets, place=A._replace(node="h")))
    await broker.publish("t", [b"behind h"] * many, came(*offsets, place=A._replace(node="x")))
    await broker.publish("t", [b"of l"] * many, came(*offsets, place=A._replace(node="l"), role="leaf"))
    broker = await home.again(how)
    seen = {name: sorted(set(await read(broker, name))) for name in ("own", "mesh.h", "mesh.l", "mesh.m")}
    assert seen == {
        "own": [b"behind h", b"here", b"of h", b"of l"],
        "mesh.h": [b"here", b"of l"],
        "mesh.l": [b"behind h", b"here", b"of h"],
        "mesh.m": [b"behind h", b"here", b"of h", b"of l"],
    }
    broker = await home.again(how)
    assert broker.stats("t").messages == 0


@in_loop
async def test_what_no_peer_is_to_get_does_not_stay(home: Home, how: str):
    broker = await home.open()
    await broker.create_topic("t", mesh="flow")
    await peer(broker, "a")
    await broker.publish("t", bodies(2), came(0, 1))
    assert broker.stats("t").messages == 0
    broker = await home.again(how)
    assert broker.stats("t").messages == 0


@in_loop
async def test_a_flow_topic_refuses_what_would_change_the_order_of_a_peer(home: Home):
    broker = await home.open()
    for fields in ({"order": "priority"}, {"overflow": "dead-letter"}, {"expired": "dead-letter"}, {"mesh": "any"}):
        with pytest.raises(InvalidInput):
            await broker.create_topic("x", **{"mesh": "flow", **fields})
    await broker.create_topic("t", mesh="flow")
    with pytest.raises(InvalidInput, match="due"):
        await broker.publish("t", [Message(payload=b"x", due_ms=5)])
    with pytest.raises(InvalidInput, match="due"):
        await broker.publish("t", [Message(payload=b"x", due_ms=5)] * 100)
    with pytest.raises(InvalidInput, match="due"):
        await broker.stage("k", "t", [Message(payload=b"x", due_ms=5)])
    with pytest.raises(InvalidInput, match="producer"):
        await broker.publish("t", [b"x"], PublishOptions(producer=A.producer, sequence=10**9))
    await broker.publish("t", [Message(payload=b"x", id="m")])
    with pytest.raises(InvalidInput, match="safe"):
        await broker.amend("t", "m", payload=b"y")
    assert broker.stats("t").messages == 1


@in_loop
async def test_an_origin_is_given_for_growing_offsets_in_a_flow_topic_alone(home: Home):
    broker = await home.open()
    await broker.create_topic("t", mesh="flow")
    await broker.create_topic("s")
    colon, beyond = A._replace(run="r:1"), A._replace(partition=limits.FLOW_PARTITIONS_MAX)
    for place in (colon, beyond):
        with pytest.raises(InvalidInput, match="origin"):
            await broker.publish("t", bodies(2), came(0, 1, place=place))
    for topic, options in (("s", came(0, 1)), ("t", came(0)), ("t", came(1, 1)), ("t", came(2, 1)), ("t", came(-1, 1))):
        with pytest.raises(InvalidInput, match="origin"):
            await broker.publish(topic, bodies(2), options)


@pytest.mark.parametrize("many", [1, 100])
@in_loop
async def test_the_header_of_an_origin_is_the_nodes_own(home: Home, many: int):
    broker = await home.open()
    await broker.create_topic("t", mesh="flow")
    await broker.subscribe("t", "readers")
    forged = Message(payload=b"x", headers={HEADER: show_origin(A, 10**12, "leaf", "t"), "kept": "1"})
    await broker.publish("t", [forged] * many)
    await broker.stage("k", "t", [forged])
    await broker.commit("k")
    batch = await (await broker.consumer("t", "readers")).pull(200)
    assert [dict(each) for each in batch.batch.column("headers").to_pylist()] == [{"kept": "1"}] * (many + 1)


def test_a_header_of_another_topic_or_none_is_no_origin():
    text = show_origin(A, 17, "leaf", "my topic")
    assert read_origin(text, "my topic") == (A, 17, "leaf")
    for wrong in (
        "",
        "a",
        "a r1 0-17 leaf",
        "a r1 x-17 leaf my topic",
        "a r1 0-17 king my topic",
        "a r1 0 leaf my topic",
    ):
        assert read_origin(wrong, "my topic") is None
    assert read_origin(text, "topic") is None


@pytest.mark.rows("Q21")
@in_loop
async def test_a_connection_of_a_peer_never_reads_ahead_of_one_that_holds_messages(home: Home):
    """Else a message that comes back would be taken for one that came before."""
    broker = await home.open()
    await broker.create_topic("t", mesh="flow")
    terms = peer_terms(MeshNode("b", "hub"), Backlog())
    await broker.subscribe("t", "mesh.b", **{**terms, "retry": Retry(**terms["retry"])})
    await broker.publish("t", bodies(4))
    old, new = await broker.consumer("t", "mesh.b"), await broker.consumer("t", "mesh.b")
    held = await old.pull(2)
    assert held.batch.column("offset").to_pylist() == [0, 1]
    assert len(await new.pull(10)) == 0  # the old one is taken for open
    await old.close("the connection was lost")
    assert (await new.pull(10)).batch.column("offset").to_pylist() == [0, 1, 2, 3]  # at once, and in order


@in_loop
async def test_a_flow_topic_keeps_its_number_of_partitions(home: Home):
    """What comes from a partition of a peer goes to one partition here: another one could be read first."""
    broker = await home.open()
    await broker.create_topic("t", mesh="flow", partitions=2)
    for partitions in (1, 3):
        with pytest.raises(InvalidInput, match="partitions"):
            await broker.create_topic("t", partitions=partitions)
    await broker.create_topic("t", messages_max=5)
    assert broker.topic("t").partitions == 2


@pytest.mark.parametrize("many", [1, 40])  # as rows, and as columns
@in_loop
async def test_headers_leave_room_for_the_one_that_a_peer_adds(home: Home, many: int):
    broker = await home.open()
    name = "t" * limits.TOPIC_NAME_BYTES_MAX
    await broker.create_topic(name, mesh="flow")
    most = limits.HEADERS_BYTES_MAX - HEADER_BYTES_MAX
    fits = Message(payload=b"x", headers={"h": "x" * (most - 1)})
    await broker.publish(name, [fits] * many)
    too_many = {f"{number}": "x" for number in range(limits.HEADERS_MAX)}
    for headers in ({"h": "x" * most}, too_many):
        with pytest.raises(InvalidInput, match="peers add one"):
            await broker.publish(name, [Message(payload=b"x", headers=headers)] * many)
        with pytest.raises(InvalidInput, match="peers add one"):
            await broker.stage("k", name, [Message(payload=b"x", headers=headers)] * many)
    assert broker.stats(name).messages == many
    place = OriginPlace("n" * limits.NODE_NAME_CHARS_MAX, "r" * RUN_CHARS_MAX, limits.FLOW_PARTITIONS_MAX - 1)
    header = show_origin(place, limits.OFFSET_MAX, "leaf", name)
    assert len(HEADER) + len(header) <= HEADER_BYTES_MAX
    passed_on = {"h": "x" * (most - 1), HEADER: header}
    origin = Origin(place=place, offsets=np.arange(many), role="leaf")
    assert (
        len(
            await broker.publish(name, [Message(payload=b"x", headers=passed_on)] * many, PublishOptions(origin=origin))
        )
        == many
    )


@in_loop
async def test_every_origin_of_the_largest_mesh_is_remembered(home: Home):
    nodes = HUBS_MAX * (1 + LEAVES_MAX)
    assert 2 * nodes * limits.FLOW_PARTITIONS_MAX <= producers.ORIGINS_MAX
    broker = await home.open()
    with pytest.raises(InvalidInput, match="partitions"):
        await broker.create_topic("t", mesh="flow", partitions=limits.FLOW_PARTITIONS_MAX + 1)
    await broker.create_topic("t", mesh="flow", partitions=limits.FLOW_PARTITIONS_MAX)


@in_loop
async def test_a_message_that_expires_is_not_forwarded_to_a_flow_topic_as_it_is(home: Home):
    """Its headers are not those of a client: they could name an origin."""
    broker = await home.open()
    await broker.create_topic("t", mesh="flow")
    await broker.create_topic("q", expired="dead-letter")
    await broker.subscribe("q", "s")

    def copies(_: str, rows: list[DeadRow]) -> list[DeadCopy]:
        forged = [(HEADER, show_origin(A, 10**12, "leaf", "t"))]
        return [DeadCopy("t", {"payload": b"x", "envelope": b"", "headers": forged}) for _ in rows]

    broker.forward_expired(copies, by="test")
    await broker.publish("q", [Message(payload=b"x", expires_ms=home.clock.now_ms + 1_000)])
    home.clock.advance(5_000)
    await broker.publish("q", [b"y"])
    assert broker.stats("t").messages == 0
    assert broker.stats("q").dead == 1
