"""`python -m bench.lone.sides.zeromq CASE produce|consume PORT COUNT SUBJECT`: ZeroMQ, by pyzmq. The producer binds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import zmq

from bench.flow import Found, Steps, play_steps
from bench.lone.shapes import SUBSCRIBERS
from bench.peers.peer import SIZE, message


def _socket(context: Any, kind: int) -> Any:
    """Make a socket that drops nothing: without a high-water mark."""
    made = context.socket(kind)
    made.setsockopt(zmq.SNDHWM, 0)
    made.setsockopt(zmq.RCVHWM, 0)
    return made


def transient_produce(port: int, count: int, subject: str) -> Iterator[Found]:
    """Push message by message."""
    with zmq.Context() as context, _socket(context, zmq.PUSH) as socket:
        socket.bind(f"tcp://127.0.0.1:{port}")
        yield None
        for _ in range(count):
            socket.send(message())
        yield None


def transient_consume(port: int, count: int, subject: str) -> Iterator[Found]:
    """Pull message by message."""
    with zmq.Context() as context, _socket(context, zmq.PULL) as socket:
        socket.connect(f"tcp://127.0.0.1:{port}")
        yield None
        for _ in range(count):
            assert len(socket.recv()) == SIZE
        yield None


def fanout_produce(port: int, count: int, subject: str) -> Iterator[Found]:
    """Publish message by message, by an XPUB: a PUB that gets word of its subscribers, so that it begins with all."""
    with zmq.Context() as context, _socket(context, zmq.XPUB) as socket:
        socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        socket.bind(f"tcp://127.0.0.1:{port}")
        for _ in range(SUBSCRIBERS):
            socket.recv()
        yield None
        for _ in range(count):
            socket.send(message())
        yield None


def fanout_consume(port: int, count: int, subject: str) -> Iterator[Found]:
    """Subscribe several times; each SUB has a connection of its own."""
    with zmq.Context() as context:
        poller, left = zmq.Poller(), count * SUBSCRIBERS
        sockets = [_socket(context, zmq.SUB) for _ in range(SUBSCRIBERS)]
        for each in sockets:
            each.setsockopt(zmq.SUBSCRIBE, b"")
            each.connect(f"tcp://127.0.0.1:{port}")
            poller.register(each, zmq.POLLIN)
        yield None
        while left:
            for each, _ in poller.poll():
                left -= _received(each)
        yield None
        for each in sockets:
            each.close()


def _received(socket: Any) -> int:
    """Read all that is there."""
    got = 0
    try:
        while True:
            assert len(socket.recv(zmq.NOBLOCK)) == SIZE
            got += 1
    except zmq.Again:
        return got


SIDES: dict[str, dict[str, Steps]] = {
    "transient": {"produce": transient_produce, "consume": transient_consume},
    "fanout": {"produce": fanout_produce, "consume": fanout_consume},
}


if __name__ == "__main__":
    play_steps(SIDES[sys.argv[1]][sys.argv[2]])
