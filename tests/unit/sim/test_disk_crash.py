"""The disk when the power is cut: at every step, over many seeds."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any

import pytest

from tests.unit.sim.test_disk import contents, use
from wherry.sim.world.disk import DiskFaults, SimDisk, SimFiles
from wherry.sim.world.errors import Killed
from wherry.sim.world.loop import run
from wherry.sim.world.process import Process

Work = Callable[[SimFiles], Coroutine[Any, Any, None]]


def cut_power_at(step: int, disk: SimDisk, work: Work) -> bool:
    """Cut the power before the given step, and return whether `work` was answered before that."""
    process, files = Process("writer"), disk.open()
    files.lock()

    def cut(now: int) -> None:
        if now == step:
            disk.crash()
            process.kill()

    async def main() -> bool:
        try:
            await process.call(work(files))
        except Killed:
            return False
        return True

    answered = run(main(), on_step=cut)
    if answered:
        disk.crash()
    return answered


def every_cut(make: Callable[[int], SimDisk], work: Work, seeds: int = 25) -> Iterator[tuple[bool, SimDisk]]:
    """Cut the power at each step of each seed, up to the first step at which the work was already answered."""
    for seed in range(seeds):
        for step in range(1, 1000):
            disk = make(seed)
            answered = cut_power_at(step, disk, work)
            yield answered, disk
            if answered:
                break


def test_put_is_all_or_nothing_at_every_step():
    new = b"n" * 3000
    for old in (None, b"o" * 2000):
        outcomes = set()

        def make(seed: int, old: bytes | None = old) -> SimDisk:
            disk = SimDisk(Random(seed))
            if old is not None:
                use(disk, lambda files: files.put("d/a", [old]))
            return disk

        for answered, disk in every_cut(make, lambda files: files.put("d/a", [new[:1000], new[1000:]])):
            found = use(disk, contents).get("d/a")
            assert found in ((new,) if answered else (old, new))
            outcomes.add((answered, found == new))
        assert outcomes == {(False, False), (False, True), (True, True)}


def test_a_synced_write_survives_and_an_unsynced_one_is_torn_between_sectors_only():
    async def work(files: SimFiles) -> None:
        file = await files.preallocate("a", 8 * 512)
        for number in range(6):
            await file.write(256 + number * 512, [bytes([65 + number]) * 512])
            acknowledged.append(number)

    def make(seed: int) -> SimDisk:
        acknowledged.clear()
        return SimDisk(Random(seed))

    acknowledged: list[int] = []
    whole = bytes(256) + b"".join(bytes([65 + number]) * 512 for number in range(6))
    torn = 0
    for _answered, disk in every_cut(make, work):
        found = disk.durable("a")
        if found is None:
            assert acknowledged == []
            continue
        durable_bytes = 256 + 512 * len(acknowledged) if acknowledged else 0
        assert found[:durable_bytes] == whole[:durable_bytes]
        rest = found[durable_bytes:]
        assert rest[768:] == bytes(len(rest[768:]))  # only one write was under way
        halves = (rest[:256].strip(b"\0") != b"", rest[256:512].strip(b"\0") != b"")
        torn += halves in ((True, False), (False, True))
        for start in range(0, len(found), 256):
            assert len(set(found[start : start + 256])) == 1
    assert torn > 5


def test_any_subset_of_the_sectors_of_an_unsynced_write_can_land():
    patterns = set()

    async def write(files: SimFiles) -> None:
        await (await files.open("a")).write(0, [b"b" * 2048])

    for seed in range(400):
        disk = SimDisk(Random(seed), DiskFaults(keeps=0.1, loses=0.1))
        use(disk, lambda files: files.put("a", [b"a" * 2048]))
        disk.random.seed(seed)
        cut = [False]

        def crash_after_write(event: str, disk: SimDisk = disk, cut: list[bool] = cut) -> None:
            cut[0] = cut[0] or event.startswith("wrote")

        disk.on_event = crash_after_write
        process = Process("writer")

        def on_step(_step: int, disk: SimDisk = disk, cut: list[bool] = cut, process: Process = process) -> None:
            if cut[0] and process.alive:
                process.kill()
                disk.crash()

        async def main(disk: SimDisk = disk, process: Process = process) -> None:
            files = disk.open()
            files.lock()
            with pytest.raises(Killed):
                await process.call(write(files))

        run(main(), on_step=on_step)
        patterns.add((disk.durable("a") or b"")[::512])
    assert len(patterns) == 16


def test_preallocate_gives_the_whole_size_or_no_file():
    async def work(files: SimFiles) -> None:
        await files.preallocate("d/a", 4096)

    outcomes = set()
    for answered, disk in every_cut(lambda seed: SimDisk(Random(seed)), work):
        found = use(disk, contents)
        assert found in ({"d/a": bytes(4096)},) if answered else found in ({}, {"d/a": bytes(4096)})
        outcomes.add((answered, bool(found)))
    assert outcomes == {(False, False), (False, True), (True, True)}


@pytest.mark.parametrize("size", [1024, 2048])
def test_a_recycled_file_has_one_of_its_names_and_its_bytes(size):
    async def work(files: SimFiles) -> None:
        await files.preallocate("journal/2", size, recycled="spare/1")

    def make(seed: int) -> SimDisk:
        disk = SimDisk(Random(seed))
        use(disk, lambda files: files.put("spare/1", [b"s" * 1024]))
        return disk

    names = set()
    for answered, disk in every_cut(make, work):
        ((name, found),) = use(disk, contents).items()
        names.add(name)
        assert found in (b"s" * 1024, b"s" * 1024 + bytes(size - 1024))
        if answered or name == "journal/2":
            assert (name, len(found)) == ("journal/2", size)
    assert names == {"spare/1", "journal/2"}


def test_removed_files_stay_away_once_that_is_answered_and_may_vanish_in_any_order_before():
    def make(seed: int) -> SimDisk:
        disk = SimDisk(Random(seed))

        async def fill(files: SimFiles) -> None:
            for path in ("a", "b", "d/c", "kept"):
                await files.put(path, [b"x"])

        use(disk, fill)
        return disk

    outcomes = set()
    for answered, disk in every_cut(make, lambda files: files.remove(["a", "b", "d/c"])):
        found = set(use(disk, contents))
        assert "kept" in found
        if answered:
            assert found == {"kept"}
        outcomes.add(frozenset(found & {"a", "b"}))
    assert len(outcomes) == 4


def test_partial_files_are_not_listed_and_are_removed_when_the_disk_is_locked():
    seen = set()
    for _answered, disk in every_cut(lambda seed: SimDisk(Random(seed)), lambda files: files.put("a", [b"x" * 600])):
        seen.add(frozenset(disk.names.cached))
        files = disk.open()
        files.lock()
        assert "a.partial" not in disk.names.cached
    assert seen == {frozenset(), frozenset({"a"}), frozenset({"a.partial"})}


def test_a_planted_skipped_sync_loses_what_was_acknowledged():
    async def write(files: SimFiles) -> None:
        await (await files.open("a")).write(0, [b"b" * 1024])

    lost = 0
    for seed in range(40):
        disk = SimDisk(Random(seed))
        use(disk, lambda files: files.put("a", [b"a" * 1024]))
        disk.skip_sync = True
        use(disk, write)
        use(disk, lambda files: files.put("p", [b"p"]))
        disk.crash()
        found = use(disk, contents)
        lost += found["a"] != b"b" * 1024
        assert found.get("p", b"") in (b"", b"p")
    assert 10 < lost < 40


def test_killing_the_process_keeps_the_cache_until_the_power_is_cut():
    disk = SimDisk(Random(1), DiskFaults(keeps=0.0, loses=1.0))

    async def write(files: SimFiles) -> None:
        await (await files.open("a")).write(0, [b"b" * 1024])

    use(disk, lambda files: files.put("a", [b"a" * 1024]))
    disk.skip_sync = True
    use(disk, write)
    disk.kill()
    assert use(disk, contents) == {"a": b"b" * 1024}
    disk.crash()
    assert use(disk, contents) == {"a": b"a" * 1024}


def test_nothing_of_a_dead_generation_happens_after_the_crash():
    for seed in range(20):
        disk = SimDisk(Random(seed))
        cut_power_at(4, disk, lambda files: files.put("a", [b"x"]))
        before = list(disk.events)
        assert before[-1] == "crash"
        assert use(disk, contents) in ({}, {"a": b"x"})
