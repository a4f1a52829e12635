"""Every wire as a door: a credential goes in, and out comes whether it was let in, and every byte of a refusal."""

from __future__ import annotations

import base64
import http.client
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa
from pyarrow import flight

from tests.amqp.raw import CLOSE, HEADER, START, START_OK, TUNE, long, short
from tests.amqp.raw import Raw as AmqpRaw
from tests.stomp.raw import Raw as StompRaw
from wherry.node.node import Node

PATIENCE_S = 60
FLIGHT_TOKEN_CHARS = 6_900
"""Longer ones are refused by their length: gRPC drops some calls with headers above 8 KB before a server sees them."""


class Answer(NamedTuple):
    """What a client of a wire got."""

    is_in: bool
    text: str


def over_http(node: Node, token: str, path: str = "/v1/topics") -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=PATIENCE_S)
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return Answer(answer.status == 200, f"{answer.status} {answer.getheader('WWW-Authenticate')} {body}")


def over_management(node: Node, token: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=PATIENCE_S)
    word = base64.b64encode(f"any:{token}".encode()).decode()
    connection.request("GET", "/api/whoami", headers={"Authorization": f"Basic {word}"})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return Answer(answer.status == 200, f"{answer.status} {answer.getheader('WWW-Authenticate')} {body}")


def over_native(node: Node, token: str) -> Answer:
    with socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE_S) as plain:
        lines = ["GET /v1/wire HTTP/1.1", "Host: localhost", "Connection: Upgrade", "Upgrade: wherry/1"]
        plain.sendall("\r\n".join([*lines, f"Authorization: Bearer {token}", "", ""]).encode())
        got = b""
        while b"\r\n\r\n" not in got or not got.startswith(b"HTTP/1.1 101"):
            more = plain.recv(1 << 16)
            got += more
            if not more or b"}" in got:
                break
    kept = [line for line in got.decode("latin-1").split("\r\n") if not line.startswith("Date:")]
    return Answer(got.startswith(b"HTTP/1.1 101"), "\n".join(kept))


def over_flight(node: Node, token: str) -> Answer:
    headers = [(b"authorization", f"Bearer {token}".encode())]
    options = flight.FlightCallOptions(timeout=PATIENCE_S, headers=headers)
    with flight.connect(node.flight_url) as client:
        try:
            list(client.list_flights(options=options))
        except (flight.FlightError, pa.ArrowException) as fault:
            return Answer(False, f"{type(fault).__name__} {fault}")
    return Answer(True, "")


def over_amqp(node: Node, token: str) -> Answer:
    with AmqpRaw(node.amqp_url or "") as raw:
        answer = logged_in(raw, token)
    return answer


def logged_in(raw: AmqpRaw, token: str) -> Answer:
    raw.send(HEADER)
    raw.expect(START)
    asks = short("authentication_failure_close") + b"t\x01"
    properties = long(short("capabilities") + b"F" + long(asks))
    raw.call(0, START_OK, properties + short("PLAIN") + long(b"\0any\0" + token.encode()) + short("en_US"))
    found = raw.next()
    assert found.method in (TUNE, CLOSE)
    return Answer(found.method == TUNE, found.arguments.decode("latin-1"))


def over_stomp(node: Node, token: str) -> Answer:
    assert node.stomp_port is not None
    with StompRaw(node.stomp_port, patience_s=PATIENCE_S) as raw:
        raw.send("CONNECT", accept_version="1.2", host="/", login="any", passcode=token)
        found = raw.next()
        return Answer(found.command == "CONNECTED", f"{sorted(found.headers.items())} {found.body.decode()}")


DOORS: dict[str, Callable[[Node, str], Answer]] = {
    "http": over_http,
    "management": over_management,
    "native": over_native,
    "flight": over_flight,
    "amqp": over_amqp,
    "stomp": over_stomp,
}


def until(true: Callable[[], object], what: str, within_s: float = PATIENCE_S) -> None:
    """Wait for what comes with time."""
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, f"it does not come: {what}"
        time.sleep(0.02)


def is_cut_off(plain: socket.socket) -> bool:
    """Return whether the server ends a connection, whatever it sends before."""
    plain.settimeout(PATIENCE_S)
    with suppress(ConnectionError):
        while plain.recv(1 << 16):
            pass
    return True
