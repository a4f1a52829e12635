"""Push over Flight: no consumer outlives its stream, and no word of a client is passed over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import pyarrow as pa
import pytest

from tests.integration.flights import Flights, Pushed, calls_of, payloads, until
from tests.integration.served import Served, served
from wherry.broker.calls.consumer import Consumer
from wherry.wire.flight import push as pushes
from wherry.wire.flight.push import Pushing
from wherry.wire.flight.terms import Push

pytestmark = pytest.mark.rows("D26")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node")) as found:
        yield found


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


@pytest.fixture
def flights(node: Served, topic: str) -> Flights:
    assert node.node.flight_url is not None
    client = Flights(node.node.flight_url)
    client.act("create-topic", name=topic)
    client.act("subscribe", topic=topic, name="s")
    return client


def consumers(flights: Flights, topic: str) -> int:
    (stats,) = flights.act("stats", topic=topic)["subscriptions"]
    return int(stats["consumers"])


class Client:
    """The side of a client, in process: what it sends, and what breaks."""

    def __init__(self, *, gone: bool = False, words: tuple[bytes, ...] = ()) -> None:
        self._gone, self._words = gone, words

    def is_cancelled(self) -> bool:
        return self._gone

    def begin(self, schema: pa.Schema) -> None:
        if self._gone:
            raise pa.ArrowException("the client is gone")

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Take the batch."""

    def write_metadata(self, word: bytes) -> None:
        """Take the metadata."""

    def __iter__(self) -> Iterator[Any]:
        for word in self._words:
            yield type("Chunk", (), {"app_metadata": word})


def pushing(node: Served, topic: str, client: Client) -> Pushing:
    assert node.node._flight is not None
    push = Push(topic=topic, subscription="s")
    return Pushing(node.node.broker, node.node._flight._bridge, push, client, client, lambda: None)


def test_a_stream_that_breaks_at_its_beginning_leaves_no_consumer(node: Served, flights: Flights, topic: str):
    with pytest.raises(pa.ArrowException):
        pushing(node, topic, Client(gone=True)).run(Client())
    assert consumers(flights, topic) == 0


def test_a_join_that_no_client_waits_for_any_more_is_taken_back(node: Served, flights: Flights, topic: str):
    node.loop.call_soon_threadsafe(time.sleep, 1.2)  # longer than the thread waits before it looks for its client
    with pytest.raises(CancelledError):
        pushing(node, topic, Client(gone=True)).run(Client())
    assert consumers(flights, topic) == 0


def test_the_thread_of_a_stream_ends_whatever_fails_at_the_end(
    node: Served, flights: Flights, topic: str, monkeypatch: pytest.MonkeyPatch
):
    async def broken(self: Consumer, error: str = "") -> None:
        raise RuntimeError("of all times now")

    stream, client = pushing(node, topic, Client(words=(b'{"credit": 1}',))), Client(words=(b'{"credit": 1}',))
    monkeypatch.setattr(Consumer, "close", broken)
    with pytest.raises(RuntimeError, match="of all times"):
        stream.run(client)
    assert stream._pushing is not None and not stream._pushing.is_alive()


def test_clients_that_hang_up_at_once_leave_nothing(node: Served, flights: Flights, topic: str):
    for number in range(30):
        stream = Pushed(flights, topic=topic, subscription="s")
        time.sleep(0.0005 * (number % 8))
        stream.cancel()
    until(lambda: calls_of(node) == 0)
    assert consumers(flights, topic) == 0


@pytest.mark.parametrize("words", [{"credit": 1, "ack": ["1"]}, {}, {"ack": ["1"], "nack": ["1"]}])
def test_a_frame_with_more_than_one_request_is_refused(flights: Flights, words: dict[str, object]):
    flights.act("create-topic", name="wishes")
    flights.act("subscribe", topic="wishes", name="s")
    stream = Pushed(flights, topic="wishes", subscription="s")
    stream.send(**words, id=7)
    answer = stream.next()
    assert (answer["id"], answer["fault"]["code"]) == (7, "invalid-input")
    flights.put([payloads(b"x")], topic="wishes")
    stream.send(credit=1)
    batch = stream.next()
    stream.send(ack=[str(batch.column("lease")[0].as_py())], id=8)
    assert stream.next() == {"done": 8}
    stream.end()


def test_a_stream_with_nothing_to_send_sends_heartbeats(flights: Flights, topic: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pushes, "BEAT_S", 0.1)
    stream = Pushed(flights, topic=topic, subscription="s")
    stream.send(credit=1)
    assert stream.next() == {"alive": True}
    flights.put([payloads(b"x")], topic=topic)
    received: Callable[[], Any] = stream.next
    while isinstance(batch := received(), dict):
        assert batch == {"alive": True}
    assert batch.num_rows == 1
    stream.end()
