"""STOMP and AMQP are two faces of the same queues; HTTP sees them as topics."""

from __future__ import annotations

import struct
import urllib.request

import pytest

from tests.amqp.raw import QUEUE_DECLARE, QUEUE_DECLARE_OK, long, short
from tests.amqp.raw import Raw as Amqp
from tests.stomp.raw import Raw


@pytest.fixture
def amqp(stomp_node):
    with Amqp(f"amqp://guest:guest@127.0.0.1:{stomp_node.amqp_port}/") as raw:
        yield raw.opened()


def declared(amqp: Amqp, name: str) -> None:
    amqp.call(1, QUEUE_DECLARE, b"\0\0" + short(name) + b"\x02" + long(b""))
    amqp.expect(QUEUE_DECLARE_OK)


@pytest.mark.rows("Q12")
def test_from_amqp_to_stomp(amqp, client, name):
    declared(amqp, name)
    table = b"\x03str" + b"S" + long(b"text") + b"\x03int" + b"I" + struct.pack(">i", -7)
    properties = (
        struct.pack(">H", 0x8000 | 0x2000 | 0x1000 | 0x0400) + short("a/b") + long(table) + b"\x02" + short("c")
    )
    amqp.publish(name, b"over amqp", properties)
    client.send("SUBSCRIBE", destination=f"/queue/{name}", id="1")
    found = client.expect("MESSAGE")
    assert found.body == b"over amqp"
    expected = {"content-type": "a/b", "str": "text", "int": "-7", "persistent": "true", "correlation-id": "c"}
    assert expected.items() <= found.headers.items()


@pytest.mark.rows("Q12")
def test_from_stomp_to_amqp(amqp, client, name):
    sent = {"content_type": "a/b", "persistent": "true", "correlation_id": "c", "own": "header"}
    client.done("SEND", b"over stomp", destination=f"/queue/{name}", **sent)
    properties, body = amqp.got(name)
    assert body == b"over stomp"
    table = b"\x03own" + b"S" + long(b"header")
    meant = struct.pack(">H", 0x8000 | 0x2000 | 0x1000 | 0x0400) + short("a/b") + long(table) + b"\x02" + short("c")
    assert properties == meant


def test_over_http_a_queue_is_a_topic(stomp_node, client, name):
    client.done("SUBSCRIBE", destination=f"/queue/{name}", id="1")
    request = urllib.request.Request(
        f"{stomp_node.url}/v1/topics/{name}/messages",
        data=b"over http",
        headers={"content-type": "text/plain"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status < 300
    assert client.bodies(1) == [b"over http"]


def test_two_wires_share_a_queue_and_its_acks(amqp, port, name):
    with Raw(port) as raw:
        raw.connect()
        raw.send("SEND", b"1", destination=f"/queue/{name}", persistent="true")
        raw.send("SUBSCRIBE", destination=f"/queue/{name}", id="1", ack="client")
        raw.expect("MESSAGE")
    assert amqp.got(name)[1] == b"1"  # the message came back, since it was not acked
