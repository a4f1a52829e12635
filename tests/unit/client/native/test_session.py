"""A session of the client: what it writes, which answer is whose, and what happens at its bounds and at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pyarrow as pa
import pytest

import wherry
from tests.unit.client.native.peer import Peer, turn
from wherry.client.frames import encode
from wherry.client.link.transport import ClientRequest
from wherry.client.native import session as module
from wherry.client.native.session import NativeSession
from wherry.model.schema import compact
from wherry.wire.native.codec.calls import AnswerHead, encode_answer
from wherry.wire.native.codec.documents import encode_moved
from wherry.wire.native.codec.frames import Kind, encode_frame
from wherry.wire.native.codec.publishes import Confirmed, ConfirmEntry, decode_publish, encode_confirm
from wherry.wire.native.codec.settles import encode_settled


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 10))


def test_what_is_sent_in_one_turn_is_one_write():
    async def main() -> None:
        peer = Peer()
        sent = [peer.session.publish("jobs", [b"%d" % number], None, b"") for number in range(5)]
        assert peer.writes == 0
        await turn()
        assert peer.writes == 1
        assert [decode_publish(0, frame[3]).payloads for frame in peer.frames] == [[b"%d" % n] for n in range(5)]
        peer.confirm((1, 5, 0, 70))
        await turn()
        assert [future.result().offset.tolist() for future in sent] == [[70], [71], [72], [73], [74]]

    run(main)


def test_a_turn_with_many_bytes_is_written_before_its_end():
    async def main() -> None:
        peer = Peer()
        for _ in range(6):
            _ = peer.session.publish("jobs", [b"x" * 60_000], None, b"")
        assert peer.writes == 1
        await turn()
        assert (peer.writes, len(peer.frames)) == (2, 6)

    run(main)


def test_columns_are_sent_behind_the_frames_before_them():
    async def main() -> None:
        peer = Peer()
        _ = peer.session.publish("jobs", [b"a"], None, b"")
        batch = compact(pa.table({"payload": [b"x" * 1_000] * 100}))
        sent = peer.session.publish_arrow("jobs", encode(batch), 100, b"")
        _ = peer.session.publish("jobs", [b"b"], None, b"")
        await turn()
        assert [frame[2] for frame in peer.frames] == [1, 2, 3]
        peer.confirm((2, 1, 3, 500), (3, 1, 3, 600), (1, 1, 3, 499))
        assert (await sent).offset.tolist() == list(range(500, 600))

    run(main)


def test_confirms_come_in_any_order_and_each_finds_its_request():
    async def main() -> None:
        peer = Peer()
        session = peer.session
        sent = [session.publish("jobs", [b"x"] * count, None, b"") for count in (2, 3, 1, 2)]
        peer.confirm((3, 2, 1, 40), (1, 2, 0, 7))
        places = [(each.result().partition.tolist(), each.result().offset.tolist()) for each in sent]
        assert places == [([0, 0], [7, 8]), ([0, 0, 0], [9, 10, 11]), ([1], [40]), ([1, 1], [41, 42])]

    run(main)


def test_a_confirm_has_repeats_dead_letters_and_places():
    async def main() -> None:
        peer = Peer()
        sent = [peer.session.publish("jobs", [b"x"] * 3, None, b"") for _ in range(4)]
        dead = ConfirmEntry(1, 2, 0, 10, Confirmed.DURABLE, dead=4)
        placed = ConfirmEntry(3, 1, 2, 4, Confirmed.DURABLE, 1, ((2, 4, 1), (0, 93, 2)))
        repeated = ConfirmEntry(4, 1, 0, 1, Confirmed.REPEATED)
        peer.send(encode_confirm([dead, placed, repeated]))
        first, second, third, fourth = [each.result() for each in sent]
        assert (first.dead, second.dead) == (1, 3)
        assert (third.ids(), third.dead) == (["2-4", "0-93", "0-94"], 1)
        assert (fourth.repeated, fourth.durable, first.durable) == (True, False, True)

    run(main)


def test_a_publish_that_is_not_waited_for_any_more_is_confirmed_all_the_same():
    async def main() -> None:
        peer = Peer()
        client = asyncio.ensure_future(peer.session.publish("jobs", [b"a"], None, b""))
        after = peer.session.publish("jobs", [b"b"], None, b"")
        client.cancel()
        await turn()
        assert len(peer.frames) == 2
        peer.confirm((1, 2, 0, 0))
        assert (await after).ids() == ["0-1"]
        assert not peer.session.is_closed

    run(main)


def test_a_call_that_is_given_up_is_cancelled_at_the_broker():
    async def main() -> None:
        peer = Peer()
        call = asyncio.create_task(peer.session.call(ClientRequest("POST", "/v1/pull", wait_s=20)))
        await turn()
        call.cancel()
        await turn()
        assert [(frame[0], frame[2]) for frame in peer.frames] == [(Kind.CALL, 1), (Kind.CANCEL, 1)]
        peer.send(b"".join(encode_answer(1, AnswerHead(499))))
        assert not peer.session.is_closed

    run(main)


def test_a_call_that_is_given_up_is_not_overtaken_by_the_next():
    async def main() -> None:
        peer = Peer()
        acking = asyncio.create_task(peer.session.call(ClientRequest("POST", "/v1/ack")))
        await turn()
        acking.cancel()
        leaving = asyncio.create_task(peer.session.call(ClientRequest("DELETE", "/v1/consumer")))
        await turn()
        assert [(frame[0], frame[2]) for frame in peer.frames] == [(Kind.CALL, 1)]
        peer.send(b"".join(encode_answer(1, AnswerHead(204))))
        await turn()
        assert [(frame[0], frame[2]) for frame in peer.frames] == [(Kind.CALL, 1), (Kind.CALL, 2)]
        peer.send(b"".join(encode_answer(2, AnswerHead(204))))
        assert (await leaving).status == 204

    run(main)


def test_a_refused_request_raises_what_the_broker_raised():
    async def main() -> None:
        peer = Peer()
        sent = [peer.session.publish("jobs", [b"a"], None, b"") for _ in range(3)]
        peer.refuse(1, "not-found")
        peer.refuse(2, "busy")
        peer.send(encode_moved(3, "jobs", "http://b:7070"))
        for future, kind in zip(sent, (wherry.NotFound, wherry.Unavailable, wherry.Unavailable), strict=True):
            with pytest.raises(kind):
                await future
        with pytest.raises(wherry.Unavailable, match="http://b:7070"):
            sent[2].result()

    run(main)


def ticks(peer: Peer, count: int) -> None:
    """Let time pass, as the session sees it."""
    for _ in range(count):
        peer.session._timer.cancel()
        peer.session._tick()


def test_a_request_without_an_answer_in_time_is_unavailable():
    async def main() -> None:
        peer = Peer(timeout_s=4)
        sent = peer.session.publish("jobs", [b"a"], None, b"")
        waits = asyncio.create_task(peer.session.call(ClientRequest("POST", "/v1/pull", wait_s=20)))
        await turn()
        ticks(peer, 4)
        with pytest.raises(wherry.Unavailable, match="within 4 s"):
            await sent
        peer.pong()
        ticks(peer, 19)
        assert not waits.done()
        peer.pong()
        ticks(peer, 1)
        await turn()
        with pytest.raises(wherry.Unavailable):
            await waits
        peer.confirm((1, 1, 0, 0))  # the confirm came too late, and is no fault
        assert not peer.session.is_closed
        peer.session.abort()

    run(main)


def test_a_silent_session_pings_and_a_silent_broker_is_gone():
    async def main() -> None:
        peer = Peer(heartbeat_ms=4_000)
        sent = peer.session.publish("jobs", [b"a"], None, b"")
        await turn()
        ticks(peer, 1)
        assert [frame[0] for frame in peer.frames] == [Kind.PUBLISH]
        ticks(peer, 1)
        await turn()
        assert [frame[0] for frame in peer.frames] == [Kind.PUBLISH, Kind.PING]
        peer.send(encode_frame(Kind.PING, 9))
        await turn()
        assert peer.frames[-1][:3] == (Kind.PONG, 0, 9)
        ticks(peer, 8)
        assert not peer.is_cut
        ticks(peer, 1)
        assert peer.is_cut
        with pytest.raises(wherry.Unavailable, match="heartbeat"):
            await sent

    run(main)


def test_callers_wait_while_the_socket_takes_nothing():
    async def main() -> None:
        peer = Peer()
        session = peer.session
        session.pause_writing()
        assert session.is_full
        waiting = [asyncio.create_task(session.room()) for _ in range(3)]
        await turn()
        assert not any(each.done() for each in waiting)
        waiting[1].cancel()
        session.resume_writing()
        await turn()
        assert [each.done() for each in waiting] == [True, True, True]
        assert not session.is_full

    run(main)


def test_callers_wait_when_too_many_requests_have_no_answer(monkeypatch):
    monkeypatch.setattr(module, "REQUESTS_MAX", 4)

    async def main() -> None:
        peer = Peer()
        for _ in range(4):
            assert not peer.session.is_full
            _ = peer.session.publish("jobs", [b"a"], None, b"")
        waiting = asyncio.create_task(peer.session.room())
        await turn()
        assert peer.session.is_full
        assert not waiting.done()
        peer.confirm((1, 1, 0, 0))
        await waiting
        assert not peer.session.is_full

    run(main)


def test_a_caller_does_not_wait_for_room_for_ever():
    async def main() -> None:
        peer = Peer(timeout_s=0.05)
        peer.session.pause_writing()
        with pytest.raises(wherry.Unavailable, match="took nothing"):
            await peer.session.room()
        peer.session.abort()

    run(main)


@pytest.mark.parametrize(
    "sent",
    [
        encode_confirm([ConfirmEntry(9, 1, 0, 0)]),
        encode_confirm([ConfirmEntry(1, 4_000_000_000, 0, 0)]),
        encode_frame(Kind.SETTLED, 0, b"123"),
        encode_frame(Kind.DELIVER, 4),
        encode_frame(Kind.ANSWER, 9, b"\4\0\0\0{}  "),
        encode_frame(Kind.HELLO, 0, b"nonsense"),
        encode_frame(Kind.PUBLISH, 1),
        b"HTTP/1.1 200 OK\r\n\r\n",
        encode_settled([(1, 1)]),
        b"".join(encode_answer(1, AnswerHead(200))),
        encode_confirm([ConfirmEntry(1, 1, 0, 1 << 63)]),
        encode_confirm([ConfirmEntry(1, 1, 0, 0, places=((0, 0, 1), (0, 5, 4_000_000_000)))]),
        encode_frame(Kind.CANCEL, 1),
    ],
    ids=[
        *("no-request", "too-many", "odd-length", "no-stream", "no-call", "no-json", "not-its-frame", "http"),
        *("settled-publish", "answered-publish", "offset", "places", "cancelled-call"),
    ],
)
def test_a_broker_that_breaks_the_protocol_is_left(sent: bytes):
    async def main() -> None:
        peer = Peer()
        first = peer.session.publish("jobs", [b"a"], None, b"")
        second = peer.session.publish("jobs", [b"a"], None, b"")
        peer.send(sent)
        assert peer.is_cut
        assert peer.ended
        assert first.done()
        assert second.done()
        await asyncio.gather(first, second, return_exceptions=True)
        with pytest.raises(wherry.Unavailable, match="protocol"):
            _ = peer.session.publish("jobs", [b"a"], None, b"")

    run(main)


def test_a_connection_that_is_lost_fails_what_is_under_way_and_nothing_else():
    async def main() -> None:
        peer = Peer()
        done, sent = [peer.session.publish("jobs", [b"a"], None, b"") for _ in range(2)]
        call = asyncio.create_task(peer.session.call(ClientRequest("GET", "/v1/topics")))
        room = asyncio.create_task(peer.session.room())
        peer.session.pause_writing()
        await turn()
        peer.confirm((1, 1, 0, 0))
        peer.session.connection_lost(ConnectionResetError())
        assert (await done).ids() == ["0-0"]
        for each in (sent, call):
            with pytest.raises(wherry.Unavailable, match="without an answer"):
                await each
        await room  # the caller finds another connection
        assert peer.session.lost.done()

    run(main)


def test_a_session_that_takes_over_a_connection_which_is_lost_already_ends():
    async def main() -> None:
        peer = Peer()
        peer.close()
        late = NativeSession(peer, 30.0, peer.ended.append)
        await turn()
        with pytest.raises(wherry.Unavailable, match="without an answer"):
            await late.opened
        assert late.lost.done()

    run(main)


def test_after_a_goodbye_what_is_under_way_is_answered_and_then_the_session_leaves():
    async def main() -> None:
        peer = Peer()
        sent = peer.session.publish("jobs", [b"a"], None, b"")
        await turn()
        peer.goodbye()
        assert peer.session.is_leaving
        assert peer.ended == [peer.session]
        assert [frame[0] for frame in peer.frames] == [Kind.PUBLISH]
        peer.confirm((1, 1, 0, 5))
        assert (await sent).ids() == ["0-5"]
        assert peer.frames[-1][0] == Kind.GOODBYE
        assert peer.is_cut

    run(main)


def test_numbers_begin_again_after_the_largest_and_none_is_used_twice():
    async def main() -> None:
        peer = Peer()
        session = peer.session
        first = session.publish("jobs", [b"a"], None, b"")
        session._last = module.NUMBER_MAX - 1
        rest: list[Awaitable[Any]] = [session.publish("jobs", [b"a"], None, b"") for _ in range(2)]
        await turn()
        assert [frame[2] for frame in peer.frames] == [1, module.NUMBER_MAX, 2]
        peer.confirm((1, 2, 0, 0), (module.NUMBER_MAX, 1, 0, 2))
        assert [(await each).ids() for each in (first, *rest)] == [["0-0"], ["0-2"], ["0-1"]]

    run(main)
