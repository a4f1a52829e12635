"""`stomppy.py SCENARIO PORT [AUTHORITY]`: what people do with stomp.py; an error if the broker does not agree."""

from __future__ import annotations

import queue
import socket
import sys
import time
import uuid
from typing import Any

import stomp

PATIENCE_S = 20.0
CLASSES = {"1.0": stomp.Connection10, "1.1": stomp.Connection11, "1.2": stomp.Connection12}


class Recorder(stomp.ConnectionListener):  # type: ignore[misc]
    """A listener that keeps what the broker sends, in order."""

    def __init__(self) -> None:
        self.messages: queue.Queue[Any] = queue.Queue()
        self.receipts: queue.Queue[str] = queue.Queue()
        self.errors: queue.Queue[Any] = queue.Queue()
        self.disconnects: queue.Queue[bool] = queue.Queue()
        self.heart_beat_losses: queue.Queue[bool] = queue.Queue()

    def on_message(self, frame: Any) -> None:
        self.messages.put(frame)

    def on_receipt(self, frame: Any) -> None:
        self.receipts.put(frame.headers["receipt-id"])

    def on_error(self, frame: Any) -> None:
        self.errors.put(frame)

    def on_disconnected(self) -> None:
        self.disconnects.put(True)

    def on_heartbeat_timeout(self) -> None:
        self.heart_beat_losses.put(True)

    def bodies(self, count: int) -> list[str]:
        return [self.messages.get(timeout=PATIENCE_S).body for _ in range(count)]


def opened(version: str = "1.2", **options: Any) -> tuple[Any, Recorder]:
    """Open a connection with a recorder of what it receives."""
    connection = CLASSES[version]([("127.0.0.1", PORT)], **options)
    recorder = Recorder()
    connection.set_listener("recorder", recorder)
    if len(sys.argv) > 3:
        connection.set_ssl([("127.0.0.1", PORT)], ca_certs=sys.argv[3])
    connection.connect("guest", "guest", wait=True)
    return connection, recorder


def done(recorder: Recorder, receipt: str) -> None:
    assert recorder.receipts.get(timeout=PATIENCE_S) == receipt


def name() -> str:
    return f"/queue/stomppy-{uuid.uuid4()}"


def each_version() -> None:
    for version in CLASSES:
        connection, recorder = opened(version)
        place = name()
        connection.subscribe(place, id="1", ack="auto")
        connection.send(place, f"hello ü {version}", headers={"a": "b:c" if version != "1.0" else "b"}, receipt="r")
        done(recorder, "r")
        frame = recorder.messages.get(timeout=PATIENCE_S)
        assert frame.body == f"hello ü {version}", frame
        assert frame.headers["a"] == ("b:c" if version != "1.0" else "b")
        connection.disconnect(receipt="bye")
        done(recorder, "bye")


def ack_modes() -> None:
    for mode, rest in (("auto", []), ("client", ["2"]), ("client-individual", ["0", "2"])):
        place = name()
        connection, recorder = opened()
        for number in range(3):
            connection.send(place, str(number))
        connection.subscribe(place, id="1", ack=mode)
        frames = [recorder.messages.get(timeout=PATIENCE_S) for _ in range(3)]
        if mode != "auto":
            connection.ack(frames[1].headers["ack"], receipt="acked")
            done(recorder, "acked")
        connection.disconnect(receipt="bye")
        done(recorder, "bye")
        connection, recorder = opened()
        connection.send(place, "end", receipt="sent")
        done(recorder, "sent")
        connection.subscribe(place, id="1", ack="auto")
        found = sorted(recorder.bodies(len(rest) + 1))
        assert found == [*rest, "end"], (mode, found)
        connection.disconnect()


