"""kill -9 of a real process under load, again and again: nothing confirmed is lost, nothing acked comes back."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

import wherry

WORKER = Path(__file__).with_name("worker.py")


PATIENCE_S = 60


def one_life(path, life, least, seconds):
    """Start a worker, kill it a moment after it reported `least` lines, and return the whole lines it had written.

    Lines and not seconds make a life: on a slow disk the first confirmed publish may come late.
    """
    process = subprocess.Popen([sys.executable, WORKER, path, str(life)], stdout=subprocess.PIPE)
    pipe = process.stdout
    assert pipe is not None
    try:
        assert pipe.readline() == b"open\n"
        os.set_blocking(pipe.fileno(), False)
        written = bytearray()
        until = time.monotonic() + PATIENCE_S
        while written.count(b"\n") < least:
            assert time.monotonic() < until, f"life {life} reported less than {least} lines: {written!r}"
            time.sleep(0.002)
            written += pipe.read() or b""
        time.sleep(seconds)
    finally:
        process.send_signal(signal.SIGKILL)
    process.wait()
    os.set_blocking(pipe.fileno(), True)
    written += pipe.read()
    pipe.close()
    return [line.decode().split() for line in written.split(b"\n")[:-1]]


async def drain(path):
    names = []
    async with wherry.open(path) as broker, await broker.consumer("jobs", "workers") as consumer:
        while got := (await consumer.pull(1_000)).payloads():
            names += [payload.decode() for payload in got]
    return names


@pytest.mark.rows("A15", "A16", "G1", "G20", "D13")
@pytest.mark.parametrize("lives", [6, pytest.param(50, marks=pytest.mark.long)])
def test_kills_lose_nothing_and_bring_nothing_back(tmp_path, lives):
    random = Random(7)
    published: set[str] = set()
    acking: set[str] = set()
    acked: set[str] = set()
    for life in range(lives):
        for words in one_life(tmp_path / "data", life, random.randrange(16), random.uniform(0, 0.05)):
            if words[0] == "published":
                first, count = int(words[2]), int(words[3])
                published |= {f"{words[1]}/{number}" for number in range(first, first + count)}
            elif words[0] == "acking":
                back = acked.intersection(words[1:])
                assert not back, f"acked before, and handed out again in life {life}: {sorted(back)[:5]}"
                acking.update(words[1:])
            else:
                acked.update(words[1:])
    left = asyncio.run(drain(tmp_path / "data"))
    assert len(published) > lives, "hardly anything was published"
    assert acked, "the consumers never got anywhere"
    assert len(set(left)) == len(left), "a message waits twice"
    assert not acked.intersection(left), "acked, and waits again"
    lost = published - acking - set(left)
    assert not lost, f"{len(lost)} of {len(published)} confirmed messages are lost: {sorted(lost)[:5]}"
