"""A short tour of the queue, in process: what `wherry tour` shows.

Every step is a small function. The tour prints the function's own source between its docstring and its `return`, so
that the code shown is the code that ran; the returned value is the answer printed below.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pyarrow as pa

import wherry
from wherry.broker.broker import Broker
from wherry.broker.calls.consumer import Consumer

MANY = 200_000
ROWS = 1_000
SIZE = 256
IN_FLIGHT = 8

NEXT = """\
What to try next

  wherry serve           the same queue as a service, for every program on this machine
  README.md              the first message from the shell, from Python and over HTTP
  docs/recipes.md        a short program for most of what you saw
  docs/semantics.md      what exactly happens: orders, leases, retries, bounds, restarts
  ARCHITECTURE.md        how it works inside, and where to begin reading
  make sim SEEDS=100     the same code on a simulated disk that tears writes and loses power
  make bench             the figures of your machine, each with what it is measured against
"""


async def publish(broker: Broker) -> str:
    """Publish an Arrow batch to a topic that a subscription reads. The answer means that the messages are on disk."""
    await broker.create_topic("jobs")
    await broker.subscribe("jobs", "workers", retry=wherry.Retry(attempts=2, first_ms=300))
    batch = pa.record_batch({"payload": [b"cat.png", b"dog.png", b"broken.png"], "key": ["ann", "bob", "ann"]})
    sent = await broker.publish("jobs", batch)
    return f"ids {', '.join(sent.ids())}: partition, dash, offset"


async def settle(broker: Broker) -> str:
    """Pull messages on a lease, and settle them: all at once, or row by row."""
    worker = await broker.consumer("jobs", "workers")
    got = await worker.pull(10)
    await got.ack([0, 1])
    await got.nack([2], error="not a picture")
    await worker.close()
    return f"pulled {got.payloads()}: two are done, one failed and waits out its back-off"


async def bury(broker: Broker) -> str:
    """Fail the last attempt of a message, which came back after its back-off: it is a dead letter now, kept whole."""
    async with await broker.consumer("jobs", "workers") as worker:
        got = await worker.pull(10, wait_ms=3_000)
        await got.nack(error="still not a picture")
    dead = (await broker.dead_letters("jobs")).to_pylist()[0]
    return f"{dead['payload']}: {dead['reason']}, the last one: {dead['error']!r}"


async def redrive(broker: Broker) -> str:
    """Send dead letters back once their cause is mended: they wait again, with no attempts counted."""
    count = await broker.redrive("jobs", wherry.DeadFilter(reason="not a picture"), by="ann")
    async with await broker.consumer("jobs", "workers") as worker:
        got = await worker.pull(10)
        await got.ack()
    return f"{count} redriven, pulled {got.payloads()} on attempt {got.messages()[0].attempt}, done"


async def prioritise(broker: Broker) -> str:
    """Pull from a priority topic: the smallest of 0..65535 comes first, however late it was published."""
    await broker.create_topic("alarms", order="priority")
    await broker.subscribe("alarms", "pager")
    await broker.publish("alarms", pa.record_batch({"payload": [b"dusty", b"warm", b"FIRE"], "priority": [900, 50, 0]}))
    async with await broker.consumer("alarms", "pager") as pager:
        got = await pager.pull(10)
        await got.ack()
    return f"pulled {got.payloads()}"


async def schedule(broker: Broker) -> str:
    """Publish to a timeline topic: a message comes at its due time, and until then it can be moved or cancelled."""
    soon, later = (int(time.time() * 1000) + ms for ms in (400, 3_600_000))
    await broker.create_topic("mails", order="timeline")
    await broker.subscribe("mails", "sender")
    mails = [wherry.Message(payload=text, id=text.decode(), due_ms=later) for text in (b"hi", b"bye")]
    await broker.publish("mails", mails)
    listed = await broker.scheduled("mails", "sender")
    await broker.amend("mails", "hi", due_ms=soon, version=1)
    await broker.cancel("mails", "bye")
    async with await broker.consumer("mails", "sender") as sender:
        early = await sender.pull(10)
        got = await sender.pull(10, wait_ms=3_000)
        await got.ack()
    late_ms = int(time.time() * 1000) - soon
    return f"{listed.num_rows} listed, {len(early)} early, then {got.payloads()}, {late_ms} ms after it was due"


async def commit(broker: Broker) -> str:
    """Take from one topic and put into another in a transaction, both or neither. A second commit does nothing."""
    await broker.create_topic("thumbnails")
    await broker.publish("jobs", [b"bird.png"])
    async with await broker.consumer("jobs", "workers") as worker:
        got = await worker.pull(1)
        await broker.stage("step-1", "thumbnails", [b"bird.thumb.png"])
        await got.stage_ack("step-1")
        before = broker.stats("thumbnails").messages
        first, again = await broker.commit("step-1"), await broker.commit("step-1")
    return (
        f"{before} visible before the commit, {broker.stats('thumbnails').messages} after; repeated: {first == again}"
    )


async def publish_and_die(path: str) -> None:
    """Publish, get the confirm, and be killed by SIGKILL: no close, no last write."""
    async with wherry.open(path) as broker:
        await broker.create_topic("orders")
        await broker.subscribe("orders", "shop")
        await broker.publish("orders", [b"order %d" % number for number in range(5_000)])
        os.kill(os.getpid(), signal.SIGKILL)


async def reopen(path: str) -> str:
    """Open the same directory in the next process, and go on."""
    async with wherry.open(path) as broker, await broker.consumer("orders", "shop") as shop:
        got = await shop.pull(10_000)
    return f"{len(got):,} messages are there, from {got.payloads()[0]!r} to {got.payloads()[-1]!r}"


async def look(broker: Broker) -> str:
    """Browse and search: nothing below changes a count, an order or a lease. Answers are Arrow batches."""
    await broker.publish("jobs", [wherry.Message(payload=b"fox.png", key="ann", headers={"size": "big"})])
    page = await broker.browse("jobs", limit=100)
    found = await broker.search("jobs", key="ann", headers={"size": "big"})
    return f"{page.num_rows} in the topic, found {found.column('payload').to_pylist()} by key and header"


async def count(broker: Broker) -> str:
    """Count what waits, by subscription."""
    rows = [each for topic in broker.topics() for each in broker.stats(topic.name).subscriptions]
    names = ("topic", "name", "ready", "leased", "scheduled", "dead", "lag")
    cells = [names, *(tuple(str(getattr(row, name)) for name in names) for row in rows)]
    return "\n".join("".join(cell.ljust(11) for cell in line).rstrip() for line in cells)


async def consume(worker: Consumer, left: int) -> None:
    """Pull and ack, with a few acks under way at any time."""
    acks: list[asyncio.Task[None]] = []
    while left:
        got = await worker.pull(ROWS, wait_ms=None)
        left -= len(got)
        acks.append(asyncio.ensure_future(got.ack()))
        if len(acks) >= IN_FLIGHT:
            await acks.pop(0)
    await asyncio.gather(*acks)


async def publish_batches(broker: Broker, batch: pa.RecordBatch, calls: int) -> None:
    """Publish as one of several producers, each of which waits for its confirm before the next call."""
    for _ in range(calls):
        await broker.publish("flow", batch)


async def hurry(broker: Broker) -> str:
    """Measure this machine: publish, pull and ack, where every confirm and every ack waits for its sync.

    A temporary directory may be in memory, where a sync costs nothing: name a directory, or run `make bench`.
    """
    await broker.create_topic("flow")
    await broker.subscribe("flow", "reader")
    batch = pa.record_batch({"payload": [os.urandom(SIZE) for _ in range(ROWS)]})
    producers = [publish_batches(broker, batch, MANY // ROWS // IN_FLIGHT) for _ in range(IN_FLIGHT)]
    start = time.perf_counter()
    await asyncio.gather(consume(await broker.consumer("flow", "reader"), MANY), *producers)
    seconds = time.perf_counter() - start
    return f"{MANY:,} messages of {SIZE} bytes in {seconds:.2f} s: {MANY / seconds:,.0f} a second, in and out"


Step = tuple[str, Callable[[Broker], Awaitable[str]]]

BEFORE: tuple[Step, ...] = (
    ("Publish a batch", publish),
    ("Pull and ack", settle),
    ("Retry, then a dead letter", bury),
    ("Redrive", redrive),
    ("Priority", prioritise),
    ("Scheduled messages", schedule),
    ("A transaction", commit),
    ("Browse and search", look),
    ("Stats", count),
)


def shown(step: Callable[..., object]) -> str:
    """Return the source of a step without its signature, its docstring and its return."""
    lines = textwrap.dedent(inspect.getsource(step)).splitlines()
    function = ast.parse("\n".join(lines)).body[0]
    assert isinstance(function, ast.AsyncFunctionDef)
    first, last = function.body[1], function.body[-1]
    end = last.lineno - 1 if isinstance(last, ast.Return) else last.end_lineno
    return textwrap.dedent("\n".join(lines[first.lineno - 1 : end]))


def show_step(title: str, step: Callable[..., object]) -> None:
    """Print the title of a step, its docstring and its code."""
    print(f"\n{title}\n{'-' * len(title)}")
    print(textwrap.fill(inspect.getdoc(step) or "", 110), end="\n\n")
    print(textwrap.indent(shown(step), "    "), end="\n\n", flush=True)


def answer(text: str) -> None:
    """Print the answer of a step."""
    print("  => " + text.replace("\n", "\n     "), flush=True)


async def crash(path: str) -> None:
    """Run both halves of the crash: the first in a process of its own."""
    show_step("A crash", publish_and_die)
    program = "import asyncio, sys, wherry.cli.tour as tour; asyncio.run(tour.publish_and_die(sys.argv[1]))"
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", program, path)
    answer(f"the process ended with {await child.wait()} (-9 is SIGKILL)")
    show_step("And after it", reopen)
    answer(await reopen(path))


async def tour(folder: Path) -> None:
    """Run all steps one after the other."""
    print(f"Wherry, a message queue in your process. Its data is in {folder} for now.")
    async with wherry.open(folder / "tour") as broker:
        for title, step in BEFORE:
            show_step(title, step)
            answer(await step(broker))
    await crash(str(folder / "crash"))
    async with wherry.open(folder / "flow") as broker:
        show_step("Throughput", hurry)
        answer(await hurry(broker))


def take(given: Path | None) -> int:
    """Run the tour in a temporary directory, or in one that was named and stays; return the exit code."""
    try:
        if given is None:
            with tempfile.TemporaryDirectory(prefix="wherry-tour-") as folder:
                asyncio.run(tour(Path(folder)))
        else:
            asyncio.run(tour(given))
    except KeyboardInterrupt:
        print("\nStopped. Nothing is left behind." if given is None else f"\nStopped. {given} is kept.")
        return 130
    print(f"\n{NEXT}", end="")
    if given is not None:
        print(f"\n{given} is kept; wherry.open({str(given / 'tour')!r}) opens the tour's topics again.")
    return 0
