"""ZeroMQ: DEALER and ROUTER of pyzmq in plain loops, which are faster than its asyncio face."""

from __future__ import annotations

import time

import zmq

from bench.service.side import BODY, Run


def provide(port: int) -> None:
    socket = zmq.Context().socket(zmq.ROUTER)
    socket.bind(f"tcp://127.0.0.1:{port}")
    while True:
        socket.send_multipart(socket.recv_multipart())


def call(port: int, count: int, under_way: int) -> Run:
    socket = zmq.Context().socket(zmq.DEALER)
    socket.connect(f"tcp://127.0.0.1:{port}")
    run, began = Run(), dict[bytes, float]()

    def send(number: int) -> None:
        key = b"%d" % number
        began[key] = time.perf_counter()
        socket.send_multipart((key, BODY))

    def receive() -> None:
        key, _ = socket.recv_multipart()
        run.took(time.perf_counter() - began.pop(key))

    for number in range(200):
        send(number)
        receive()
    run.begin()
    for number in range(under_way):
        send(number)
    for number in range(under_way, count):
        receive()
        send(number)
    for _ in range(under_way):
        receive()
    return run.end()
