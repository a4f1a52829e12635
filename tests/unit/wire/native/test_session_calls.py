"""Sessions of the native wire in memory: calls of the HTTP interface, and rights."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.native_client import NativeError
from tests.unit.wire.native.memory_session import NativeWorld, in_memory
from wherry.model.errors import Forbidden, Unauthorized
from wherry.wire.native.codec import documents
from wherry.wire.native.codec.settles import Verb

# ---------------------------------------------------------------------------------------------------------------- calls


@in_memory()
async def test_calls_are_those_of_http(world: NativeWorld):
    client = await world.client()
    status, topic = await client.call("PUT", "/v1/topics/new", b'{"partitions":2}', content_type="application/json")
    assert (status, topic["config"]["partitions"]) == (201, 2)
    status, found = await client.call("GET", "/v1/topics")
    assert (status, [each["config"]["name"] for each in found["topics"]]) == (200, ["jobs", "new"])
    assert (await client.call("GET", "/v1/topics/none"))[0] == 404
    assert (await client.call("GET", "/nothing/here"))[0] == 404
    assert (await client.call("DELETE", "/v1/topics/new"))[0] == 204
    head, body = await client.answer(client.begin_call("HEAD", "/v1/topics"))
    assert (head.status, bytes(body)) == (200, b"")
    status, problem = await client.call("PUT", "/v1/topics/bad", b'{"partitions":0}')
    assert (status, problem["field"]) == (400, "partitions")


@in_memory()
async def test_publish_and_pull_by_call_with_arrow(world: NativeWorld):
    client = await world.client()
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"payload": pa.array([bytes(100)] * 300)})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    kind = "application/vnd.apache.arrow.stream"
    path = "/v1/topics/jobs/messages"
    status, answer = await client.call("POST", path, sink.getvalue().to_pybytes(), content_type=kind)
    assert (status, answer["count"]) == (201, 300)
    status, body = await client.call("POST", "/v1/topics/jobs/subscriptions/workers/pull", accept=kind)
    assert status == 200
    assert pa.ipc.open_stream(body).read_all().num_rows == 300
    await world.settle_down()
    server = world.app.server
    assert (server.bodies_bytes, server.answers_bytes, server.requests) == (0, 0, 0)


@in_memory()
async def test_calls_run_side_by_side_and_one_that_waits_can_be_cancelled(world: NativeWorld):
    client = await world.client()
    waits = client.begin_call("POST", "/v1/topics/jobs/subscriptions/workers/pull?wait_ms=60000")
    assert (await client.call("GET", "/healthz"))[0] == 200
    client.send(documents.encode_cancel(waits, stream=False))
    head, body = await client.answer(waits)
    assert (head.status, bytes(body)) == (499, b"")
    assert world.app.server.waits == 0
    await client.publish("jobs", b"x")
    status, pulled = await client.call("POST", "/v1/topics/jobs/subscriptions/workers/pull")
    assert (status, len(pulled["messages"])) == (200, 1)


@pytest.mark.parametrize("path", ["/v1/topics/jobs/subscriptions/workers/events", "/v1/figures/stream"])
def test_an_answer_without_an_end_is_refused(path):
    @in_memory()
    async def run(world: NativeWorld):
        client = await world.client()
        status, _ = await client.call("GET", path)
        assert status in (404, 406)
        assert world.app.server.requests == world.app.server.waits == 0

    run()


@in_memory()
async def test_a_body_beyond_the_bound_of_its_endpoint_is_refused(world: NativeWorld):
    client = await world.client()
    status, problem = await client.call("PUT", "/v1/topics/new", b" " * ((1 << 20) + 1))
    assert (status, problem["code"]) == (413, "too-large")
    status, _ = await client.call("GET", "/healthz", b"x")
    assert status == 413


@in_memory()
async def test_what_a_pull_was_to_hand_over_waits_again_when_the_client_is_gone(world: NativeWorld):
    client = await world.client()
    client.begin_call("POST", "/v1/topics/jobs/subscriptions/workers/pull?wait_ms=60000")
    await world.settle_down()
    await world.broker.publish("jobs", b"x")
    client.abort()
    await world.sessions.finished()
    other = await world.client()
    status, pulled = await other.call("POST", "/v1/topics/jobs/subscriptions/workers/pull")
    assert (status, pulled["messages"][0]["attempt"]) == (200, 1)


# --------------------------------------------------------------------------------------------------------------- rights


class Rights:
    """A guard with rights that a test can change."""

    def __init__(self) -> None:
        self.rights = {("publish", "jobs"), ("consume", "jobs")}
        self.is_known = True

    def __call__(self, request, verb, topic):
        if not self.is_known or request.headers.get("authorization") != "Bearer good":
            raise Unauthorized("this key is not known here")
        if verb != "none" and (verb, topic) not in self.rights:
            raise Forbidden("ann", verb, topic)
        return "ann"


def test_rights_are_those_of_the_key_at_any_time():
    rights = Rights()

    @in_memory(guard=rights)
    async def run(world: NativeWorld):
        await world.broker.create_topic("other")
        client = await world.client(authorization="Bearer good")
        assert client.session.user == "ann"
        await client.publish("jobs", b"x")
        with pytest.raises(NativeError) as fault:
            await client.publish("other", b"x")
        assert fault.value.code == "forbidden"
        with pytest.raises(NativeError) as fault:
            await client.subscribe("other", "s", create={})
        assert fault.value.code == "forbidden"
        assert (await client.call("PUT", "/v1/topics/new", b"{}"))[0] == 403
        stream = await client.subscribe("jobs", "workers", credit=100)
        (row,) = await client.next_rows(stream)
        rights.rights.clear()
        world.later(1)
        with pytest.raises(NativeError):
            await client.publish("jobs", b"x")
        with pytest.raises(NativeError) as fault:
            await client.settle(stream, Verb.ACK, row)
        assert fault.value.code == "forbidden"
        await world.broker.publish("jobs", b"y")
        await client.until(lambda: stream in client.ended)
        assert stream not in client.session.streams
        assert not client.rows[stream]

    run()


def test_a_client_whose_key_is_gone_is_cut_off():
    rights = Rights()

    @in_memory(guard=rights)
    async def run(world: NativeWorld):
        client = await world.client(authorization="Bearer good")
        rights.is_known = False
        world.later(1)
        await world.settle_down()
        assert client.is_closed
        assert client.fault is not None
        assert client.fault.code == "unauthorized"
        assert world.sessions.cut_off_counts["key no longer good"] == 1

    run()
