"""Flushes figures to sinks, each in a thread of its own: a sink that hangs or fails affects neither broker nor others.

A sink that has not finished a flush misses the next. Its failure is logged once, and once more when it works again; in
between it is opened again at every flush.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from queue import Full, Queue
from threading import Thread

from wherry.broker.metrics.metrics import Metrics
from wherry.node.sinks.sink import MetricSample, Named, samples_of

CLOSE_S = 5.0
"""Seconds for the last flush of a sink."""

_log = logging.getLogger("wherry.metrics")


class Outlet:
    """One sink and its thread."""

    def __init__(self, named: Named) -> None:
        self._named = named
        self._queue: Queue[Sequence[MetricSample] | None] = Queue(maxsize=1)
        self._is_open = self._is_failing = False
        self._thread = Thread(target=self._run, name=f"wherry sink {named.name}", daemon=True)
        self._thread.start()

    def give(self, samples: Sequence[MetricSample] | None) -> bool:
        """Flush these samples, or stop for None; return False if the sink has not finished the last ones."""
        with suppress(Full):
            self._queue.put_nowait(samples)
            return True
        return False

    def join(self) -> None:
        """Wait a bounded time for the thread to end."""
        with suppress(Full):
            self._queue.put(None, timeout=CLOSE_S)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (samples := self._queue.get()) is not None:
            try:
                self._flush(samples)
            except Exception as fault:
                self._failed(fault)
            else:
                self._worked()
        self._close()

    def _flush(self, samples: Sequence[MetricSample]) -> None:
        if not self._is_open:
            self._named.sink.open(self._named.options)
            self._is_open = True
        self._named.sink.flush(samples)

    def _failed(self, fault: Exception) -> None:
        if not self._is_failing:
            extra = {"sink": self._named.name}
            _log.warning("a sink failed, and is tried again at every flush: %r", fault, extra=extra)
        self._is_failing = True
        self._close()

    def _worked(self) -> None:
        if self._is_failing:
            _log.info("a sink works again", extra={"sink": self._named.name})
        self._is_failing = False

    def _close(self) -> None:
        self._is_open = False
        with suppress(Exception):
            self._named.sink.close()


class Flusher:
    """All sinks of a node."""

    def __init__(self, metrics: Metrics, sinks: Sequence[Named], flush_s: float) -> None:
        self._metrics = metrics
        self._flush_s = flush_s
        self._outlets = [Outlet(named) for named in sinks]

    async def run(self) -> None:
        """Flush for ever."""
        while True:
            await asyncio.sleep(self._flush_s)
            await self.flush()

    async def flush(self) -> None:
        """Pass the current figures to every idle sink."""
        samples = samples_of(await self._metrics.families())
        for outlet in self._outlets:
            outlet.give(samples)

    async def close(self) -> None:
        """Flush a last time, then stop all sinks."""
        await self.flush()
        await asyncio.gather(*(asyncio.to_thread(outlet.join) for outlet in self._outlets))
