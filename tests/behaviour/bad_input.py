"""Every wrong value of every public entry, with the field and the value that its error must name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

import wherry
from wherry import Binding, DeadFilter, InvalidInput, Message, PublishOptions, Retry, Route, Topic, WherryError
from wherry.broker.opening import start
from wherry.journal.memory import MemoryEngine

NOW_MS = 1_700_000_000_000
SURROGATE = "\ud800"


class StillClock:
    def wall_us(self) -> int:
        return NOW_MS * 1000

    def steady_ms(self) -> int:
        return 1_000

    def entropy(self, count: int) -> Any:
        return np.full(count, 0.5)


class World(NamedTuple):
    broker: wherry.Broker
    consumer: wherry.Consumer
    delivery: wherry.Delivery
    """Two messages of the topic `jobs`, on lease."""


async def furnished(engine: MemoryEngine) -> World:
    """Start a broker in which every kind of thing is there to be damaged."""
    broker = await start(engine, None, StillClock())
    await broker.create_topic("jobs", partitions=2, payload_bytes_max=1000)
    await broker.subscribe("jobs", "workers")
    await broker.put_route(Route(name="pattern", kind="pattern", bindings=(Binding(topic="jobs", match="a.#"),)))
    await broker.put_route(Route(name="lost", kind="fanout", bindings=(Binding(topic="nowhere"),)))
    consumer = await broker.consumer("jobs", "workers", "c")
    await broker.publish("jobs", [b"dead"], PublishOptions(partition=0))
    await (await consumer.pull()).dead_letter()
    await broker.publish("jobs", [b"one", b"two"], PublishOptions(partition=0, producer="p", sequence=10))
    delivery = await consumer.pull()
    assert len(delivery) == 2
    await broker.publish("jobs", [Message(payload=b"waits", id="mine", key="k")], PublishOptions(partition=0))
    await broker.stage("open", "jobs", [b"staged"])
    return World(broker, consumer, delivery)


class Case(NamedTuple):
    field: str
    value: str
    call: Callable[[World], Any]
    kind: type[WherryError] = InvalidInput


def topic(field: str, value: str, **fields: object) -> Case:
    return Case(field, value, lambda w: w.broker.create_topic("new", **fields))


def subscription(field: str, value: str, **fields: object) -> Case:
    return Case(field, value, lambda w: w.broker.subscribe("jobs", "new", **fields))


def retry(field: str, value: str, **fields: Any) -> Case:
    return Case(field, value, lambda w: w.broker.subscribe("jobs", "new", retry=Retry(**fields)))


def route(field: str, value: str, **fields: Any) -> Case:
    wanted: Any = {"name": "r", "kind": "direct", **fields}
    return Case(field, value, lambda w: w.broker.put_route(Route(**wanted)))


def binding(field: str, value: str, kind: Any = "direct", **fields: Any) -> Case:
    return route(field, value, kind=kind, bindings=(Binding(**{"topic": "jobs", **fields}),))


def publish(field: str, value: str, messages: Any, kind: type[WherryError] = InvalidInput) -> Case:
    return Case(field, value, lambda w: w.broker.publish("jobs", messages), kind)


def message(field: str, value: str, **fields: Any) -> Case:
    return publish(field, value, [b"fine", Message(**{"payload": b"", **fields})])


def columns(field: str, value: str, **fields: Any) -> Case:
    return publish(field, value, pa.RecordBatch.from_pydict({"payload": pa.array([b"a", b"b"]), **fields}))


def option(field: str, value: str, kind: type[WherryError] = InvalidInput, **fields: Any) -> Case:
    return Case(field, value, lambda w: w.broker.publish("jobs", [b"x"], PublishOptions(**fields)), kind)


def consumer(field: str, value: str, name: Any = "new", **fields: Any) -> Case:
    return Case(field, value, lambda w: w.broker.consumer("jobs", "workers", name, **fields))


def amend(field: str, value: str, kind: type[WherryError] = InvalidInput, **fields: Any) -> Case:
    return Case(field, value, lambda w: w.broker.amend("jobs", "mine", **fields), kind)


def dead(field: str, value: str, kind: type[WherryError] = InvalidInput, **fields: Any) -> Case:
    return Case(field, value, lambda w: w.broker.redrive("jobs", DeadFilter(**fields)), kind)


def repeated(*names: str) -> pa.RecordBatch:
    """Make a batch in which a column has the name of another."""
    return pa.RecordBatch.from_arrays([pa.array([b"x"])] * len(names), names=list(names))


def anything(w: Any) -> Any:
    """Return a value that the types forbid, untyped."""
    return w


NOT_FOUND, EXISTS = wherry.NotFound, wherry.AlreadyExists
TORN_OFFSETS = pa.Array.from_buffers(
    pa.binary(), 2, [None, pa.py_buffer(np.array([0, 9, 5], np.int32)), pa.py_buffer(b"x" * 9)]
)

NULL_HEADER = pa.array([[("a", None)], []], pa.map_(pa.string(), pa.string()))

CASES = [
    # create_topic
    Case("topic", "''", lambda w: w.broker.create_topic("")),
    Case("topic", "5", lambda w: anything(w.broker).create_topic(5)),
    Case("topic", "None", lambda w: anything(w.broker).create_topic(None)),
    Case("topic", "1027 characters", lambda w: w.broker.create_topic("a" * 1_025)),
    Case("topic", r"'a\nb'", lambda w: w.broker.create_topic("a\nb")),
    Case("topic", r"'\ud800'", lambda w: w.broker.create_topic(SURROGATE)),
    topic("order", "'lifo'", order="lifo"),
    topic("order", "[]", order=[]),
    topic("partitions", "0", partitions=0),
    topic("partitions", "65536", partitions=65_536),
    topic("partitions", "True", partitions=True),
    topic("partitions", "1.5", partitions=1.5),
    topic("partitions", "'2'", partitions="2"),
    topic("persistent", "'yes'", persistent="yes"),
    topic("payload_bytes_max", "0", payload_bytes_max=0),
    topic("payload_bytes_max", "25165825", payload_bytes_max=25_165_825),
    topic("messages_max", "0", messages_max=0),
    topic("bytes_max", "-1", bytes_max=-1),
    topic("overflow", "'explode'", overflow="explode"),
    topic("dead_messages_max", "-1", dead_messages_max=-1),
    topic("keep", "'forever'", keep="forever"),
    topic("keep_ms", "None", keep="age"),
    topic("keep_ms", "5", keep_ms=5),
    topic("keep_ms", "-1", keep="age", keep_ms=-1),
    topic("keep_bytes", "None", keep="bytes"),
    topic("keep_bytes", "-1", keep="bytes", keep_bytes=-1),
    topic("expired", "'ignore'", expired="ignore"),
    topic("mesh", "'everywhere'", mesh="everywhere"),
    topic("mesh", "True", mesh=True),
    topic("order", "'timeline'", mesh="flow", order="timeline"),
    topic("overflow", "'dead-letter'", mesh="flow", overflow="dead-letter"),
    topic("expired", "'dead-letter'", mesh="flow", expired="dead-letter"),
    topic("Topic fields", "colour", colour="red"),
    Case("order", "'fifo'", lambda w: w.broker.create_topic(Topic(name="new"), order="fifo")),
    Case("topic", "'jobs'", lambda w: w.broker.create_topic("jobs", partitions=1), EXISTS),
    Case("topic", "'jobs'", lambda w: w.broker.create_topic("jobs", partitions=2, order="priority"), EXISTS),
    Case("topic", "'jobs'", lambda w: w.broker.create_topic("jobs", partitions=2, mesh="flow"), EXISTS),
    Case("topic", "'nowhere'", lambda w: w.broker.delete_topic("nowhere"), NOT_FOUND),
    Case("topic", "['jobs']", lambda w: anything(w.broker).delete_topic(["jobs"]), NOT_FOUND),
    # subscribe
    Case("topic", "'nowhere'", lambda w: w.broker.subscribe("nowhere", "s"), NOT_FOUND),
    Case("topic", "5", lambda w: anything(w.broker).subscribe(5, "s")),
    Case("Subscription fields", "name", lambda w: w.broker.subscribe("jobs")),
    Case("subscription", "''", lambda w: w.broker.subscribe("jobs", "")),
    Case("subscription", "characters", lambda w: w.broker.subscribe("jobs", "s" * 257)),
    subscription("durable", "1", durable=1),
    subscription("start", "'yesterday'", start="yesterday"),
    subscription("start_offset", "None", start="offset"),
    subscription("start_offset", "3", start_offset=3),
    subscription("start_offset", "-1", start="offset", start_offset=-1),
    subscription("start_ms", "None", start="time"),
    subscription("start_ms", "-1", start="time", start_ms=-1),
    subscription("acks", "'no'", acks="no"),
    subscription("key_order", "True", key_order=True, acks=False),
    subscription("lease_ms", "0", lease_ms=0),
    subscription("lease_ms", str(8 * 86_400_000), lease_ms=8 * 86_400_000),
    subscription("retry", "{'attempts': 3}", retry={"attempts": 3}),
    retry("retry.attempts", "0", attempts=0),
    retry("retry.attempts", "65536", attempts=65_536),
    retry("retry.first_ms", "-1", first_ms=-1),
    retry("retry.factor", "0.5", factor=0.5),
    retry("retry.factor", "nan", factor=math.nan),
    retry("retry.factor", "'2'", factor="2"),
    retry("retry.cap_ms", "10", first_ms=1_000, cap_ms=10),
    retry("retry.jitter", "1.5", jitter=1.5),
    subscription("assignment", "'random'", assignment="random"),
    subscription("assignment", "5", assignment=5),
    subscription("buffer_messages", "0", buffer_messages=0),
    subscription("buffer_bytes", "'1'", buffer_bytes="1"),
    subscription("peer", "''", peer=""),
    subscription("peer", "5", peer=5),
    subscription("peer_role", "'king'", peer="b", peer_role="king"),
    subscription("Subscription fields", "colour", colour="red"),
    Case("subscription", "jobs/workers", lambda w: w.broker.subscribe("jobs", "workers", lease_ms=5), EXISTS),
    Case("subscription", "jobs/nobody", lambda w: w.broker.unsubscribe("jobs", "nobody"), NOT_FOUND),
    # routes
    route("route", "''", name=""),
    route("kind", "'anycast'", kind="anycast"),
    route("bindings", "'jobs'", bindings="jobs"),
    route("bindings", "'jobs'", bindings=("jobs",)),
    binding("binding.topic", "''", topic=""),
    binding("binding.match", "5", match=5),
    binding("binding.match", "characters", match="a" * 1_025),
    binding("binding.match", r"'\ud800'", match=SURROGATE),
    binding("binding.headers", "5", kind="headers", headers={"a": 5}),
    binding("binding.headers", "[]", headers=[]),
    binding("binding.headers", "257", headers={str(number): "" for number in range(257)}),
    binding("binding.any_header", "'yes'", any_header="yes"),
    Case("route", "'x'", lambda w: anything(w.broker).put_route("x")),
    Case("route", "'nowhere'", lambda w: w.broker.delete_route("nowhere"), NOT_FOUND),
    Case("route", "[]", lambda w: anything(w.broker).delete_route([]), NOT_FOUND),
    Case("route", "'nowhere'", lambda w: w.broker.publish_route("nowhere", [b"x"]), NOT_FOUND),
    Case("topic", "'nowhere'", lambda w: w.broker.publish_route("lost", [b"x"]), NOT_FOUND),
    Case(
        "routing_key",
        "5",
        lambda w: anything(w.broker).publish_route("pattern", [b"x"], routing_key=5),
    ),
    Case(
        "headers",
        "5",
        lambda w: anything(w.broker).publish_route("pattern", [b"x"], routing_key="a", headers=5),
    ),
    Case("messages", "0", lambda w: w.broker.publish_route("pattern", [], routing_key="a")),
    # What is published.
    Case("topic", "'nowhere'", lambda w: w.broker.publish("nowhere", [b"x"]), NOT_FOUND),
    Case("topic", "{'jobs'}", lambda w: anything(w.broker).publish({"jobs"}, [b"x"]), NOT_FOUND),
    publish("messages", "None", None),
    publish("messages", "5", 5),
    publish("messages", "0", []),
    publish("messages", "{'payload': b'x'}", {"payload": b"x"}),
    publish("messages", "{b'x'}", {b"x"}),
    publish("messages[1]", "None", [b"x", None]),
    publish("messages[0]", "120", bytearray(b"x")),
    publish("messages[0].payload", "1001 bytes", [b"x" * 1_001]),
    publish("payload", r"'\ud800'", [SURROGATE]),
    message("payload", "None", payload=None),
    message("messages[1].payload", "5", payload=5),
    message("messages[1].id", "0 bytes", id=""),
    message("messages[1].id", "257 bytes", id="i" * 257),
    message("messages[1].id", "5", id=5),
    message("messages[1].id", r"'\ud800'", id=SURROGATE),
    message("messages[1].id", "'0-1'", id="0-1"),
    publish("ids", "'x'", [Message(payload=b"", id="x"), Message(payload=b"", id="x")], wherry.DuplicateId),
    publish("ids", "'mine'", Message(payload=b"", id="mine"), wherry.DuplicateId),
    message("messages[1].key", "1025 bytes", key="k" * 1_025),
    message("messages[1].key", r"b'\xff'", key=b"\xff"),
    message("messages[1].key", "5", key=5),
    message("messages[1].priority", "-1", priority=-1),
    message("messages[1].priority", "65536", priority=65_536),
    message("messages[1].priority", "'high'", priority="high"),
    message("messages[1].priority", "1.5", priority=1.5),
    message("messages[1].due", "-1", due_ms=-1),
    message("messages[1].due", str(1 << 43), due_ms=1 << 43),
    message("messages[1].due", "'tomorrow'", due_ms="tomorrow"),
    message("messages[1].expires", "-1", expires_ms=-1),
    message("messages[1].expires", str(1 << 70), expires_ms=1 << 70),
    message("headers", "['a']", headers=["a"]),
    message("headers", "{1: 'a'}", headers={1: "a"}),
    message("headers", "{'a': 1}", headers={"a": 1}),
    message("headers", r"\ud800", headers={"a": SURROGATE}),
    message("messages[1].headers", "257 headers", headers={str(number): "" for number in range(257)}),
    message("messages[1].envelope", "5", envelope=5),
    # What is published, as Arrow.
    publish("column", "'body'", pa.RecordBatch.from_pydict({"body": [b"x"]})),
    publish("column", "'payload'", repeated("payload", "payload")),
    publish("messages", "0", pa.RecordBatch.from_pydict({"payload": pa.array([], pa.binary())})),
    publish("messages", "0", pa.table({"payload": pa.array([], pa.binary())})),
    publish("payload", "None", pa.table({"payload": pa.array([b"x", None])})),
    publish("payload", "int64", pa.table({"payload": [1, 2]})),
    publish("column", "[]", pa.RecordBatch.from_arrays([], names=[])),
    columns("column", "'colour'", colour=["r", "g"]),
    columns("priority", "string", priority=["high", "low"]),
    columns("priority", "int64", priority=[1, 65_536]),
    columns("due", "string", due=["soon", "later"]),
    columns("messages[1].due", "-5", due=pa.array([None, -5], pa.int64())),
    columns("mac", "fixed_size_binary[16]", mac=pa.array([b"x" * 16] * 2, pa.binary(16))),
    columns("key", "list", key=[["a"], ["b"]]),
    message("messages[1].headers", "65537 bytes", headers={"a": "x" * 65_536}),
    message("messages[1].envelope", "262145 bytes", envelope=bytes(262_145)),
    columns("headers", "None", headers=NULL_HEADER),
    columns("payload", "Offset invariant", payload=TORN_OFFSETS),
    columns("headers", "struct", headers=[{"a": "b"}, {"a": "c"}]),
    # Options of a publish.
    option("partition", "2", partition=2),
    option("partition", "-1", partition=-1),
    option("partition", "'0'", partition="0"),
    option("sequence", "None", producer="p"),
    option("sequence", "3", sequence=3),
    option("sequence", "-1", producer="p", sequence=-1),
    option("producer", "'a b'", producer="a b", sequence=1),
    option("producer", "characters", producer="p" * 257, sequence=1),
    option("producer", "5", producer=5, sequence=1),
    option("producer 'p'", "sequence 3", wherry.OutOfSequence, producer="p", sequence=3),
    option("producer 'p'", "sequence 11", wherry.OutOfSequence, producer="p", sequence=11),
    option("persistent", "'no'", persistent="no"),
    Case("options", "{'partition': 0}", lambda w: anything(w.broker).publish("jobs", [b"x"], {"partition": 0})),
    # consumer and pull
    Case("topic", "'nowhere'", lambda w: w.broker.consumer("nowhere", "workers"), NOT_FOUND),
    Case("subscription", "jobs/nobody", lambda w: w.broker.consumer("jobs", "nobody"), NOT_FOUND),
    consumer("consumer", "'a b'", "a b"),
    consumer("consumer", "''", ""),
    consumer("consumer", "5", 5),
    consumer("consumer", "characters", "c" * 257),
    consumer("buffer_messages", "0", buffer_messages=0),
    consumer("buffer_bytes", "-1", buffer_bytes=-1),
    Case("consumer", "'c'", lambda w: w.broker.consumer("jobs", "workers", "c"), EXISTS),
    Case("messages", "0", lambda w: w.consumer.pull(0)),
    Case("messages", "65537", lambda w: w.consumer.pull(65_537)),
    Case("messages", "'10'", lambda w: anything(w.consumer).pull("10")),
    Case("bytes_max", "0", lambda w: w.consumer.pull(1, bytes_max=0)),
    Case("wait_ms", "-1", lambda w: w.consumer.pull(1, wait_ms=-1)),
    Case("messages", "0", lambda w: w.consumer.grant(0)),
    # settling
    Case("rows", "[2]", lambda w: w.delivery.ack([2])),
    Case("rows", "[-1]", lambda w: w.delivery.ack([-1])),
    Case("rows", "[]", lambda w: w.delivery.ack([])),
    Case("rows", "['x']", lambda w: anything(w.delivery).ack(["x"])),
    Case("rows", "[0.5]", lambda w: anything(w.delivery).ack([0.5])),
    Case("rows", "[True, False]", lambda w: w.delivery.ack([True, False])),
    Case("rows", "'0'", lambda w: anything(w.delivery).nack("0")),
    Case("rows", "[[0], [1]]", lambda w: anything(w.delivery).release([[0], [1]])),
    Case("delay_ms", "-1", lambda w: w.delivery.nack(delay_ms=-1)),
    Case("delay_ms", "1.5", lambda w: anything(w.delivery).nack(delay_ms=1.5)),
    Case("error", "5", lambda w: anything(w.delivery).nack(error=5)),
    Case("error", r"'\ud800'", lambda w: w.delivery.nack(error=SURROGATE)),
    Case("reason", "None", lambda w: anything(w.delivery).dead_letter(reason=None)),
    Case("lease_ms", "0", lambda w: w.delivery.renew(0)),
    Case("key", "''", lambda w: w.delivery.stage_ack("")),
    Case("token", "'x'", lambda w: anything(w.broker).ack("x")),
    Case("token", "-1", lambda w: w.broker.ack(-1)),
    Case("lease", "7", lambda w: w.broker.nack(7), wherry.StaleLease),
    Case("offset", "99", lambda w: w.broker.ack(w.delivery.tokens[0], [99]), wherry.StaleLease),
    Case("offsets", "[]", lambda w: w.broker.ack(w.delivery.tokens[0], [])),
    Case("offsets", "'x'", lambda w: anything(w.broker).release(w.delivery.tokens[0], "x")),
    Case("offsets", "[1.5]", lambda w: anything(w.broker).ack(w.delivery.tokens[0], [1.5])),
    # messages by id
    Case("message_ids", "()", lambda w: w.broker.cancel("jobs")),
    Case("id", "''", lambda w: w.broker.cancel("jobs", "")),
    Case("id", "5", lambda w: anything(w.broker).cancel("jobs", 5)),
    Case("message", "'nobody'", lambda w: w.broker.cancel("jobs", "mine", "nobody"), NOT_FOUND),
    Case("message", "'0-1'", lambda w: w.broker.cancel("jobs", "mine", "0-1"), wherry.NotWaiting),
    Case("message", "'0-0'", lambda w: w.broker.cancel("jobs", "0-0"), wherry.NotWaiting),
    amend("change", "Amendment"),
    amend("fields", "['colour']", colour="red"),
    amend("version", "0", version=0, priority=1),
    amend("version", "7", wherry.VersionConflict, version=7, priority=1),
    amend("priority", "65536", priority=65_536),
    amend("payload", "1001 bytes", payload=b"x" * 1_001),
    amend("payload", "5", payload=5),
    amend("due", "-1", due_ms=-1),
    amend("headers", "{'a': 1}", headers={"a": 1}),
    Case("change", "'x'", lambda w: anything(w.broker).amend("jobs", "mine", "x")),
    Case("message", "'nobody'", lambda w: w.broker.amend("jobs", "nobody", priority=1), NOT_FOUND),
    Case("id", "''", lambda w: w.broker.get("jobs", "")),
    Case("subscription", "jobs/nobody", lambda w: w.broker.state_of("jobs", "nobody", "mine"), NOT_FOUND),
    # looking
    Case("partition", "2", lambda w: w.broker.browse("jobs", partition=2)),
    Case("start", "-1", lambda w: w.broker.browse("jobs", start=-1)),
    Case("limit", "0", lambda w: w.broker.browse("jobs", limit=0)),
    Case("limit", "1000001", lambda w: w.broker.browse("jobs", limit=1_000_001)),
    Case("key", "5", lambda w: w.broker.search("jobs", key=5)),
    Case("headers", "{'a': 1}", lambda w: w.broker.search("jobs", headers={"a": 1})),
    Case("from_ms", "-1", lambda w: w.broker.search("jobs", from_ms=-1)),
    Case("to_ms", "'now'", lambda w: w.broker.search("jobs", to_ms="now")),
    Case("limit", "0", lambda w: w.broker.search("jobs", limit=0)),
    Case("fields", "['colour']", lambda w: w.broker.search("jobs", colour="red")),
    Case("wanted", "'x'", lambda w: anything(w.broker).search("jobs", "x")),
    Case("limit", "0", lambda w: w.broker.scheduled("jobs", "workers", limit=0)),
    Case("from_ms", "'x'", lambda w: anything(w.broker).scheduled("jobs", "workers", from_ms="x")),
    Case("subscription", "jobs/nobody", lambda w: w.broker.scheduled("jobs", "nobody"), NOT_FOUND),
    Case("topic", "'nowhere'", lambda w: w.broker.stats("nowhere"), NOT_FOUND),
    # dead letters
    dead("limit", "0", limit=0),
    dead("partition", "-1", partition=-1),
    dead("offsets", "'a'", offsets=("a",)),
    dead("offsets", "5", offsets=5),
    dead("offsets", "-1", offsets=(-1,)),
    dead("subscription", "5", subscription=5),
    dead("subscription", "jobs/nobody", NOT_FOUND, subscription="nobody"),
    dead("reason", "5", reason=5),
    dead("from_ms", "-1", from_ms=-1),
    Case("wanted", "'x'", lambda w: anything(w.broker).redrive("jobs", "x")),
    Case("wanted", "'x'", lambda w: anything(w.broker).dead_letters("jobs", "x")),
    Case("wanted", "None", lambda w: anything(w.broker).discard("jobs", None)),
    Case("by", "5", lambda w: anything(w.broker).redrive("jobs", by=5)),
    Case("by", r"'\ud800'", lambda w: w.broker.discard("jobs", DeadFilter(), by=SURROGATE)),
    Case("rate", "0", lambda w: w.broker.redrive("jobs", rate=0)),
    # transactions
    Case("key", "''", lambda w: w.broker.stage("", "jobs", [b"x"])),
    Case("key", "5", lambda w: anything(w.broker).stage(5, "jobs", [b"x"])),
    Case("key", "characters", lambda w: w.broker.stage("k" * 513, "jobs", [b"x"])),
    Case("topic", "'nowhere'", lambda w: w.broker.stage("k", "nowhere", [b"x"]), NOT_FOUND),
    Case("partition", "2", lambda w: w.broker.stage("k", "jobs", [b"x"], partition=2)),
    Case("messages", "0", lambda w: w.broker.stage("k", "jobs", [])),
    Case("messages[0].id", "'0-9'", lambda w: w.broker.stage("k", "jobs", Message(payload=b"", id="0-9"))),
    Case("stage", "'nobody'", lambda w: w.broker.commit("nobody"), NOT_FOUND),
    Case("key", "''", lambda w: w.broker.commit("")),
    Case("key", "None", lambda w: anything(w.broker).abort(None)),
]
