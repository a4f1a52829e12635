"""Sessions of AMQP and STOMP without a socket: bytes in, bytes out, a clock from outside, a broker in memory."""

import asyncio
from random import Random
from typing import Any

import pytest

from tests.unit.wire.memory_transport import MemoryTransport
from wherry.sim.clients.amqp_link import AmqpLink
from wherry.sim.clients.links import Subscribed
from wherry.sim.clients.stomp_link import StompLink
from wherry.sim.plan import RunPlan
from wherry.sim.world import loop
from wherry.sim.world.network import Weather
from wherry.sim.world.wires import WireWorld
from wherry.wire.amqp.codec import methods as m
from wherry.wire.amqp.codec import writer
from wherry.wire.amqp.codec.frames import HEADER

CALM = RunPlan((), (), 0, 0, 0, 1.0, 0.0, False, False, False)
QUIET_S = 1.0
"""Long enough for whatever is under way to come."""

LINKS = {"amqp": AmqpLink, "stomp": StompLink}


def served(work):
    """Run `work` with a world whose broker serves both wires and has a queue."""

    async def main():
        world = WireWorld(0, CALM, Weather(0.001, False))
        await world.boot()
        link = AmqpLink(world, "setup")
        await link.connect()
        await link.declare("q", {})
        result = await work(world)
        assert world.wire_history.faults == []
        return result

    return loop.run(main())


async def joined(world, wire, *, limit, name="c", transacted=False):
    """A consumer of the queue, and the names of what it was given, in order."""
    link = LINKS[wire](world, name)
    got: list[Any] = []
    await link.connect()

    def on_message(message, since):
        subscribed.held.append(message)
        got.append(message.name)

    subscribed = Subscribed("q", name * limit, limit, transacted, on_message)
    await link.subscribe(subscribed)
    return link, subscribed, got


async def filled(world, count):
    link = AmqpLink(world, "p")
    await link.connect()
    await link.ready()
    for number in range(count):
        await link.answer(link.publish("q", str(number).encode(), persistent=True), "a publish")


@pytest.mark.parametrize("wire", LINKS)
def test_what_goes_back_comes_before_what_stands_behind_it(wire):
    async def work(world):
        await filled(world, 3)
        link, subscribed, got = await joined(world, wire, limit=1)
        for verdict in ("nack", "nack", "ack", "nack", "ack", "ack"):
            await asyncio.sleep(QUIET_S)
            link.settle(subscribed.held.pop(), verdict)
        await asyncio.sleep(QUIET_S)
        return got

    assert served(work) == ["0", "0", "0", "1", "1", "2"]


@pytest.mark.parametrize("wire", LINKS)
def test_an_ack_makes_no_room_for_what_stands_behind_a_message_on_its_way_back(wire):
    async def work(world):
        await filled(world, 4)
        link, subscribed, got = await joined(world, wire, limit=2)
        await asyncio.sleep(QUIET_S)
        one, other = subscribed.held
        link.settle(one, "nack")
        link.settle(other, "ack")
        await asyncio.sleep(QUIET_S)
        return got

    assert served(work) == ["0", "1", "0", "2"]


@pytest.mark.parametrize(("commit", "sent"), [(False, ["0", "1"]), (True, ["0", "1", "2", "3"])])
def test_what_a_transaction_has_acked_takes_room_until_it_is_committed(commit, sent):
    async def work(world):
        await filled(world, 4)
        link, subscribed, got = await joined(world, "amqp", limit=2, transacted=True)
        await asyncio.sleep(QUIET_S)
        for message in subscribed.held:
            link.settle(message, "ack")
        again = m.BasicQos(prefetch_count=2, global_=True)  # has the queue look for room
        await link._call(subscribed.channel, again, m.BasicQosOk)
        await asyncio.sleep(QUIET_S)
        assert got == ["0", "1"]
        await link.transact(subscribed, [], [], commit=commit)
        await asyncio.sleep(QUIET_S)
        return got

    assert served(work) == sent


def spoken(wire, heartbeat=0):
    """What a client says: its login, then all up to a publish that wants an answer."""
    if wire == "stomp":
        send = b"SEND\ndestination:/queue/q\nreceipt:r\ncontent-length:3\n\na\0b\0"
        return b"CONNECT\naccept-version:1.2\nhost:/\n\n\0", send
    tuned = m.ConnectionTuneOk(channel_max=9, frame_max=4096, heartbeat=heartbeat)
    login = (m.ConnectionStartOk(response=b"\0guest\0guest"), tuned, m.ConnectionOpen())
    publish = b"".join(writer.content(1, m.BasicPublish(routing_key="q"), b"\0\0", b"abc", 4096))
    opening = writer.frame(1, m.ChannelOpen()) + writer.frame(1, m.ConfirmSelect())
    return HEADER + b"".join(writer.frame(0, each) for each in login), opening + publish


@pytest.mark.parametrize("wire", LINKS)
def test_a_session_answers_the_same_however_its_bytes_are_cut(wire):
    async def answered(world, pieces):
        transport = MemoryTransport(world._servers[wire].connection())
        for said in spoken(wire):
            transport.feed(said, pieces)
        await asyncio.sleep(QUIET_S)
        return bytes(transport.written)

    async def work(world):
        random = Random(1)
        whole, single = await answered(world, lambda: 1 << 20), await answered(world, lambda: 1)
        some = await answered(world, lambda: random.randint(1, 40))
        return [without_names(each) for each in (whole, single, some)]

    whole, single, some = served(work)
    assert whole == single == some
    assert (writer.ack(1, 1) if wire == "amqp" else b"RECEIPT\nreceipt-id:r\n") in whole


def without_names(said):
    """An answer of STOMP without the name of its session, which is another each time."""
    return b"\n".join(line for line in said.split(b"\n") if not line.startswith(b"session:"))


def test_a_connection_shows_that_it_is_there_and_ends_one_that_does_not_by_the_clock_that_it_is_given():
    async def work(world):
        now = [100.0]
        world._servers["amqp"].clock = lambda: now[0]
        connection = world._servers["amqp"].connection()
        transport = MemoryTransport(connection)
        transport.feed(spoken("amqp", heartbeat=10)[0])
        transport.written.clear()
        now[0] = 104.0
        connection.tick(now[0])
        assert not transport.written
        now[0] = 106.0
        connection.tick(now[0])
        assert transport.written == writer.HEARTBEAT_FRAME
        connection.tick(120.0)
        assert not transport.is_over
        connection.tick(121.0)
        return transport.is_over

    assert served(work)
