"""Runs a broker, a load, a streaming pipeline and consumers of its output, all for a minute.

The broker is a process of its own with a temporary folder and free ports; all of it is removed afterwards.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from wherry.client.client import Client, connect
from wherry.model.errors import Unavailable
from wherry.spark.pipelines.run.address import BrokerAddress
from wherry.spark.pipelines.run.figures import QueryFigures
from wherry.spark.pipelines.run.run import CONF, Pipeline
from wherry.spark.pipelines.run.session import opened
from wherry.spark.pipelines.run.spec import read

HOST = "127.0.0.1"
ORDERS, LARGE, BAD = "orders", "orders.large", "orders.bad"
TICK_S = 0.1
DRAIN_S = 30.0
"""How long to wait for the rest to be read, once nothing more is published."""
BROKEN_OF = 100
"""One order of this many cannot be decoded."""
CITIES = ("Bonn", "Oslo", "Lyon", "Graz", "Turin")

PIPELINE = f"""\
name = "demo"

[sources.orders]
topic = "{ORDERS}"
payload = "json"
schema = "number LONG, city STRING, amount DOUBLE"
dead = "{BAD}"

[steps.large]
sql = '''
SELECT value.city AS key, value.number, round(value.amount * 1.2, 2) AS total
FROM orders WHERE value.amount > 50
'''

