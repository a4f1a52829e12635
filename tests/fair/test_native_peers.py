"""Peers on the native wire that are hostile, or broken: each is bounded and cut off, and a good client continues.

Ten thousand streams, ten thousand calls, and peers that read nothing while they make the node send.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

import pytest

from tests.fair.floods import PATIENCE_S, native_socket
from tests.native_client import SocketClient, upgraded
from tests.stomp.serving import done_in, running, until
from wherry.model.catalog.subscription import Retry
from wherry.node.node import Node
from wherry.wire.native.codec.calls import CallHead, encode_call
from wherry.wire.native.codec.deliveries import encode_credit
from wherry.wire.native.codec.documents import SubscribeTerms, encode_subscribe
from wherry.wire.native.codec.frames import Kind, encode_frame
from wherry.wire.native.codec.settles import Verb, encode_settle
from wherry.wire.native.running_calls import CALLS_MAX, KEPT_BYTES_MAX
from wherry.wire.native.sessions import Bounds

MANY = 10_000
PAUSE_S = 0.01
"""Between two cycles of the good client, so that a test which waits is cheap."""

STREAMS_MAX = Bounds().streams
UNREAD_BYTES_MAX = {"pushes": 4 << 20, "pings": 4 << 20, "settles": 8 << 20, "calls": KEPT_BYTES_MAX + (8 << 20)}
"""Of one peer that reads nothing: 1 MiB, what was under way, and what a chunk of requests is answered with."""

WAITING_PULL = CallHead("POST", "/v1/topics/idle/subscriptions/peer/pull?wait_ms=60000")


@pytest.fixture(scope="module")
def node(tmp_path_factory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("peers")) as found:
        broker = found.broker
        done_in(found, broker.create_topic("native-peers"))
        done_in(found, broker.create_topic("full", payload_bytes_max=1 << 20))
        done_in(found, broker.subscribe("native-peers", "good"))
        done_in(found, broker.create_topic("idle"))
        done_in(found, broker.subscribe("idle", "peer"))
        done_in(found, broker.subscribe("full", "peer", retry=Retry(first_ms=1, cap_ms=1)))
        for _ in range(10):
            done_in(found, broker.publish("full", [bytes(60_000)] * 100))
        yield found


class Good:
    """A client that publishes, is given its message, and settles it."""

    def __init__(self, client: SocketClient, stream: int) -> None:
        self.client, self._stream, self.cycles = client, stream, 0

    async def cycle(self) -> None:
        """Do all of it once."""
        await self.client.publish("native-peers", b"good")
        (row,) = await self.client.next_rows(self._stream)
        await self.client.settle(self._stream, Verb.ACK, row)
        self.client.credit(self._stream, 1)
        self.cycles += 1

    async def go_on(self, until_true: Callable[[], object], least: int = 5) -> None:
        """Run cycles until something is so, and some cycles in any case."""
        least += self.cycles
        while not until_true() or self.cycles < least:
            await self.cycle()
            await asyncio.sleep(PAUSE_S)


@asynccontextmanager
async def good_client(node: Node) -> AsyncIterator[Good]:
    """Connect a good client."""
    client = await upgraded(("127.0.0.1", node.port))
    good = Good(client, await client.subscribe("native-peers", "good", credit=1))
    await good.cycle()
    yield good
    await client.leave()


def over(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def ended(client: SocketClient, numbers: range, found: dict[int, Any]) -> Counter[str]:
    """Return the codes with which requests or streams have ended, by how often."""
    return Counter(found[number].code for number in numbers if found.get(number) is not None)


@pytest.mark.rows("Q2", "Q3")
def test_of_ten_thousand_streams_a_connection_gets_its_bound_and_others_continue(node):
    async def main() -> None:
        async with good_client(node) as good:
            peer = await upgraded(("127.0.0.1", node.port))
            numbers = [peer.begin_subscribe("idle", "peer", credit=1) for _ in range(MANY)]
            await good.go_on(lambda: len(peer.subscribed) + len(peer.ended) == MANY)
            assert len(peer.subscribed) == STREAMS_MAX
            assert ended(peer, range(1, MANY + 1), peer.ended) == {"limit-reached": MANY - STREAMS_MAX}
            stats = node.broker.subscription_stats("idle", "peer")
            assert stats.consumers == STREAMS_MAX
            peer.cancel(numbers[0])
            await good.go_on(lambda: numbers[0] in peer.ended)
            await peer.subscribe("idle", "peer")
            await peer.close()
            await good.go_on(lambda: not node.broker.subscription_stats("idle", "peer").consumers)

    over(main)


@pytest.mark.rows("Q2", "Q3")
def test_ten_thousand_streams_that_are_opened_and_cancelled_leave_nothing_behind(node):
    async def main() -> None:
        async with good_client(node) as good:
            peer = await upgraded(("127.0.0.1", node.port))
            for _ in range(MANY):
                peer.cancel(peer.begin_subscribe("idle", "peer", credit=1))
            await good.go_on(lambda: len(peer.ended) == MANY)
            assert set(ended(peer, range(1, MANY + 1), peer.ended)) <= {"limit-reached"}
            await good.go_on(lambda: not node.broker.subscription_stats("idle", "peer").consumers)
            await peer.leave()
        await asyncio.to_thread(until, lambda: not node.native_sessions._tasks)

    over(main)


@pytest.mark.rows("Q2", "Q3")
def test_of_ten_thousand_calls_that_wait_a_connection_gets_its_bound_and_others_continue(node):
    async def main() -> None:
        async with good_client(node) as good:
            peer = await upgraded(("127.0.0.1", node.port))
            numbers = [peer.begin_call(WAITING_PULL.method, WAITING_PULL.path) for _ in range(MANY)]
            await good.go_on(lambda: len(peer.answers) == MANY - CALLS_MAX)
            assert ended(peer, range(1, MANY + 1), peer.answers) == {"limit-reached": MANY - CALLS_MAX}
            for number in numbers[:10]:
                peer.send(encode_frame(Kind.CANCEL, number))
            await good.go_on(lambda: all(number in peer.answers for number in numbers[:10]))
            assert {peer.answers[number][0].status for number in numbers[:10]} == {499}
            await peer.close()
            await good.go_on(lambda: len(node.native_sessions.open) == 1)
        await asyncio.to_thread(until, lambda: not node.native_sessions._tasks)

    over(main)


# ------------------------------------------------------------------------------------------------- that read nothing


def pushed() -> Iterator[bytes]:
    yield encode_subscribe(1, SubscribeTerms(topic="full", subscription="peer", credit=1 << 30))
    while True:
        yield encode_credit(1, 1_000_000) * 1_000


def pinging() -> Iterator[bytes]:
    while True:
        yield encode_frame(Kind.PING, 1) * 1_000


def settling() -> Iterator[bytes]:
    yield encode_subscribe(1, SubscribeTerms(topic="idle", subscription="peer"))
    while True:
        yield encode_settle(1, 1, Verb.ACK, [(77, [(0, 1_000_000)])]) * 100


def calling() -> Iterator[bytes]:
    """Yield calls that are each answered with more than a megabyte."""
    browse = CallHead("GET", "/v1/topics/full/messages?limit=20", {"accept": "application/vnd.apache.arrow.stream"})
    for number in count(2):
        yield b"".join(map(bytes, encode_call(number, browse)))


DEAF = {"pushes": pushed, "pings": pinging, "settles": settling, "calls": calling}


def deaf(node: Node, sent: Iterator[bytes], is_over: threading.Event) -> None:
    """Be a peer that reads nothing and sends whenever the node reads, until it is cut off or the test is over."""
    with native_socket(node) as plain, suppress(ConnectionError):
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        plain.settimeout(0.5)
        for data in sent:
            rest = memoryview(data)
            while rest and not is_over.is_set():
                with suppress(TimeoutError):
                    rest = rest[plain.send(rest) :]
            if is_over.is_set():
                return


@pytest.mark.rows("Q2", "Q3")
@pytest.mark.parametrize("kind", DEAF)
def test_a_peer_that_reads_nothing_is_bounded_and_cut_off_and_others_continue(node, kind, monkeypatch):
    sessions = node.native_sessions
    monkeypatch.setattr(sessions, "bounds", Bounds(write_s=1.0))
    before = sessions.cut_off_counts["nothing read"]
    unread: list[int] = []

    def is_cut_off() -> bool:
        unread.extend(each.transport.waiting_bytes() for each in list(sessions.open))
        return sessions.cut_off_counts["nothing read"] == before + 1

    async def main() -> None:
        async with good_client(node) as good:
            is_over = threading.Event()
            begun = asyncio.create_task(asyncio.to_thread(deaf, node, DEAF[kind](), is_over))
            try:
                await good.go_on(is_cut_off)
                await good.go_on(lambda: len(sessions.open) == 1)
            finally:
                is_over.set()
                await begun
        assert 0 < max(unread) < UNREAD_BYTES_MAX[kind]

    over(main)
    until(lambda: not sessions._tasks)
    assert (sessions.partial_bytes, node.app.server.answers_bytes) == (0, 0)
    stats = node.broker.subscription_stats("full", "peer")
    assert (stats.consumers, stats.leased, stats.lag) == (0, 0, 1_000)
