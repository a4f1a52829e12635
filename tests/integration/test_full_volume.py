"""A real volume that is full: 150 MB with the default layout, where two files of the journal are nearly all of it."""

import asyncio
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import wherry
from wherry import DiskFull
from wherry.journal.disk.real_files import RealFiles

VOLUME = 150 << 20
BODY = os.urandom(60_000)
BATCH = [BODY] * 16


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Mount a file system of its own; where mounting is not allowed, use a folder with a quota."""
    made = tmp_path / "volume"
    made.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={VOLUME}", "tmpfs", os.fspath(made)]
    if subprocess.run(mount, check=False, capture_output=True).returncode == 0:
        try:
            yield made
        finally:
            subprocess.run(["umount", "-l", os.fspath(made)], check=True)
        return
    with_quota(monkeypatch, made)
    yield made


def with_quota(monkeypatch: pytest.MonkeyPatch, made: Path) -> None:
    def free(files: RealFiles) -> int:
        return VOLUME - sum(path.stat().st_size for path in made.rglob("*") if path.is_file())

    def claim(files: RealFiles, size: int) -> None:
        if size > free(files):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    allocate, put = RealFiles._preallocate, RealFiles._put

    def allocated(files: RealFiles, path: str, size: int, recycled: str | None) -> int:
        claim(files, size if recycled is None else size - (files.root / recycled).stat().st_size)
        return allocate(files, path, size, recycled)

    def written(files: RealFiles, path: str, parts: list[bytes]) -> None:
        claim(files, sum(len(part) for part in parts))
        put(files, path, parts)

    monkeypatch.setattr(RealFiles, "free_bytes", free)
    monkeypatch.setattr(RealFiles, "_preallocate", allocated)
    monkeypatch.setattr(RealFiles, "_put", written)


async def fill(broker) -> int:
    for count in range(1_000):
        try:
            await broker.publish("t", BATCH)
        except DiskFull:
            return count * len(BATCH)
    raise AssertionError("the volume never filled up")


async def drain(broker) -> int:
    drained = 0
    async with await broker.consumer("t", "s") as consumer:
        while len(got := await consumer.pull(200)):
            drained += len(got)
            await got.ack()
    return drained


async def crash(broker) -> None:
    """Leave the directory as a killed process leaves it."""
    broker._background.cancel()
    await asyncio.gather(broker._background, return_exceptions=True)
    broker.shard.writer._file.close()
    broker.shard.files.unlock()


@pytest.mark.rows("K15")
def test_a_full_volume_takes_messages_again_once_they_are_consumed_also_after_a_crash(volume):
    async def main():
        async with wherry.open(volume / "data") as broker:
            await broker.create_topic("t", payload_bytes_max=1 << 16)
            await broker.subscribe("t", "s")
            taken = await fill(broker)
            assert taken > 1_000
            assert await drain(broker) == taken
            assert await fill(broker) > taken / 2
            drained = await drain(broker)
            assert drained > taken / 2
            await fill(broker)
            await crash(broker)
        async with wherry.open(volume / "data") as broker:
            assert await drain(broker) > taken / 2
            assert await fill(broker) > taken / 2

    asyncio.run(main())


@pytest.mark.rows("K15")
def test_others_may_fill_the_volume_and_free_it_again(volume):
    async def main():
        async with wherry.open(volume / "data") as broker:
            await broker.create_topic("t", payload_bytes_max=1 << 16)
            await broker.subscribe("t", "s")
            await broker.publish("t", BATCH)
            while not (volume / "data" / "reserve").exists():  # noqa: ASYNC110  a broker sets it aside first
                await asyncio.sleep(0.01)
            other = volume / "other"
            assert broker.shard.files is not None
            with other.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, broker.shard.files.free_bytes())
            first = await fill(broker)
            assert await drain(broker) == first + len(BATCH)
            second = await fill(broker)
            assert second > first / 2, "consumed, it is room, though others have all that was free"
            other.unlink()
            third = 0
            for _ in range(30):
                third += await fill(broker)
                if third > first / 2:
                    break
                await asyncio.sleep(0.2)  # a disk that was full is asked again after a second
            assert await drain(broker) == second + third > second

    asyncio.run(main())
