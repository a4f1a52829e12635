"""Plants where the simulator does not reach: the wires. Each check holds as it is, and fails with each of its plants.

A check of an answer holds the disk: what is written is not synced until it is released, so an answer that comes before
that did not wait. A check of a token sends the token of another consumer.
"""

from __future__ import annotations

import asyncio
import http.client
import importlib
import json
import pkgutil
import re
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

import wherry.node
import wherry.queueing
import wherry.wire
from tests.amqp import raw as amqp
from tests.integration.flights import Flights, Pushed, payloads, until
from tests.integration.served import Served, served
from tests.native_client import NativeError, SocketClient, upgraded
from tests.stomp import raw as stomp
from wherry.broker.calls.settle import Settler
from wherry.journal.disk.writer import DiskWriter
from wherry.sim.patch import patched
from wherry.sim.plants.waits import (
    MODULES,
    Wait,
    unwaited,
    waits,
)
from wherry.wire.native.codec.settles import Verb
from wherry.wire.stomp.session import Session
from wherry.wire.stomp.transports import polling

CALM_S = 0.2
"""How long an answer that must not come is waited for; it cannot come, so nothing depends on the machine."""

PATIENCE_S = 20.0
"""How long the same is waited for where a plant lets it come."""

Ask = Callable[[Served, str], object]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node")) as found:
        yield found


@pytest.fixture
def topic(request: pytest.FixtureRequest, node: Served) -> str:
    name = re.sub("[^a-z]+", "-", request.node.name)
    for each in (name, f"{name}-other"):
        node.run(node.node.broker.create_topic(each))
        node.run(node.node.broker.subscribe(each, "s"))
        node.run(node.node.broker.publish(each, [b"it"]))
    return name