def nack() -> None:
    place = name()
    connection, recorder = opened("1.1")
    connection.subscribe(place, id="1", ack="client-individual")
    connection.send(place, "again")
    first = recorder.messages.get(timeout=PATIENCE_S)
    connection.nack(first.headers["message-id"], "1")
    second = recorder.messages.get(timeout=PATIENCE_S)
    assert (first.headers["redelivered"], second.headers["redelivered"]) == ("false", "true")
    connection.ack(second.headers["message-id"], "1")
    connection.disconnect()


def transactions() -> None:
    place = name()
    connection, recorder = opened()
    connection.subscribe(place, id="1", ack="auto", headers={"receipt": "subscribed"})
    done(recorder, "subscribed")
    for end, expected in (("abort", []), ("commit", ["a", "b"])):
        transaction = connection.begin()
        connection.send(place, "a", transaction=transaction)
        connection.send(place, "b", transaction=transaction)
        getattr(connection, end)(transaction, receipt=end)
        done(recorder, end)
        connection.send(place, "after", receipt="after")
        done(recorder, "after")
        assert recorder.bodies(len(expected) + 1) == [*expected, "after"], end
    connection.disconnect()


def durable_subscription() -> None:
    place, identity = f"/topic/{uuid.uuid4()}", str(uuid.uuid4())
    terms = {"durable": "true", "auto-delete": "false"}
    connection, recorder = opened()
    connection.subscribe(place, id=identity, ack="auto", headers={**terms, "receipt": "there"})
    done(recorder, "there")
    connection.disconnect(receipt="bye")
    done(recorder, "bye")
    connection, recorder = opened()
    connection.send(place, "meanwhile", headers={"persistent": "true"}, receipt="sent")
    done(recorder, "sent")
    connection.subscribe(place, id=identity, ack="auto", headers=terms)
    assert recorder.bodies(1) == ["meanwhile"]
    connection.unsubscribe(identity, **terms, receipt="gone")
    done(recorder, "gone")
    connection.disconnect()


def heart_beats() -> None:
    """Keep heart-beats up for a while; then the client stops to send them, and the broker ends the connection."""
    connection, recorder = opened(heartbeats=(2000, 2000))
    time.sleep(5)
    assert connection.is_connected()
    assert recorder.heart_beat_losses.empty()
    connection.disconnect()
    with socket.create_connection(("127.0.0.1", PORT), timeout=PATIENCE_S) as plain:
        plain.sendall(b"CONNECT\naccept-version:1.2\nheart-beat:1000,0\n\n\0")
        seen = b""
        while more := plain.recv(4096):
            seen += more
        assert b"no heart-beat" in seen, seen


def faults() -> None:
    connection, recorder = opened()
    connection.send("/nowhere/at-all", "x")
    frame = recorder.errors.get(timeout=PATIENCE_S)
    assert "/nowhere/at-all" in frame.body, frame
    assert recorder.disconnects.get(timeout=PATIENCE_S)


def ledger() -> None:
    """Print the numbers whose messages are stored, until the end; connect again (`stomppy.py ledger PORT QUEUE`)."""
    number = 0
    while True:
        try:
            connection = stomp.Connection12([("127.0.0.1", PORT)], reconnect_attempts_max=1)
            recorder = Recorder()
            connection.set_listener("recorder", recorder)
            connection.connect("guest", "guest", wait=True)
            while True:
                number += 1
                connection.send(sys.argv[3], str(number), headers={"persistent": "true"}, receipt=str(number))
                while True:
                    try:
                        assert recorder.receipts.get(timeout=0.05) == str(number)
                        break
                    except queue.Empty:
                        if not connection.is_connected():
                            raise ConnectionError from None
                print(number, flush=True)
        except (stomp.exception.StompException, OSError):
            time.sleep(0.05)


SCENARIOS = {
    each.__name__: each
    for each in (each_version, ack_modes, nack, transactions, durable_subscription, heart_beats, faults, ledger)
}

if __name__ == "__main__":
    PORT = int(sys.argv[2])
    if sys.argv[1] == "ledger":
        ledger()
    SCENARIOS[sys.argv[1]]()
    time.sleep(0.1)  # the threads of stomp.py end by themselves
