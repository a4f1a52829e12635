"""The disk while the power is on: what each operation does, and how it fails."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

import pytest

from wherry.journal.disk.files import Files
from wherry.model.errors import Closed, InUse
from wherry.sim.world.disk import DiskFaults, SimDisk, SimFiles
from wherry.sim.world.errors import Crashed, Deadlock
from wherry.sim.world.loop import run

T = TypeVar("T")


def use(disk: SimDisk, work: Callable[[SimFiles], Coroutine[Any, Any, T]]) -> T:
    """Run `work` in a process that has the disk."""

    async def main() -> T:
        files = disk.open()
        files.lock()
        try:
            return await work(files)
        finally:
            files.unlock()

    return run(main())


async def contents(files: Files) -> dict[str, bytes]:
    return {path: (await files.read(path)).to_pybytes() for path in await files.list()}


def test_files_are_made_written_read_listed_and_removed():
    async def work(files: SimFiles) -> Any:
        seen: Files = files
        file = await seen.preallocate("journal/1", 2048)
        assert (file.path, file.size) == ("journal/1", 2048)
        await file.write(510, [b"ab", memoryview(b"cd"), await seen.read("journal/1", 0, 3)])
        await seen.put("checkpoint", [b"old"])
        await seen.put("checkpoint", [b"n", b"ew"])
        assert await seen.list() == {"checkpoint": 3, "journal/1": 2048}
        assert (await seen.read("journal/1", 509, 8)).to_pybytes() == b"\0abcd\0\0\0"
        assert (await seen.read("journal/1", 2040, 99)).size == 8
        await (await seen.open("journal/1")).write(0, [b"again"])
        reused = await seen.preallocate("journal/2", 2048, recycled="journal/1")
        assert (await seen.read("journal/2", 0, 5)).to_pybytes() == b"again"
        await seen.remove(["checkpoint", "never-was"])
        reused.close()
        with pytest.raises(Closed):
            await reused.write(0, [b"x"])
        with pytest.raises(FileNotFoundError):
            await seen.open("journal/1")
        return await seen.list()

    assert use(SimDisk(Random(1)), work) == {"journal/2": 2048}


def test_work_takes_time_and_sees_what_was_changed_meanwhile():
    async def work(files: SimFiles) -> None:
        shared = [1]
        at = asyncio.get_running_loop().time()
        working = asyncio.create_task(files.compute(lambda: sum(shared)))
        await asyncio.sleep(0)
        shared.append(2)
        assert await working == 3
        assert asyncio.get_running_loop().time() > at

    use(SimDisk(Random(1)), work)


def test_a_write_past_the_preallocated_end_is_a_mistake():
    async def work(files: SimFiles) -> None:
        file = await files.preallocate("a", 100)
        with pytest.raises(ValueError, match="90 to 101"):
            await file.write(90, [b"x" * 11])

    use(SimDisk(Random(1)), work)


def test_each_step_takes_time_and_some_take_long():
    async def work(files: SimFiles) -> Any:
        loop, took_s = asyncio.get_running_loop(), []
        file = await files.preallocate("a", 512)
        for _ in range(500):
            began_s = loop.time()
            await file.write(0, [b"x"])
            took_s.append(loop.time() - began_s)
        return took_s

    took_s = use(SimDisk(Random(3), DiskFaults(stalls=0.02)), work)
    assert 0.000_010 <= min(took_s) < 0.001
    assert max(took_s) > 0.1


def test_a_full_disk_refuses_new_room_but_not_writes_in_place_and_recovers():
    disk = SimDisk(Random(1), capacity_bytes=4096)

    async def work(files: SimFiles) -> Any:
        file = await files.preallocate("a", 3000)
        assert files.free_bytes() == 4096 - 3072
        for refused in (files.preallocate("b", 1025), files.put("c", [b"x" * 1025])):
            with pytest.raises(OSError, match="No space") as caught:
                await refused
            assert caught.value.errno == errno.ENOSPC
        with pytest.raises(OSError, match="No space"):
            await files.preallocate("d", 4097, recycled="a")
        assert await files.list() == {"a": 3000}
        await file.write(0, [b"x" * 3000])
        disk.capacity_bytes = 0
        assert files.free_bytes() == 0
        await file.write(0, [b"y" * 3000])
        disk.capacity_bytes = 8192
        await files.put("c", [b"x" * 1025])
        await files.remove(["a"])
        return files.free_bytes()

    assert use(disk, work) == 8192 - 1536


def test_failing_reads_and_writes_raise_eio():
    disk = SimDisk(Random(1))

    async def work(files: SimFiles) -> None:
        file = await files.preallocate("a", 4096)
        await file.write(0, [b"a" * 4096])
        disk.faults = DiskFaults(write_fails=1.0)
        for failing in (file.write(0, [b"b" * 4096]), files.put("p", [b"b"])):
            with pytest.raises(OSError, match="Input/output error"):
                await failing
        disk.faults = DiskFaults(read_fails=1.0)
        with pytest.raises(OSError, match="Input/output error"):
            await files.read("a")
        assert await files.list() == {"a": 4096}

    use(disk, work)


def test_after_a_failed_sync_the_cache_has_what_the_medium_has_and_a_second_sync_saves_nothing():
    outcomes = set()
    for seed in range(60):
        disk = SimDisk(Random(seed))

        async def work(files: SimFiles, disk: SimDisk = disk) -> Any:
            file = await files.preallocate("a", 2048)
            await file.write(0, [b"a" * 2048])
            disk.faults = DiskFaults(sync_fails=1.0)
            with pytest.raises(OSError, match="Input/output error"):
                await file.write(0, [b"b" * 2048])
            disk.faults = DiskFaults()
            read = (await files.read("a")).to_pybytes()
            assert read == disk.durable("a")
            await file.write(2047, [read[-1:]])
            assert read == disk.durable("a")
            return read[::512]

        outcomes.add(use(disk, work))
    assert {b"aaaa", b"bbbb"} < outcomes


def test_the_lock_is_for_one_process_that_is_alive():
    disk = SimDisk(Random(1))
    first, second = disk.open(), disk.open()
    with pytest.raises(Closed):
        run(first.list())
    first.lock()
    for refused in (first, second):
        with pytest.raises(InUse):
            refused.lock()
    first.unlock()
    second.lock()
    disk.crash()
    third = disk.open()
    third.lock()
    second.unlock()
    with pytest.raises(InUse):
        disk.open().lock()


def test_a_dead_generation_hangs_or_raises():
    disk = SimDisk(Random(1))
    dead = disk.open()
    dead.lock()
    disk.crash()
    for refused in (dead.lock, dead.free_bytes):
        with pytest.raises(Crashed):
            refused()
    dead.unlock()
    for hangs in (dead.list(), dead.put("a", [b"x"]), dead.preallocate("b", 5), dead.remove(["a"])):
        with pytest.raises(Deadlock):
            run(hangs)
    assert disk.durable("a") is None


def test_an_operation_continues_when_its_caller_is_cancelled_and_keeps_the_lock_until_its_end():
    disk = SimDisk(Random(1))

    async def main() -> None:
        files = disk.open()
        files.lock()
        file = await files.preallocate("a", 512)
        caller = asyncio.create_task(file.write(0, [b"x"]))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait([caller])
        assert caller.cancelled()
        assert (await files.read("a", 0, 1)).to_pybytes() in (b"\0", b"x")
        files.unlock()
        with pytest.raises(InUse):
            disk.open().lock()
        await asyncio.sleep(5)
        disk.open().lock()

    run(main())
    assert (disk.durable("a") or b"")[:1] == b"x"


@pytest.mark.parametrize("seed", range(10))
def test_writes_happen_in_the_order_asked_for(seed):
    disk = SimDisk(Random(seed))

    async def main() -> Any:
        files = disk.open()
        files.lock()
        file = await files.preallocate("a", 512)
        await asyncio.gather(*(file.write(0, [bytes([number])]) for number in range(10)))
        return disk.durable("a")

    assert (run(main()) or b"")[0] == 9


def test_a_flipped_bit_is_read_and_stays():
    disk = SimDisk(Random(1))
    use(disk, lambda files: files.put("a", [b"\x00\x01\x02"]))
    disk.flip_bit("a", 1, 7)
    assert use(disk, contents) == {"a": b"\x00\x81\x02"}
    disk.crash()
    assert use(disk, contents) == {"a": b"\x00\x81\x02"}


def test_the_trace_is_the_same_for_the_same_seed_and_shows_each_step():
    def trace(seed: int) -> list[str]:
        events: list[str] = []
        disk = SimDisk(Random(seed), DiskFaults(write_fails=0.2, sync_fails=0.1), on_event=events.append)

        async def work(files: SimFiles) -> None:
            puts = (files.put(f"f{number}", [b"x" * 700 * number]) for number in range(20))
            await asyncio.gather(*puts, return_exceptions=True)

        use(disk, work)
        disk.crash()
        assert list(disk.events) == events
        return events

    assert trace(7) == trace(7) != trace(8)
    disk = SimDisk(Random(1))
    use(disk, lambda files: files.put("d/a", [b"x"]))
    assert list(disk.events) == [
        "create d/a.partial",
        "write d/a.partial",
        "wrote d/a.partial 0+1",
        "sync d/a.partial",
        "rename d/a.partial -> d/a",
        "sync-folder d",
    ]
