"""What frames cost: no client makes the broker look at the same thing over and over."""

from __future__ import annotations

import pytest

from tests.stomp.raw import Raw, frame
from tests.stomp.serving import until
from wherry.wire.stomp.codec import Frame, FrameReader
from wherry.wire.stomp.subscriptions import Consumer


class Counted(bytes):
    """Bytes that count how many of them are searched."""

    searched = 0

    def find(self, wanted, start=0, end=None):
        end = len(self) if end is None else min(end, len(self))
        at = super().find(wanted, start, end)
        self.searched += (end if at < 0 else at + len(wanted)) - start
        return at


@pytest.mark.rows("Q2")
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_frames_of_one_read_are_searched_once(end):
    one = f"SEND{end}destination:/queue/a{end}{end}hello\0".encode()
    data = Counted(one * 2_000)
    found = list(FrameReader().feed(data))
    assert [each.body for each in found if isinstance(each, Frame)] == [b"hello"] * 2_000
    assert data.searched <= 3 * len(data)  # for ends of heads and of bodies, and for a NUL where none may be


@pytest.mark.rows("Q4", "Q5")
@pytest.mark.parametrize("mode", ["auto", "client"])
def test_messages_that_did_not_fit_into_a_buffer_come_in_order(client, port, name, mode):
    count, place = 2_500, f"/queue/{name}"
    with Raw(port) as source:
        source.connect()
        source.socket.sendall(
            b"".join(frame("SEND", b"%d" % each + b" " * (each % 7 * 50), destination=place) for each in range(count))
        )
        source.done("SEND", b"", destination=f"/queue/{name}-end")
        client.send("SUBSCRIBE", destination=place, id="s", ack=mode, wherry_buffer_bytes="3000")
        seen = []
        for _ in range(count):
            message = client.expect("MESSAGE")
            seen.append(int(message.body))
            if mode == "client":
                client.send("ACK", id=message.headers["ack"])
    assert seen == list(range(count))


@pytest.fixture
def calls(monkeypatch):
    """Count how often messages were held again, or given back."""
    made = {"hold_again": 0, "end": 0}

    def counting(method):
        plain = getattr(Consumer, method)

        def call(self, *arguments):
            made[method] += 1
            plain(self, *arguments)

        return call

    for method in made:
        monkeypatch.setattr(Consumer, method, counting(method))
    return made


def _acked_in_a_transaction(client: Raw, name: str, count: int, mode: str) -> None:
    client.done("SUBSCRIBE", destination=f"/queue/{name}", id="1", ack=mode)
    for each in range(count):
        client.send("SEND", b"%d" % each, destination=f"/queue/{name}")
    acks = [client.expect("MESSAGE").headers["ack"] for _ in range(count)]
    client.done("BEGIN", transaction="t")
    client.socket.sendall(b"".join(frame("ACK", id=each, transaction="t") for each in acks))


@pytest.mark.rows("Q2")
@pytest.mark.parametrize("mode", ["client", "client-individual"])
def test_what_an_aborted_transaction_acked_is_held_again_at_once(client, name, calls, mode):
    _acked_in_a_transaction(client, name, 20, mode)
    client.done("ABORT", transaction="t")
    assert calls == {"hold_again": 1, "end": 0}


@pytest.mark.rows("Q2")
def test_what_is_left_in_a_transaction_comes_back_at_once(client, port, name, calls):
    _acked_in_a_transaction(client, name, 20, "client")
    client.done("BEGIN", transaction="u")
    client.socket.close()
    until(lambda: calls["end"] > 0)
    with Raw(port) as other:
        other.connect()
        other.send("SUBSCRIBE", destination=f"/queue/{name}", id="1")
        assert other.bodies(20) == [b"%d" % each for each in range(20)]
    assert calls == {"hold_again": 0, "end": 1}


@pytest.mark.rows("Q2")
def test_acks_of_transactions_that_end_in_any_order_leave_the_rest_in_order(client, name):
    client.done("SUBSCRIBE", destination=f"/queue/{name}", id="1", ack="client")
    for each in range(9):
        client.send("SEND", b"%d" % each, destination=f"/queue/{name}")
    acks = [client.expect("MESSAGE").headers["ack"] for _ in range(9)]
    for named, last in (("a", 2), ("b", 5)):
        client.done("BEGIN", transaction=named)
        client.done("ACK", id=acks[last], transaction=named)
    client.done("ABORT", transaction="a")
    client.done("ABORT", transaction="b")
    client.done("ACK", id=acks[4])  # this acks all before it too
    client.done("UNSUBSCRIBE", id="1")
    client.send("SUBSCRIBE", destination=f"/queue/{name}", id="2")
    assert client.bodies(4) == [b"5", b"6", b"7", b"8"]


class Walked(dict[int, object]):
    """A dictionary that counts what is walked through."""

    walked = 0

    def __iter__(self):
        for each in super().__iter__():
            self.walked += 1
            yield each


@pytest.mark.rows("Q2")
def test_an_ack_does_not_look_for_the_first_message_that_is_out(client, stomp_node, name):
    client.done("SUBSCRIBE", destination=f"/queue/{name}", id="1", ack="client")
    (session,) = (each for each in stomp_node.stomp_sessions.connected if each.subscriptions)
    mine = session.subscriptions["T_1"]
    mine.unacked = walked = Walked()
    for _ in range(50):
        client.send("SEND", b"m", destination=f"/queue/{name}")
    for each in [client.expect("MESSAGE").headers["ack"] for _ in range(50)]:
        client.done("ACK", id=each)
    assert mine.unacked is walked
    assert walked.walked == 0