def asked(node: Served, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
    """Send one request over HTTP; return status and body."""
    host = urlsplit(node.node.url)
    connection = http.client.HTTPConnection(host.hostname or "", host.port, timeout=PATIENCE_S)
    try:
        given = {"Content-Type": "application/json", **headers}
        connection.request(method, path, None if body is None else json.dumps(body), given)
        answer = connection.getresponse()
        raw = answer.read()
        return answer.status, json.loads(raw) if raw else None
    finally:
        connection.close()


# ------------------------------------------------------------------------------------------------ answers and the disk


@contextmanager
def held_disk() -> Iterator[None]:
    """Hold the disk: nothing is synced meanwhile."""
    let_go = threading.Event()

    def make(append: Any) -> Any:
        async def late(self: DiskWriter, bodies: Any, expected: int) -> Any:
            await asyncio.to_thread(let_go.wait)
            return await append(self, bodies, expected)

        return late

    def never(_: Any) -> Any:
        return lambda self, bodies, expected: None

    with patched(DiskWriter, "append", make), patched(DiskWriter, "append_at_once", never):
        try:
            yield
        finally:
            let_go.set()


def check_waits(ask: Ask, node: Served, topic: str, patience_s: float, *, reads: bool) -> None:
    """Check that no answer comes while the disk is held. For a call that only reads, a publish comes just before."""
    committer = node.node.broker.shard.committer
    until(lambda: committer.durable == committer.submitted)
    others: list[Future[Any]] = []
    with ThreadPoolExecutor(1) as pool:
        with held_disk():
            if reads:
                work = node.node.broker.publish(topic, [b"new"])
                others.append(asyncio.run_coroutine_threadsafe(work, node.loop))
                until(lambda: committer.submitted > committer.durable)
            answer = pool.submit(ask, node, topic)
            until(lambda: committer.submitted > committer.durable or answer.done())
            try:
                answer.result(patience_s)
                early = True
            except NotYet:
                early = False
        answer.result(PATIENCE_S)
        for other in others:
            other.result(PATIENCE_S)
    assert not early, "it was answered before it was durable"


def lease_of(node: Served, topic: str) -> str:
    """Lease a message of the topic, and return its receipt."""

    async def pulled() -> str:
        consumer = await node.node.broker.consumer(topic, "s")
        got = await consumer.pull(1)
        return f"{got.tokens[0]}:{got.batch.column('offset').to_pylist()[0]}"

    return node.run(pulled())


def flights(node: Served) -> Flights:
    assert node.node.flight_url is not None
    return Flights(node.node.flight_url)


def http_publish(node: Served, topic: str) -> None:
    assert asked(node, "POST", f"/v1/topics/{topic}/messages", [{"payload": "aXQ="}])[0] in (200, 201)


def http_settle(how: str, node: Served, topic: str) -> None:
    receipt = lease_of(node, topic)
    assert asked(node, "POST", f"/v1/topics/{topic}/subscriptions/s/{how}", {"receipts": [receipt]})[0] == 204


def http_get(path: str, node: Served, topic: str) -> None:
    assert asked(node, "GET", path.format(topic=topic))[0] in (200, 404)


def flight_put(node: Served, topic: str) -> None:
    assert flights(node).put([payloads(b"it")], topic=topic)


def flight_stage(node: Served, topic: str) -> None:
    assert flights(node).put([payloads(b"it")], topic=topic, stage=f"{topic}/stage")


def flight_act(action: str, body: dict[str, Any], node: Served, topic: str) -> None:
    flights(node).act(action, **{key: value.format(topic) if value == "{}" else value for key, value in body.items()})


def flight_info(node: Served, topic: str) -> None:
    flights(node).info(topic=topic)


def flight_push_ack(node: Served, topic: str) -> None:
    receipt = lease_of(node, topic)
    stream = Pushed(flights(node), topic=topic, subscription="s")
    stream.send(ack=[receipt], id="1")
    assert stream.next() == {"done": "1"}
    stream.end()


def amqp_confirm(node: Served, topic: str) -> None:
    assert node.node.amqp_url is not None
    with amqp.Raw(node.node.amqp_url).opened() as raw:
        raw.call(1, amqp.QUEUE_DECLARE, b"\x00\x00" + amqp.short(f"q-{topic}") + b"\x02" + amqp.long(b""))
        raw.expect(amqp.QUEUE_DECLARE_OK)
        raw.call(1, amqp.CONFIRM_SELECT, b"\0")
        raw.expect(amqp.CONFIRM_SELECT_OK)
        raw.publish(f"q-{topic}", b"it", properties=b"\x10\x00\x02")
        raw.expect(amqp.ACK)


def amqp_declare(node: Served, topic: str) -> None:
    assert node.node.amqp_url is not None
    with amqp.Raw(node.node.amqp_url).opened() as raw:
        raw.call(1, amqp.QUEUE_DECLARE, b"\x00\x00" + amqp.short(f"q-{topic}") + b"\x02" + amqp.long(b""))
        raw.expect(amqp.QUEUE_DECLARE_OK)


def amqp_declare_exchange(node: Served, topic: str) -> None:
    assert node.node.amqp_url is not None
    with amqp.Raw(node.node.amqp_url).opened() as raw:
        names = amqp.short(f"x-{topic}") + amqp.short("fanout")
        raw.call(1, amqp.EXCHANGE_DECLARE, b"\x00\x00" + names + b"\x02" + amqp.long(b""))
        raw.expect(amqp.EXCHANGE_DECLARE_OK)


def stomp_send(node: Served, topic: str) -> None:
    with stomp.Raw(node.node.stomp_port or 0) as raw:
        raw.connect()
        raw.done("SEND", b"it", destination=f"/queue/q-{topic}", persistent="true")


def stomp_ack(node: Served, topic: str) -> None:
    with stomp.Raw(node.node.stomp_port or 0) as raw:
        raw.connect()
        raw.send("SUBSCRIBE", id="1", destination=f"/queue/q-{topic}", ack="client-individual")
        got = raw.expect("MESSAGE")
        raw.done("ACK", id=got.headers["ack"])


def native(node: Served, work: Callable[[SocketClient], Coroutine[Any, Any, None]]) -> None:
    """Do something over a connection of the native wire."""

    async def main() -> None:
        client = await upgraded(("127.0.0.1", node.node.port))
        try:
            await work(client)
        finally:
            await client.close()

    asyncio.run(main())


def native_publish(node: Served, topic: str) -> None:
    async def work(client: SocketClient) -> None:
        await client.publish(topic, b"it")

    native(node, work)


def native_settle(verb: Verb, node: Served, topic: str) -> None:
    token, offset = map(int, lease_of(node, topic).split(":"))

    async def work(client: SocketClient) -> None:
        stream = await client.subscribe(topic, "s")
        await client.answer(client.begin_settle(stream, verb, [(token, [(offset, 1)])]))

    native(node, work)


def native_subscribe(name: str, node: Served, topic: str) -> None:
    async def work(client: SocketClient) -> None:
        with suppress(NativeError):
            await client.subscribe(topic, name)

    native(node, work)


def ready_queue(node: Served, topic: str) -> None:
    """Declare a queue with a message before the disk is held: only the answer looked at is late."""
    stomp_send(node, topic)


class Answers(NamedTuple):
    """A call whose answer must wait, and the plant by which it does not."""

    ask: Ask
    plant: str
    reads: bool = False
    before: Ask = lambda node, topic: None


WIRES = [
    importlib.import_module(found.name)
    for package in (wherry.queueing, wherry.wire, wherry.node)
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not found.name.endswith("__main__")
]
PLACES: dict[str, Wait] = {place.name: place for place in (*waits(*MODULES), *waits(*WIRES))}

SHOWN = "once_durable.<locals>.waiting"

ANSWERS: dict[str, Answers] = {
    "http publish": Answers(http_publish, "PublishCalls._publish 1"),
    "http ack": Answers(partial(http_settle, "ack"), "Settler._answer_when_durable 0"),
    "http nack": Answers(partial(http_settle, "nack"), "Settler._answer_when_durable 0"),
    "http dead-letter": Answers(partial(http_settle, "dead-letter"), "Settler._answer_when_durable 0"),
    "http topics": Answers(partial(http_get, "/v1/topics"), f"{SHOWN} 1", reads=True),
    "http topic": Answers(partial(http_get, "/v1/topics/{topic}"), f"{SHOWN} 1", reads=True),
    "http no topic": Answers(partial(http_get, "/v1/topics/none"), f"{SHOWN} 0", reads=True),
    "http partitions": Answers(partial(http_get, "/v1/topics/{topic}/partitions"), f"{SHOWN} 1", reads=True),
    "http subscriptions": Answers(partial(http_get, "/v1/topics/{topic}/subscriptions"), f"{SHOWN} 1", reads=True),
    "http subscription": Answers(partial(http_get, "/v1/topics/{topic}/subscriptions/s"), f"{SHOWN} 1", reads=True),
    "http routes": Answers(partial(http_get, "/v1/routes"), f"{SHOWN} 1", reads=True),
    "http keys": Answers(partial(http_get, "/v1/keys"), f"{SHOWN} 1", reads=True),
    "http reasons": Answers(partial(http_get, "/v1/topics/{topic}/dead/reasons"), f"{SHOWN} 1", reads=True),
    "http audit": Answers(partial(http_get, "/v1/topics/{topic}/dead/audit"), f"{SHOWN} 1", reads=True),
    "flight put": Answers(flight_put, "PublishStream._publish 0"),
    "flight stage": Answers(flight_stage, "PublishStream._publish 0"),
    "flight info": Answers(flight_info, "FlightServer._selected 0", reads=True),
    "flight topics": Answers(partial(flight_act, "topics", {}), "_topics 0", reads=True),
    "flight extents": Answers(partial(flight_act, "extents", {"topic": "{}"}), "_extents 0", reads=True),
    "flight offsets-at": Answers(
        partial(flight_act, "offsets-at", {"topic": "{}", "time_ms": 0}), "_offsets_at 0", reads=True
    ),
    "flight push ack": Answers(flight_push_ack, "Settler._answer_when_durable 0"),
    "native publish": Answers(native_publish, "Gathering._publish_lone 0"),
    **{
        f"native {verb.name}": Answers(partial(native_settle, verb), "Settler._answer_when_durable 0")
        for verb in (Verb.ACK, Verb.NACK, Verb.DEAD_LETTER)
    },
    "native subscribe": Answers(partial(native_subscribe, "s"), "PushStream._join 0", reads=True),
    "native no subscription": Answers(partial(native_subscribe, "none"), "PushStream.fail 0", reads=True),
    "amqp confirm": Answers(amqp_confirm, "Gathering._wait_for_disk 0", before=ready_queue),
    "amqp declare": Answers(amqp_declare, "VirtualHost.declare_queue 0", reads=True, before=amqp_declare),
    "amqp exchange": Answers(
        amqp_declare_exchange, "VirtualHost.declare_exchange 0", reads=True, before=amqp_declare_exchange
    ),
    "stomp send": Answers(stomp_send, "Gathering._wait_for_disk 0", before=ready_queue),
    "stomp ack": Answers(stomp_ack, "Session.all_settled", before=ready_queue),
}


def planted(name: str) -> Any:
    """Return the plant of a check."""
    if name == "Session.all_settled":

        async def nothing(self: Session) -> None:
            """Return at once, as if all were settled."""

        return patched(Session, "all_settled", lambda _: nothing)
    return unwaited(PLACES[name])


def test_every_wait_of_a_wire_has_a_check():
    wires = {place.name for place in waits(*WIRES)}
    assert wires - {each.plant for each in ANSWERS.values()} == set()


@pytest.mark.rows("D14")
@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_waits_for_the_disk(name: str, node: Served, topic: str):
    case = ANSWERS[name]
    case.before(node, topic)
    check_waits(case.ask, node, topic, CALM_S, reads=case.reads)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_does_not_wait_is_noticed(name: str, node: Served, topic: str):
    case = ANSWERS[name]
    case.before(node, topic)
    with planted(case.plant), pytest.raises(AssertionError, match="before it was durable"):
        check_waits(case.ask, node, topic, PATIENCE_S, reads=case.reads)


# ------------------------------------------------------------------------------------------------------ foreign tokens


def check_push(how: str, node: Served, topic: str) -> None:
    """Check that a stream settles nothing of another subscription."""
    receipt = lease_of(node, f"{topic}-other")
    stream = Pushed(flights(node), topic=topic, subscription="s")
    stream.send(**{how: [receipt]}, id="1")
    answer = stream.next()
    stream.end()
    assert "fault" in answer and answer["fault"]["code"] == "stale-lease", "a foreign token was taken"


def check_http(how: str, node: Served, topic: str) -> None:
    """Check that a path settles nothing of another subscription."""
    receipt = lease_of(node, f"{topic}-other")
    status, _ = asked(node, "POST", f"/v1/topics/{topic}/subscriptions/s/{how}", {"receipts": [receipt]})
    assert status == 409, "a foreign token was taken"


def check_native(verb: Verb | None, node: Served, topic: str) -> None:
    """Check that a stream of the native wire settles and renews nothing of another subscription."""
    token = int(lease_of(node, f"{topic}-other").split(":")[0])

    async def work(client: SocketClient) -> None:
        stream = await client.subscribe(topic, "s")
        try:
            if verb is None:
                await client.renew(stream, token)
            else:
                await client.answer(client.begin_settle(stream, verb, [(token, [])]))
        except NativeError as fault:
            assert fault.code == "stale-lease"
        else:
            raise AssertionError("a foreign token was taken")

    native(node, work)


def check_transaction(node: Served, topic: str) -> None:
    """Check that a transaction settles nothing of another subscription."""
    receipt = lease_of(node, f"{topic}-other")
    path = f"/v1/transactions/{topic}/topics/{topic}/subscriptions/s/ack"
    assert asked(node, "POST", path, {"receipts": [receipt]})[0] == 409, "a foreign token was taken"


def check_session(node: Served, topic: str) -> None:
    """Check that a polled session of STOMP answers to its own token only."""
    _, opened = asked(node, "POST", "/v1/stomp/sessions")
    status, _ = asked(node, "DELETE", f"/v1/stomp/sessions/{opened['id']}", **{"Wherry-Session": "x" * 32})
    assert status in (401, 403, 404), "a foreign token was taken"


def any_subscription() -> Any:
    """Take a token whatever subscription it is of."""
    return patched(Settler, "_resolved", lambda resolved: lambda self, parts, _: resolved(self, parts, None))


def any_session() -> Any:
    return patched(polling, "_digest", lambda _: lambda token: b"")


TOKENS: dict[str, tuple[Callable[[Served, str], None], Callable[[], Any]]] = {
    **{
        f"flight push {how}": (partial(check_push, how), any_subscription)
        for how in ("ack", "nack", "dead_letter", "renew")
    },
    **{
        f"http {how}": (partial(check_http, how), any_subscription)
        for how in ("ack", "nack", "dead-letter", "release", "renew")
    },
    **{f"native {verb.name}": (partial(check_native, verb), any_subscription) for verb in Verb},
    "native renew": (partial(check_native, None), any_subscription),
    "http transaction": (check_transaction, any_subscription),
    "stomp session": (check_session, any_session),
}


@pytest.mark.rows("A6")
@pytest.mark.parametrize("name", TOKENS)
def test_a_foreign_token_is_refused(name: str, node: Served, topic: str):
    TOKENS[name][0](node, topic)


@pytest.mark.parametrize("name", TOKENS)
def test_a_foreign_token_that_is_taken_is_noticed(name: str, node: Served, topic: str):
    check, plant = TOKENS[name]
    with plant(), pytest.raises(AssertionError, match="a foreign token was taken"):
        check(node, topic)
