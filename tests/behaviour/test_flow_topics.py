"""Flow topics in one broker: what they take, what they answer, and what each peer gets of them."""

import asyncio

import numpy as np
import pytest

from tests.behaviour.world import Home, bodies, drain, in_loop
from wherry import InvalidInput, Message, PublishOptions
from wherry.broker.broker import Broker
from wherry.core.state import producers
from wherry.mesh.flow.links import MeshNode
from wherry.model.calls.origin import HEADER, Origin, OriginPlace, read_origin, show_origin
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