[sinks.large]
from = "large"
topic = "{LARGE}"
"""


class Totals(NamedTuple):
    """The totals at one time."""

    at_s: float
    published: int
    piped: int
    bad: int
    consumed: int
    lag: int


@dataclass
class Counts:
    """What load and consumers have done so far."""

    published: int = 0
    consumed: int = 0
    warm: bool = False
    """Whether the pipeline has done its first micro-batch: the load begins then."""
    ending: bool = False
    """Whether the time is up: nothing more is published, and the rest is read."""
    fault: BaseException | None = None


@dataclass
class Story:
    """The result of a demo."""

    moments: list[Totals]
    figures: list[QueryFigures]
    counts: Counts
    spark_s: float
    """How long Spark took to start."""


@contextmanager
def broker(folder: Path) -> Iterator[tuple[str, str]]:
    """Run a broker for the demo; yield its addresses of HTTP and of Flight."""
    http, flight = _free_ports(2)
    command = [sys.executable, "-m", "wherry", "serve", "--port", str(http), "--data", str(folder / "data")]
    with (folder / "broker.log").open("wb") as log:
        environment = {**os.environ, "WHERRY_FLIGHT_PORT": str(flight)}
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        _await(process, http, folder / "broker.log")
        yield f"http://{HOST}:{http}", f"grpc://{HOST}:{flight}"
    finally:
        process.terminate()
        process.wait(30)


def demo(folder: Path, *, seconds: float, rate: int, master: str, report: Callable[[str, Story | None], None]) -> Story:
    """Run the demo; call `report` with what happens, and twice a second once the pipeline runs."""
    counts = Counts()
    (folder / "demo.toml").write_text(PIPELINE)
    report("starting a broker", None)
    with broker(folder) as (http, flight), _traffic(http, rate, counts):
        address, began = BrokerAddress(flight), [time.monotonic()]
        report("starting Spark", None)
        with opened("wherry demo", master, address, CONF) as spark:
            pipeline = Pipeline(spark, read(folder / "demo.toml"), address, consume=True)
            story = Story([], pipeline.figures, counts, time.monotonic() - began[0])

            def look(figures: list[QueryFigures]) -> None:
                if counts.fault is not None:
                    raise counts.fault
                story.figures = figures
                if not counts.warm:
                    counts.warm, began[0] = bool(figures[0].rows_in), time.monotonic()
                if counts.warm:
                    story.moments.append(_moment(time.monotonic() - began[0], figures, counts))
                report(
                    "running" if counts.warm else "waiting for the first micro-batch", story if counts.warm else None
                )

            pipeline.run(look, is_over=lambda: _is_over(story, seconds))
    return story


def _is_over(story: Story, seconds: float) -> bool:
    """Return whether the demo is over: the time is up and all messages were read, or waited for too long.

    The time begins with the first micro-batch, since that of a new session is slow.
    """
    at_s = story.moments[-1].at_s if story.moments else -1.0
    if at_s < seconds:
        return False
    counts, large = story.counts, story.figures[0]
    was_ending, counts.ending = counts.ending, True  # the next call counts messages that are still on their way
    read = large.rows_in >= counts.published and not any(each.lag for each in story.figures)
    return at_s >= seconds + DRAIN_S or (was_ending and read and counts.consumed >= large.rows_out)


def _moment(at_s: float, figures: list[QueryFigures], counts: Counts) -> Totals:
    large = figures[0]
    bad = sum(each.rows_out for each in figures[1:])
    return Totals(at_s, counts.published, large.rows_in, bad, counts.consumed, large.lag or 0)


# ------------------------------------------------------------------------------------------------- load and consumers


@contextmanager
def _traffic(url: str, rate: int, counts: Counts) -> Iterator[None]:
    """Publish and consume in a thread of its own until the end of the `with`."""
    ready, over = threading.Event(), threading.Event()

    def run() -> None:
        try:
            asyncio.run(_both(url, rate, counts, ready, over))
        except BaseException as fault:  # noqa: BLE001, RUF100 - raised again by the thread that shows
            counts.fault = fault
            ready.set()

    thread = threading.Thread(target=run, name="traffic", daemon=True)
    thread.start()
    ready.wait()
    try:
        if counts.fault is not None:
            raise counts.fault
        yield
    finally:
        over.set()
        thread.join(30)


async def _both(url: str, rate: int, counts: Counts, ready: threading.Event, over: threading.Event) -> None:
    async with connect(url) as client:
        for topic in (ORDERS, LARGE, BAD):
            await client.create_topic(topic, partitions=2 if topic == ORDERS else 1)
        await client.subscribe(LARGE, "shipping")
        ready.set()
        consumers = [asyncio.create_task(_consume(client, counts)) for _ in range(2)]
        try:
            await _publish(client, rate, counts, over)
        finally:
            for task in consumers:
                task.cancel()
            await asyncio.gather(*consumers, return_exceptions=True)


async def _publish(client: Client, rate: int, counts: Counts, over: threading.Event) -> None:
    """Publish at an even pace; orders that are late are sent at once."""
    chance, began = random.Random(7), 0.0
    while not over.is_set():
        due = BROKEN_OF - counts.published  # a few before the pipeline is warm
        if counts.warm:
            began = began or time.monotonic()
            due += int((time.monotonic() - began) * rate)
        if due > 0 and not counts.ending:
            orders = [_order(chance, counts.published + n) for n in range(min(due, 5_000))]
            keys = [chance.choice(CITIES) for _ in orders]
            await client.publish(ORDERS, pa.record_batch({"payload": pa.array(orders, pa.binary()), "key": keys}))
            counts.published += len(orders)
        await asyncio.sleep(TICK_S)


def _order(chance: random.Random, number: int) -> bytes:
    if number % BROKEN_OF == 0:
        return b'{"number": ' + str(number).encode()
    order = {"number": number, "city": chance.choice(CITIES), "amount": round(chance.uniform(1, 100), 2)}
    return json.dumps(order).encode()


async def _consume(client: Client, counts: Counts) -> None:
    async with client.consumer(LARGE, "shipping") as consumer:
        async for batch in consumer.consume_batches():
            await batch.ack()
            counts.consumed += len(batch)


# ---------------------------------------------------------------------------------------------------------- processes


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((HOST, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection((HOST, port), 1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                raise Unavailable(f"the broker did not start: {log.read_text(errors='replace')[-500:]}") from None
            time.sleep(TICK_S)
