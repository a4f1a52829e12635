"""The disk engine and `RealFiles` on a real directory."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import wherry
from tests.unit.journal.journals import append, bodies, numbered, reopened, small, written
from wherry.journal.disk import real_files
from wherry.journal.disk import space as disk_space
from wherry.journal.disk.disk import DiskEngine
from wherry.journal.disk.files import Bytes, File
from wherry.journal.disk.real_files import RealFiles
from wherry.model.errors import Closed, DiskFull, InUse, WriterFailed


def locked(root: Path, work: Callable[[RealFiles], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        files = RealFiles(root)
        files.lock()
        try:
            await work(files)
        finally:
            files.unlock()

    asyncio.run(run())


def found(root: Path, pattern: str) -> dict[str, os.stat_result]:
    return {path.name: path.stat() for path in root.glob(pattern)}


def test_many_small_files_and_openings(tmp_path: Path) -> None:
    async def run() -> None:
        chance = random.Random(1)
        groups = [[chance.randbytes(chance.randint(0, 1000)) for _ in range(chance.randint(1, 3))] for _ in range(30)]
        for begin in range(0, 30, 10):
            await written(RealFiles(tmp_path), groups[begin : begin + 10])
        assert await reopened(RealFiles(tmp_path)) == numbered(groups)
        assert len(found(tmp_path, "journal/0*.log")) > 5

    asyncio.run(run())


def test_full_size_entries_with_the_default_layout(tmp_path: Path) -> None:
    async def run() -> None:
        engine = DiskEngine(RealFiles(tmp_path), file_bytes=8 << 20, entry_bytes_max=6 << 20)
        writer = await engine.open()
        large = random.Random(2).randbytes(6 << 20)
        many = [large[n : n + 100] for n in range(0, 300_000, 100)]  # more parts than one call of the kernel takes
        await append(writer, large, b"small")
        await writer.append([many, [memoryview(large)[:10], pa.py_buffer(large).slice(5, 10)]], 2)
        expected = [large, b"small", large[:300_000], large[:10] + large[5:15]]
        assert await bodies(engine) == list(enumerate(expected, 1))
        await writer.close()
        assert (await engine.open()).last == 4

    asyncio.run(run())


def test_recycled_files_keep_their_blocks_and_lose_their_entries(tmp_path: Path) -> None:
    async def run() -> None:
        writer = await small(RealFiles(tmp_path)).open()
        inodes = set()
        for n in range(120):
            await append(writer, b"%3d" % n * 100)
            await writer.trim(writer.last - 20)
            inodes |= {entry.st_ino for entry in found(tmp_path, "journal/*.log").values()}
        await writer.close()
        assert len(inodes) <= 6
        kept = await reopened(RealFiles(tmp_path))
        assert kept == [(n + 1, b"%3d" % n * 100) for n in range(120)][kept[0][0] - 1 :]
        assert 20 <= len(kept) < 40

    asyncio.run(run())


def test_a_second_opening_is_refused_in_this_process_and_in_another(tmp_path: Path) -> None:
    async def run() -> None:
        writer = await small(RealFiles(tmp_path)).open()
        with pytest.raises(InUse, match=f"{tmp_path} is in use by process {os.getpid()}"):
            await small(RealFiles(tmp_path)).open()
        program = (
            "import pathlib; from wherry.journal.disk.real_files import RealFiles; RealFiles(pathlib.Path({!r})).lock()"
        )
        command = [sys.executable, "-c", program.format(str(tmp_path))]
        other = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        assert other.returncode == 1
        assert f"InUse: {tmp_path} is in use by process {os.getpid()}" in other.stderr
        await writer.close()
        other = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        assert other.returncode == 0, other.stderr
        await (await small(RealFiles(tmp_path)).open()).close()

    asyncio.run(run())


def test_what_a_killed_process_confirmed_is_there(tmp_path: Path) -> None:
    """Send `kill -9` in the middle of appending; each confirmed position was printed first."""
    program = """
import asyncio, pathlib, sys
from tests.unit.journal.journals import append, small
from wherry.journal.disk.real_files import RealFiles
async def run():
    writer = await small(RealFiles(pathlib.Path(sys.argv[1]))).open()
    while True:
        await append(writer, *[b'%08d' % (writer.last + 1 + n) for n in range(3)])
        await writer.trim(writer.last - 50)
        print(writer.last, flush=True)
