"""A node stops at a signal, whatever clients of Flight do."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import flight

from tests.integration.flights import Flights, Pushed, payloads

PATIENCE_S = 20


def pushes(flights: Flights) -> object:
    stream = Pushed(flights, topic="t", subscription="s")
    stream.send(credit=5)
    return stream


def pushes_nothing(flights: Flights) -> object:
    return Pushed(flights, topic="t", subscription="s")


def writes(flights: Flights) -> object:
    writer, reader = flights.client.do_put(flight.FlightDescriptor.for_path("t"), payloads(b"x").schema)
    writer.write_batch(payloads(b"x"))
    reader.read()
    return writer, reader


def writes_nothing(flights: Flights) -> object:
    return flights.client.do_exchange(flight.FlightDescriptor.for_command(b"{}"))


@pytest.mark.parametrize("stay", [pushes, pushes_nothing, writes, writes_nothing])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_client_that_does_not_hang_up_keeps_no_node(
    tmp_path: Path, stay: Callable[[Flights], object], number: signal.Signals
):
    command = [sys.executable, "-m", "wherry.node", "--data", str(tmp_path / "data"), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})
    assert process.stdout is not None
    try:
        printed = ""
        while (found := re.search(r"grpc://[0-9.:]+", printed)) is None:
            printed += process.stdout.readline()
        flights = Flights(found[0])
        flights.act("create-topic", name="t")
        flights.act("subscribe", topic="t", name="s")
        kept = stay(flights)
        process.send_signal(number)
        _, log = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0, log
    assert [line for line in log.splitlines() if '"stopped"' in line], "all is written, and the log is whole"
    del kept
