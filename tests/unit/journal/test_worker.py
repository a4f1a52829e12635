"""The thread behind durable writes: it writes in order, to the end, and its faults reach the callers that wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from wherry.journal.worker import Worker


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker("test")
    yield made
    made.stop()


def test_work_is_done_in_order_in_another_thread(worker: Worker) -> None:
    seen: list[tuple[int, int]] = []

    def note(number: int) -> None:
        seen.append((number, threading.get_ident()))

    async def work() -> None:
        worker.post(partial(note, 0))
        await asyncio.gather(*(worker.do(partial(note, number)) for number in range(1, 20)))

    asyncio.run(work())
    assert [number for number, _ in seen] == list(range(20))
    assert {thread for _, thread in seen} != {threading.get_ident()}


def test_a_fault_reaches_the_caller_that_waits_and_the_worker_continues(worker: Worker) -> None:
    def fail() -> None:
        raise OSError("no")

    async def work() -> None:
        worker.post(fail)
        with pytest.raises(OSError, match="no"):
            await worker.do(fail)
        await worker.do(lambda: None)

    asyncio.run(work())


def test_work_is_done_even_if_no_caller_waits_any_more(worker: Worker) -> None:
    begin, done = threading.Event(), threading.Event()

    async def work() -> None:
        first = asyncio.ensure_future(worker.do(begin.wait))
        second = asyncio.ensure_future(worker.do(done.set))
        for waiter in (first, second):
            waiter.cancel()
        begin.set()
        await worker.do(lambda: None)

    asyncio.run(work())
    assert done.is_set()


def test_stop_waits_for_the_rest_also_when_the_loop_is_gone() -> None:
    begin = threading.Event()
    seen: list[int] = []
    worker = Worker("test")

    async def work() -> None:
        worker.post(begin.wait)
        _ = worker.do(lambda: seen.append(1))

    asyncio.run(work())
    begin.set()
    worker.stop()
    assert seen == [1]
