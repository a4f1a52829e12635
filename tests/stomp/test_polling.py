"""STOMP over HTTP by long polling: nothing twice, nothing lost, everything bounded."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from tests.stomp.over_http import CONNECT, PATIENCE_S, Polled, ask, frame, node, sessions_of, transports_of
from wherry.node.config import ServerSection, StompSection
from wherry.wire.stomp.session import WAITING_MAX
from wherry.wire.stomp.transports import polling
from wherry.wire.stomp.transports.polling import Bounds, Polling
from wherry.wire.stomp.transports.transport import FEED_BYTES


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with node(tmp_path_factory.mktemp("polling")) as found:
        yield found


@pytest.fixture
def session(home):
    polled = Polled(home.node.url)
    polled.send(CONNECT)
    polled.until(b"CONNECTED")
    yield polled
    polled.end()


def subscribed(session: Polled, destination: str, **more: str) -> None:
    session.send(frame("SUBSCRIBE", id="1", destination=destination, receipt="s", **more))
    session.until(b"receipt-id:s\n")


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.02)


@pytest.mark.rows("Q10")
def test_publish_and_receive(session):
    subscribed(session, "/topic/news")
    session.send(frame("SEND", b"hello", destination="/topic/news", receipt="p"))
    got = session.until(b"receipt-id:p\n")
    if b"MESSAGE" not in got:
        got += session.until(b"MESSAGE")
    assert b"\n\nhello\0" in got


@pytest.mark.rows("Q10")
def test_a_poll_waits_for_what_comes_later(home, session):
    subscribed(session, "/topic/later")
    got: list[bytes] = []
    poll = threading.Thread(target=lambda: got.append(session.take(wait_ms=20_000)))
    poll.start()
    eventually(lambda: home.node.server.waits >= 1)
    other = Polled(home.node.url)
    other.send(CONNECT + frame("SEND", b"now", destination="/topic/later"))
    poll.join(PATIENCE_S)
    assert got
    assert b"\n\nnow\0" in got[0]
    other.end()


@pytest.mark.rows("Q10")
def test_an_empty_poll_ends_with_its_time(session):
    answer = session.look(wait_ms=50)
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["wherry-next"] == str(session.after)


@pytest.mark.rows("Q10")
def test_an_answer_that_was_lost_is_given_again_byte_for_byte(session):
    subscribed(session, "/queue/lost")
    for number in range(5):
        session.send(frame("SEND", b"%d" % number, destination="/queue/lost", receipt=f"p{number}"))
    session.until(b"receipt-id:p4\n")  # all five are stored
    session.send(frame("SEND", b"last", destination="/queue/lost"))
    first = session.look(wait_ms=10_000)
    again = session.look(wait_ms=10_000)
    assert first.body
    assert again.body[: len(first.body)] == first.body
    session.after = int(first.headers["wherry-next"])
    further = session.look(wait_ms=0)
    assert not further.body.startswith(first.body)


@pytest.mark.rows("Q10")
def test_a_call_that_is_repeated_is_read_once(session):
    subscribed(session, "/topic/once")
    data = frame("SEND", b"once", destination="/topic/once", receipt="p")
    at = session.sent
    for _ in range(3):
        answer = session.post(data, at=at)
        assert (answer.status, answer.json) == (200, {"received": at + len(data), "over": False})
    session.sent = at + len(data)
    overlapping = data + frame("SEND", b"twice", destination="/topic/once", receipt="q")
    assert session.post(overlapping, at=at).status == 200
    got = b""
    while b"receipt-id:q\n" not in got or b"\n\ntwice\0" not in got:
        got += session.take()
    assert (got.count(b"\n\nonce\0"), got.count(b"receipt-id:p\n"), got.count(b"\n\ntwice\0")) == (1, 1, 1)


@pytest.mark.rows("Q10")
def test_frames_come_in_any_pieces(session):
    for byte in frame("SUBSCRIBE", id="1", destination="/topic/p", receipt="s"):
        session.send(bytes([byte]))
    session.until(b"receipt-id:s\n")


@pytest.mark.rows("Q10")
def test_places_that_cannot_be_are_refused_by_name(session):
    session.take(wait_ms=0)  # what came so far is confirmed
    ahead = session.post(b"x", at=session.sent + 1)
    assert (ahead.status, ahead.json["field"]) == (400, "at")
    for place in (session.after + 1_000_000, 0):
        wrong = session.look(after=place)
        assert (wrong.status, wrong.json["field"]) == (400, "after")
    missing = ask(session.url, "GET", f"{session.path}/frames", headers=session.headers)
    assert (missing.status, missing.json["field"]) == (400, "after")


@pytest.mark.rows("Q10")
def test_without_the_token_there_is_no_session_and_the_token_is_in_no_url(session):
    path = f"{session.path}/frames?after=0"
    for headers in ({}, {"Wherry-Session": "wrong"}):
        refused = ask(session.url, "GET", path, headers=headers)
        unknown = ask(session.url, "GET", "/v1/stomp/sessions/nobody/frames?after=0", headers=headers)
        assert refused.status == unknown.status == 404
        assert ask(session.url, "POST", f"{session.path}/frames?at=0", b"x", headers).status == 404
        assert ask(session.url, "DELETE", session.path, headers=headers).status == 404
    in_query = f"{path}&token={session.headers['Wherry-Session']}"
    assert ask(session.url, "GET", in_query, headers=session.headers).json["field"] == "token"


@pytest.mark.rows("Q10")
def test_an_error_can_still_be_read_and_then_the_session_is_over(home):
    session = Polled(home.node.url)
    session.send(CONNECT)
    session.until(b"CONNECTED")
    session.post(frame("NONSENSE"))
    got = session.until(b"ERROR")
    assert b"Bad command" in got
    assert session.over
    assert session.post(b"\n", at=session.sent).json["over"] is True
    again = session.look(after=session.after)
    assert (again.body, again.headers["wherry-over"]) == (b"", "true")
    assert session.end().status in {204, 404}  # the broker ends the session by itself, too
    assert session.end().status == 404


@pytest.mark.rows("Q10")
def test_delete_gives_back_what_the_session_held(home, session):
    subscribed(session, "/queue/held", ack="client")
    session.send(frame("SEND", b"mine", destination="/queue/held"))
    session.until(b"\n\nmine\0")
    assert session.end().status == 204
    other = Polled(home.node.url)
    other.send(CONNECT + frame("SUBSCRIBE", id="1", destination="/queue/held"))
    assert b"redelivered:true" in other.until(b"\n\nmine\0")
    other.end()


@pytest.mark.rows("Q10")
def test_a_later_poll_ends_an_earlier_one_that_waits(home, session):
    subscribed(session, "/topic/two")
    got: list[bytes] = []
    early = threading.Thread(target=lambda: got.append(session.look(wait_ms=30_000).body))
    early.start()
    eventually(lambda: home.node.server.waits >= 1)
    session.look(wait_ms=0)
    early.join(PATIENCE_S)
    assert got == [b""]


@pytest.mark.rows("Q10")
def test_many_bytes_are_taken_in_answers_of_a_bounded_size(session):
    body = b"k" * 300_000
    subscribed(session, "/queue/bulk", ack="auto")
    taken = got = 0
    for number in range(12):
        session.send(frame("SEND", body, destination="/queue/bulk", receipt=str(number)))
        part = session.take()
        taken += len(part)
        got += part.count(b"k\0")
    while got < 12:
        part = session.take()
        assert len(part) <= 2 << 20
        taken += len(part)
        got += part.count(b"k\0")
    assert taken > 12 * len(body)


@pytest.mark.rows("Q10")
def test_sessions_are_bounded_and_the_silent_ones_expire(tmp_path):
    with node(tmp_path / "data") as home:
        transports = transports_of(home)
        transports.polling.bounds = Bounds(sessions=3, idle_s=0.5)
        held = [Polled(home.node.url) for _ in range(3)]
        full = ask(home.node.url, "POST", "/v1/stomp/sessions")
        assert (full.status, full.json["code"]) == (429, "limit-reached")
        eventually(lambda: len(transports.polling) == 0)
        assert held[0].look().status == 404
        assert not sessions_of(home).connected
        Polled(home.node.url)


@pytest.mark.rows("Q10")
def test_a_client_that_takes_nothing_is_cut_off_at_its_bound(tmp_path):
    with node(tmp_path / "data") as home:
        transports_of(home).polling = Polling(sessions_of(home), Bounds(waiting_bytes=100_000))
        session = Polled(home.node.url)
        session.send(CONNECT + frame("SUBSCRIBE", id="1", destination="/queue/flood", ack="auto", receipt="s"))
        session.until(b"receipt-id:s\n")
        session.send(frame("SEND", b"f" * 150_000, destination="/queue/flood"))
        session.until(b"f\0")  # one message above the bound passes
        assert sessions_of(home).connected
        for _ in range(2):
            answer = session.post(frame("SEND", b"f" * 150_000, destination="/queue/flood"))
            session.sent = answer.json["received"]
        eventually(lambda: not sessions_of(home).connected)
        assert sessions_of(home).cut_off_counts["nothing read"] == 1
        assert b"bytes are not confirmed" in session.until(b"ERROR\n")
        assert session.over


@pytest.mark.rows("Q10")
def test_sessions_without_a_login_are_bounded_apart(tmp_path):
    with node(tmp_path / "data") as home:
        transports_of(home).polling.bounds = Bounds(strangers=2)
        friend, stranger = Polled(home.node.url), Polled(home.node.url)
        full = ask(home.node.url, "POST", "/v1/stomp/sessions")
        assert (full.status, full.json["code"]) == (429, "limit-reached")
        friend.send(CONNECT)
        friend.until(b"CONNECTED")
        Polled(home.node.url)
        assert ask(home.node.url, "POST", "/v1/stomp/sessions").status == 429
        stranger.post(frame("NONSENSE"))
        stranger.until(b"ERROR")
        stranger.look()  # confirms the ERROR: the broker need not wait for this session
        Polled(home.node.url)


@pytest.mark.rows("Q10")
def test_sessions_that_are_over_are_forgotten_whatever_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(polling, "PARTING_S", 0.5)
    with node(tmp_path / "data") as home:
        done, kept = Polled(home.node.url), Polled(home.node.url)
        for each in (done, kept):
            each.send(CONNECT)
            each.until(b"CONNECTED")
            each.post(frame("NONSENSE"))
        done.until(b"ERROR")
        done.look()
        eventually(lambda: done.look().status == 404)
        eventually(lambda: kept.look().status == 404)  # this client never confirms the ERROR
        assert not len(transports_of(home).polling)


@pytest.mark.rows("Q10")
def test_a_large_call_is_read_in_pieces_as_the_session_has_room(home, session):
    small = frame("SEND", destination="/topic/nobody")
    slow = frame("SUBSCRIBE", id="1", destination="/queue/slow")
    data = slow + small * 30_000 + frame("SEND", destination="/topic/nobody", receipt="end")
    transport = transports_of(home).polling.transport(session.path.rsplit("/", 1)[1])

    async def most() -> int:
        sending, seen = asyncio.create_task(transport.send(session.sent, data)), 0
        while not sending.done():
            seen = max(seen, len(transport._session._waiting))
            await asyncio.sleep(0)
        assert (await sending).received == session.sent + len(data)
        return seen

    assert 0 < home.run(most()) <= WAITING_MAX + FEED_BYTES // len(small) + 1
    session.until(b"receipt-id:end\n")


@pytest.mark.rows("Q10", "Q16")
def test_cross_origin_rules(tmp_path):
    app = "https://app.example"
    with node(tmp_path / "data", server=ServerSection(port=0, origins=(app,))) as home:
        url = home.node.url
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "wherry-session"}
        for path in ("/v1/stomp/sessions", "/v1/stomp/sessions/x/frames?at=0", "/v1/topics/jobs/messages"):
            allowed = ask(url, "OPTIONS", path, headers={"Origin": app, **asked})
            assert allowed.status == 204
            assert allowed.headers["access-control-allow-origin"] == app
            assert "POST" in allowed.headers["access-control-allow-methods"]
            assert "authorization" in allowed.headers["access-control-allow-headers"].lower()
            refused = ask(url, "OPTIONS", path, headers={"Origin": "https://evil.example", **asked})
            assert refused.status == 403
            assert not [name for name in refused.headers if name.startswith("access-control")]
        opened = ask(url, "POST", "/v1/stomp/sessions", headers={"Origin": app, "Sec-Fetch-Site": "cross-site"})
        assert (opened.status, opened.headers["access-control-allow-origin"]) == (201, app)
        wrong = ask(url, "GET", "/v1/topics/nothing", headers={"Origin": app, "Sec-Fetch-Site": "cross-site"})
        assert (wrong.status, wrong.headers["access-control-allow-origin"]) == (404, app)
        early = ask(url, "POST", "/v1/stomp/sessions/x/frames?at=0", b"x" * 100_000, {"Origin": app})
        assert (early.status, early.headers["access-control-allow-origin"]) == (404, app)
        stranger = ask(url, "POST", "/v1/stomp/sessions", headers={"Origin": "https://evil.example"})
        assert stranger.status == 403
        assert "access-control-allow-origin" not in stranger.headers
        own = ask(url, "GET", "/v1", headers={"Origin": url})
        assert own.status == 200
        assert "access-control-allow-origin" not in own.headers
        assert ask(url, "OPTIONS", "/v1", headers={"Origin": url}).status == 405
        assert ask(url, "OPTIONS", "/nowhere", headers={"Origin": app, **asked}).status == 404


@pytest.mark.rows("Q16")
def test_the_client_module_is_served_with_its_types_and_cached_by_tag(home):
    module = ask(home.node.url, "GET", "/wherry.js")
    assert module.status == 200
    assert module.headers["content-type"].startswith("text/javascript")
    assert b"export function connect" in module.body
    assert "max-age" in module.headers["cache-control"]
    same = ask(home.node.url, "GET", "/wherry.js", headers={"If-None-Match": module.headers["etag"]})
    assert (same.status, same.body) == (304, b"")
    types = ask(home.node.url, "GET", module.headers["x-typescript-types"])
    assert types.status == 200
    assert b"export function connect" in types.body


@pytest.mark.rows("Q10")
def test_where_stomp_is_off_there_are_no_transports(tmp_path):
    with node(tmp_path / "data", stomp=StompSection(enabled=False)) as home:
        assert ask(home.node.url, "POST", "/v1/stomp/sessions").status == 404
        assert ask(home.node.url, "GET", "/ws").status == 404
