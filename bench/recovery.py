"""What a start costs for each entry of the journal, where that is the most: publishes of one message each."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import google_crc32c

import wherry
from bench.figure import Figure

SIZE = 100
AT_ONCE = 1_000

_FILL = """
import asyncio, os, sys
import wherry
from wherry.model.calls.publish import PublishOptions

async def main():
    async with wherry.open(sys.argv[1]) as broker:
        await broker.create_topic("bench")
        await broker.subscribe("bench", "reader")
        for _ in range(0, int(sys.argv[2]), {at_once}):
            for _ in range({at_once}):  # not by `publish`, which makes one entry of those that wait together
                position, _ = await broker.submit("bench", [os.urandom({size})], PublishOptions())
            await broker.stored(position)
        os._exit(0)  # a crash, not a clean close: the journal is to be replayed

asyncio.run(main())
"""


def singles(root: Path, count: int) -> list[Figure]:
    """Return microseconds for each entry until the broker serves, against reading and checking the journal's bytes."""
    path = root / "recovery-singles"
    fill = _FILL.format(size=SIZE, at_once=AT_ONCE)
    subprocess.run([sys.executable, "-c", fill, os.fspath(path), str(count)], check=True)
    start = time.perf_counter()
    for file in sorted((path / "journal").glob("0*.log")):
        google_crc32c.value(file.read_bytes())
    raw_us = (time.perf_counter() - start) / count * 1e6
    entry_us = asyncio.run(_reopen(path, count)) / count * 1e6
    unit = f"us per entry of {count:,} single publishes"
    return [Figure("core.recovery_singles", entry_us, unit, "reading and summing the file", raw_us)]


async def _reopen(path: Path, count: int) -> float:
    """Return seconds until it serves."""
    start = time.perf_counter()
    async with wherry.open(path) as broker:
        seconds = time.perf_counter() - start
        assert broker.stats("bench").subscriptions[0].ready == count
        return seconds