asyncio.run(run())
"""
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout
        confirmed = [int(process.stdout.readline()) for _ in range(100)][-1]
        process.kill()
        confirmed = max([confirmed, *map(int, process.stdout.read().split())])
    kept = asyncio.run(reopened(RealFiles(tmp_path)))
    assert kept[-1][0] >= confirmed
    assert [body for _, body in kept] == [b"%08d" % position for position, _ in kept]


def test_long_work_is_done_beside_the_loop(tmp_path: Path) -> None:
    async def run() -> None:
        files = RealFiles(tmp_path)
        with pytest.raises(Closed):
            await files.compute(threading.get_ident)
        files.lock()
        assert await files.compute(threading.get_ident) != threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            await files.compute(lambda: 1 // 0)
        files.unlock()

    asyncio.run(run())


class FaultyFiles(RealFiles):
    """Refuses to make files while `full`; syncs fail while `sick`."""

    full = False
    sick = False

    async def preallocate(self, path: str, size: int, recycled: str | None = None) -> File:
        if self.full and recycled is None:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return FaultyFile(self, await super().preallocate(path, size, recycled))

    async def open(self, path: str) -> File:
        return FaultyFile(self, await super().open(path))


class FaultyFile:
    def __init__(self, files: FaultyFiles, file: File) -> None:
        self.path, self.size = file.path, file.size
        self._files, self._file = files, file

    async def write(self, offset: int, parts: Sequence[Bytes]) -> None:
        await self._file.write(offset, parts)
        self._check_health()

    def is_quick(self) -> bool:
        return self._file.is_quick()

    def write_at_once(self, offset: int, parts: Sequence[Bytes]) -> None:
        self._file.write_at_once(offset, parts)
        self._check_health()

    def _check_health(self) -> None:
        if self._files.sick:
            raise OSError(errno.EIO, "Input/output error")

    def close(self) -> None:
        self._file.close()


def test_a_full_disk_keeps_consuming_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_space, "RETRY_S", 0.02)

    async def run() -> None:
        files = FaultyFiles(tmp_path)
        writer = await small(files).open()
        files.full = True
        while writer.admit(200, essential=False) is None:
            await append(writer, bytes(200))
            await writer.make_room(200)
        assert writer.admit(200, essential=True) is None
        await append(writer, bytes(200))
        with pytest.raises(DiskFull):
            await writer.append([[bytes(1000)]], writer.last)
        files.full = False
        await asyncio.sleep(0.03)
        await writer.make_room(200)
        assert writer.admit(200, essential=False) is None
        await append(writer, bytes(1000))
        await writer.close()
        assert len(await reopened(RealFiles(tmp_path))) == writer.last

    asyncio.run(run())


def test_a_failed_sync_ends_the_writer_and_a_new_one_continues(tmp_path: Path) -> None:
    async def run() -> None:
        files = FaultyFiles(tmp_path)
        writer = await small(files).open()
        await append(writer, b"safe")
        files.sick = True
        with pytest.raises(WriterFailed, match="Input/output error"):
            await writer.append([[b"unsure"]], 1)
        files.sick = False
        with pytest.raises(WriterFailed, match="Input/output error"):
            await writer.append([[b"later"]], 1)
        await writer.close()
        assert await reopened(RealFiles(tmp_path)) == [(1, b"safe"), (2, b"unsure")]

    asyncio.run(run())


def test_preallocate_takes_real_space_and_cleans_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(files: RealFiles) -> None:
        file = await files.preallocate("a/b/one", 1 << 20)
        assert found(tmp_path, "a/b/*")["one"].st_blocks * 512 >= 1 << 20
        await file.write(100, [b"left"])
        file.close()
        with pytest.raises(Closed):
            await file.write(0, [b"x"])
        again = await files.preallocate("c/two", 1 << 19, recycled="a/b/one")
        assert again.size == 1 << 19
        assert (await files.read("c/two", 100, 4)).to_pybytes() == b"left"
        monkeypatch.setattr(os, "posix_fallocate", refuse)
        for recycled in (None, "c/two"):
            with pytest.raises(OSError, match="no room"):
                await files.preallocate("three", 1 << 20, recycled)
        again.close()
        assert await files.list() == {"c/two": 1 << 19}
        assert found(tmp_path, "**/*.partial") == {}

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    locked(tmp_path, work)


def test_put_read_list_remove(tmp_path: Path) -> None:
    async def work(files: RealFiles) -> None:
        await files.put("x/y", [b"ab", b"", memoryview(b"cd"), pa.py_buffer(b"ef")])
        await files.put("x/y", [b"abcdefg"])
        await files.put("a", [])
        assert await files.list() == {"a": 0, "x/y": 7}
        assert (await files.read("x/y")).to_pybytes() == b"abcdefg"
        assert (await files.read("x/y", 2, 3)).to_pybytes() == b"cde"
        assert (await files.read("x/y", 5, 100)).to_pybytes() == b"fg"
        assert (await files.read("x/y", 50)).size == 0
        await files.remove(["a", "x/y"])
        assert await files.list() == {}
        assert files.free_bytes() > 0

    locked(tmp_path, work)


def test_everything_is_synced_before_it_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def record(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any) -> Any:
            folder = name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode)
            calls.append("fsync folder" if folder else name)
            return real(*args)

        monkeypatch.setattr(os, name, call)

    def taken() -> list[str]:
        now = calls.copy()
        calls.clear()
        return now

    async def work(files: RealFiles) -> None:
        for name in ("pwritev", "fdatasync", "fsync", "rename", "posix_fallocate"):
            record(name)
        file = await files.preallocate("f", 4096)
        assert taken() == ["posix_fallocate", "fsync", "rename", "fsync folder"]
        await file.write(0, [b"x"])
        assert taken() == ["pwritev", "fdatasync"]
        file.close()
        await files.put("p", [b"x"])
        assert taken() == ["pwritev", "fsync", "rename", "fsync folder"]
        (await files.preallocate("sub/f", 4096, recycled="f")).close()
        assert taken() == ["fsync folder", "posix_fallocate", "fsync", "rename", "fsync folder", "fsync folder"]
        (await files.open("p")).close()
        assert taken() == ["fsync folder"]
        await files.remove(["p", "sub/f"])
        assert taken() == ["fsync folder", "fsync folder"]

    locked(tmp_path, work)


def test_short_writes_continue_until_all_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, views, at: real(fd, [b"".join(views)[:7]], at))
    monkeypatch.setattr(real_files, "IOV_PARTS_MAX", 3)
    data = [bytes([65 + n]) * (n % 5) for n in range(40)]

    async def work(files: RealFiles) -> None:
        file = await files.preallocate("f", 4096)
        await file.write(10, data)
        file.close()
        assert (await files.read("f", 10, 80)).to_pybytes() == b"".join(data)

    locked(tmp_path, work)


def test_what_was_on_its_way_to_a_name_is_removed_on_locking(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal/spare-1.log.partial").write_bytes(b"half")

    async def work(files: RealFiles) -> None:
        assert await files.list() == {}

    locked(tmp_path, work)
    assert not (tmp_path / "journal/spare-1.log.partial").exists()


def test_no_other_user_may_read_what_is_stored(tmp_path):
    async def main() -> None:
        async with wherry.open(tmp_path / "home") as broker:
            await broker.create_topic("t")
            await broker.publish("t", [b"secret"])

    asyncio.run(main())
    found = [tmp_path / "home", *(tmp_path / "home").rglob("*")]
    assert len(found) > 3
    assert [path for path in found if path.stat().st_mode & 0o077] == []


def test_a_cancelled_checkpoint_does_not_mix_with_the_next(tmp_path, monkeypatch):
    """Cancel two, which stops no thread that writes: two images of different size are under way for one place."""
    real, begun = real_files._write_all, threading.Event()

    def slow(fd: int, offset: int, parts: Sequence[Bytes]) -> None:
        if "checkpoint" not in str(Path(f"/proc/self/fd/{fd}").readlink()):
            real(fd, offset, parts)
            return
        begun.set()
        whole = b"".join(bytes(memoryview(part)) for part in parts)
        half = len(whole) // 2
        real(fd, offset, [whole[:half]])
        time.sleep(0.2)
        real(fd, offset + half, [whole[half:]])

    async def main() -> None:
        async with wherry.open(tmp_path / "home") as broker:
            await broker.create_topic("t")
            await broker.subscribe("t", "s")
            await broker.publish("t", [b"kept"])
            consumer = await broker.consumer("t", "s")
            for _ in range(100):  # changes the state, and not the position
                await broker.publish("t", [b"x"], wherry.PublishOptions(persistent=False))
            monkeypatch.setattr(real_files, "_write_all", slow)
            first = asyncio.create_task(broker.checkpoint())
            await asyncio.to_thread(begun.wait)
            got = await consumer.pull(1_000)
            await got.ack(range(1, len(got)))
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
        monkeypatch.setattr(real_files, "_write_all", real)
        async with wherry.open(tmp_path / "home") as broker:
            assert broker.stats("t").messages == 1

    asyncio.run(main())


def test_files_to_remove_are_not_forgotten_when_the_journal_cannot_be_trimmed(tmp_path, monkeypatch):
    async def main() -> None:
        async with wherry.open(tmp_path / "home") as broker:
            await broker.create_topic("t")
            broker.shard.store.garbage.append("segments/none.arrow")

            async def fail(before: int) -> None:
                raise OSError(errno.EIO, "on purpose")

            with monkeypatch.context() as patch:
                patch.setattr(broker.shard.writer, "trim", fail)
                with pytest.raises(wherry.StorageError):
                    await broker.checkpoint()
            assert broker.shard.store.garbage == ["segments/none.arrow"]

    asyncio.run(main())
