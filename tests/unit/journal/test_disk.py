"""The disk engine on a disk in memory: rolling, admission, trimming, failure."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence

import pytest

from tests.unit.journal.cutfiles import CutFiles
from tests.unit.journal.journals import ENTRY_BYTES_MAX, FILE_BYTES, append, bodies, numbered, reopened, small
from wherry.journal.disk import space as disk_space
from wherry.journal.disk.disk import DiskEngine
from wherry.journal.disk.files import Bytes
from wherry.journal.engine import Appended, AppendFenced, EntryTooLarge
from wherry.journal.format import FILE_HEADER_BYTES, FRAME_OVERHEAD_BYTES_MAX, frame_bytes
from wherry.model.errors import Closed, DiskFull, InUse, InvalidInput, WriterFailed


def journals(files: CutFiles) -> list[str]:
    return [path for path in sorted(files.disk) if "spare" not in path]


def spares(files: CutFiles) -> list[str]:
    return [path for path in sorted(files.disk) if "spare" in path]


def test_groups_come_back_over_many_files_and_several_openings() -> None:
    async def run() -> None:
        files = CutFiles()
        groups = [[bytes([n]) * (n * 37 % 900) for _ in range(n % 4)] for n in range(60)]
        for begin in range(0, 60, 20):
            writer = await small(files).open()
            for group in groups[begin : begin + 20]:
                await append(writer, *group)
            await writer.close()
        assert await reopened(files) == numbered(groups)
        assert len(journals(files)) > 8
        engine = small(files)
        writer = await engine.open()
        assert await bodies(engine, 40) == numbered(groups)[39:]
        assert await bodies(engine, writer.last + 1) == []
        assert writer.stored_bytes() == sum(frame_bytes(len(body)) for _, body in numbered(groups))

    asyncio.run(run())


def test_one_write_and_one_sync_per_group_and_file() -> None:
    async def run() -> None:
        files = CutFiles()
        writer = await small(files).open()
        files.writes.clear()
        await append(writer, *[b"x" * 100] * 5)
        assert len(files.writes) == 1
        await append(writer, *[b"x" * 1000] * 4)  # the last one does not fit into the first file
        header = 1
        assert len(files.writes) == 1 + 1 + header + 1
        assert [path for path, _, _ in files.writes][-2:] == ["journal/00000000000000000009.log"] * 2
        await append(writer)
        assert len(files.writes) == 4

    asyncio.run(run())


def test_wrong_expectations_and_large_entries_store_nothing() -> None:
    async def run() -> None:
        writer = await small(CutFiles()).open()
        assert await writer.append([[b"a"]], 1) == AppendFenced(0)
        assert await writer.append([[b"a"], [b"b", bytes(ENTRY_BYTES_MAX)]], 0) == EntryTooLarge(ENTRY_BYTES_MAX)
        assert writer.stored_bytes() == writer.last == 0
        assert await writer.append([[bytes(ENTRY_BYTES_MAX)]], 0) == Appended(1)
        assert await writer.reconcile() == 1

    asyncio.run(run())


def test_of_two_appends_at_once_one_is_fenced() -> None:
    async def run() -> None:
        writer = await small(CutFiles()).open()
        outcomes = tuple(await asyncio.gather(writer.append([[b"a"]], 0), writer.append([[b"b"]], 0)))
        assert outcomes == (Appended(1), AppendFenced(1))

    asyncio.run(run())


def test_closed_and_in_use() -> None:
    async def run() -> None:
        files = CutFiles()
        writer = await small(files).open()
        with pytest.raises(InUse):
            await small(files).open()
        await writer.close()
        await writer.close()
        with pytest.raises(Closed):
            await writer.append([[b"a"]], 0)
        with pytest.raises(Closed):
            await bodies(small(files))

    asyncio.run(run())


@pytest.mark.parametrize(
    "options",
    [{"file_bytes": FILE_BYTES + 1}, {"entry_bytes_max": FILE_BYTES - 100}, {"reserve_bytes": FILE_BYTES}],
)
def test_sizes_that_cannot_work_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        small(CutFiles(), **options)


def test_the_next_file_is_made_when_the_current_one_is_half_full() -> None:
    async def run() -> None:
        files = CutFiles()
        writer = await small(files).open()
        await append(writer, *[bytes(900)] * 2)
        await asyncio.sleep(0)
        assert spares(files) == []
        await append(writer, bytes(900))
        await asyncio.sleep(0.01)
        assert len(spares(files)) == 1
        await append(writer, *[bytes(900)] * 2)
        assert len(journals(files)) == 2
        assert spares(files) == []

    asyncio.run(run())


def test_trim_keeps_two_spares_and_never_the_current_file() -> None:
    async def run() -> None:
        files = CutFiles()
        engine = small(files)
        writer = await engine.open()
        for n in range(24):
            await append(writer, bytes([n]) * 900)
        assert len(journals(files)) == 6
        await writer.trim(9)
        assert journals(files)[0].endswith("09.log")
        await writer.trim(8)
        assert [position for position, _ in await bodies(engine)] == list(range(9, 25))
        await writer.trim(10_000)
        assert [position for position, _ in await bodies(engine)] == list(range(21, 25))
        assert writer.stored_bytes() == 4 * frame_bytes(900)
        assert len(spares(files)) == 2
        await writer.close()
        assert [position for position, _ in await reopened(files)] == list(range(21, 25))
        assert len(spares(files)) == 2

    asyncio.run(run())


def test_stale_frames_of_a_reused_file_are_never_live() -> None:
    """Give every frame the same length and every file the same seed, so that frames differ by position only."""

    async def run() -> None:
        files = CutFiles()
        writer = await small(files).open()
        for n in range(1, 200):
            await append(writer, n.to_bytes(2, "big") * 50)
            await writer.trim(n - 30)
            if n % 7 == 0:
                await writer.close()
                first = int(journals(files)[0][-24:-4])
                assert await reopened(files) == [(m, m.to_bytes(2, "big") * 50) for m in range(first, n + 1)]
                writer = await small(files).open()
        assert len(files.disk) <= 5

    asyncio.run(run())


def test_spares_of_another_size_are_removed_and_files_of_another_size_stay() -> None:
    async def run() -> None:
        files = CutFiles()
        writer = await small(files).open()
        for _ in range(12):
            await append(writer, bytes(900))
        await writer.trim(9)
        await writer.close()
        engine = small(files, file_bytes=2 * FILE_BYTES)
        writer = await engine.open()
        assert [path for path in spares(files) if len(files.disk[path]) == FILE_BYTES] == []
        for _ in range(12):
            await append(writer, bytes(900))
        assert len(await bodies(engine)) == 16
        await writer.trim(24)
        await writer.close()
        assert len(await reopened(files, file_bytes=2 * FILE_BYTES)) == 4

    asyncio.run(run())


class FullFiles(CutFiles):
    """No new file while `full`."""

    full = False
    asked = 0

    def __init__(self) -> None:
        super().__init__()
        self.refuse_preallocate = self._refuse

    def _refuse(self) -> OSError | None:
        self.asked += 1
        return OSError(errno.ENOSPC, "no space left on device") if self.full else None


def test_admission_keeps_the_reserve_back_and_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_space, "RETRY_S", 0.05)

    async def run() -> None:
        files = FullFiles()
        writer = await small(files).open()
        files.full = True
        size = 0
        while writer.admit(100, essential=False) is None:
            await append(writer, bytes(100))
            size += frame_bytes(100)
            await writer.make_room(100)
        rest = FILE_BYTES - FILE_HEADER_BYTES - size
        assert writer.admit(100, essential=False) == max(0, rest - 512 - FRAME_OVERHEAD_BYTES_MAX) < 100
        assert 512 <= rest < 512 + 100 + FRAME_OVERHEAD_BYTES_MAX
        while writer.admit(100, essential=True) is None:
            await append(writer, bytes(100))
        last = writer.last
        with pytest.raises(DiskFull):
            await writer.append([[bytes(100)]] * 2, writer.last)
        assert writer.last == last
        files.full = False
        await asyncio.sleep(0.06)
        await writer.make_room(100)
        assert writer.admit(100, essential=False) is None
        await append(writer, *[bytes(100)] * 2)
        await writer.close()
        assert len(await reopened(files)) == last + 2

    asyncio.run(run())


def test_a_full_disk_is_not_asked_on_every_call() -> None:
    async def run() -> None:
        files = FullFiles()
        writer = await small(files).open()
        files.full, files.asked = True, 0
        for _ in range(3):
            await append(writer, bytes(900))
        for _ in range(50):
            await writer.make_room(900)
        assert files.asked == 1
        assert writer.admit(900, essential=False) is not None

    asyncio.run(run())


def test_a_disk_that_is_nearly_full_is_left_its_last_bytes() -> None:
    async def run() -> None:
        files = CutFiles()
        writer = await small(files).open()
        files.free = FILE_BYTES + 511
        await append(writer, *[bytes(900)] * 3)
        await writer.make_room(900)
        assert spares(files) == []
        assert writer.admit(900, essential=False) is not None
        empty = CutFiles()
        empty.free = FILE_BYTES + 511
        with pytest.raises(DiskFull):
            await small(empty).open()
        assert empty.disk == {}

    asyncio.run(run())


def test_trimming_gives_room_on_a_full_disk_at_once() -> None:
    async def run() -> None:
        files = FullFiles()
        writer = await small(files).open()
        for _ in range(7):
            await append(writer, bytes(900))
        files.full = True
        while writer.admit(900, essential=False) is None:
            await append(writer, bytes(900))
        await writer.trim(writer.last)
        assert writer.admit(900, essential=False) is None

    asyncio.run(run())


def test_a_fast_publisher_is_never_refused_while_the_disk_has_room() -> None:
    async def run() -> None:
        writer = await small(CutFiles()).open()
        for n in range(300):
            size = n * 131 % ENTRY_BYTES_MAX
            await writer.make_room(size)
            assert writer.admit(size, essential=False) is None
            await append(writer, bytes(size))

    asyncio.run(run())


@pytest.mark.parametrize("asked", [3000, 7500, 10_000])
@pytest.mark.parametrize("cuts", [1, 2, 3, 5, 7, 8, 10, 20])
def test_what_is_admitted_fits_however_it_is_cut(cuts: int, asked: int) -> None:
    """Try no, one and several spares, with the current file filled to any height."""

    async def run() -> None:
        for filled in range(0, 3900, 130):
            files = FullFiles()
            writer = await small(files).open()
            for _ in range(filled // 130):
                await append(writer, bytes(130 - 40))
            await asyncio.sleep(0)
            await writer.make_room(asked)
            files.full = True
            left = writer.admit(1 << 40, essential=True, entries=cuts)
            assert left is not None
            each = min(left // cuts, ENTRY_BYTES_MAX)
            assert writer.admit(each * cuts, essential=True, entries=cuts) is None
            await append(writer, *[bytes(each)] * cuts)

    asyncio.run(run())


class FailingFiles(CutFiles):
    """The write that `fail_at` counts down to fails; with `keeps`, its bytes are in the page cache all the same."""

    fail_at = 1 << 60
    keeps = False

    async def open(self, path: str) -> FailingFile:
        return FailingFile(self, path)

    async def preallocate(self, path: str, size: int, recycled: str | None = None) -> FailingFile:
        await super().preallocate(path, size, recycled)
        return FailingFile(self, path)


class FailingFile:
    def __init__(self, files: FailingFiles, path: str) -> None:
        self.files, self.path, self.size = files, path, len(files.disk[path])

    def is_quick(self) -> bool:
        return True

    def write_at_once(self, offset: int, parts: Sequence[Bytes]) -> None:
        self.files.fail_at -= 1
        fails = self.files.fail_at == 0
        if not fails or self.files.keeps:
            data = b"".join(parts)
            self.files.disk[self.path][offset : offset + len(data)] = data
            self.files.writes.append((self.path, offset, data))
        if fails:
            raise OSError(errno.EIO, "the sync failed")

    async def write(self, offset: int, parts: Sequence[Bytes]) -> None:
        await asyncio.sleep(0)
        self.write_at_once(offset, parts)

    def close(self) -> None: ...


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("fail_at", [1, 2])
def test_after_a_failure_nothing_is_ever_written(fail_at: int, keeps: bool) -> None:
    async def run() -> None:
        files = FailingFiles()
        writer = await small(files).open()
        await append(writer, *[bytes(900)] * 4)
        files.fail_at, files.keeps = fail_at, keeps
        with pytest.raises(WriterFailed, match="the sync failed"):
            await writer.append([[bytes(900)]], 4)  # rolls: the file header, then the frame
        before = len(files.writes)
        for _ in range(2):
            with pytest.raises(WriterFailed, match="the sync failed"):
                await writer.append([[b"again"]], 4)
        with pytest.raises(WriterFailed):
            await writer.reconcile()
        assert (len(files.writes), writer.last) == (before, 4)
        await writer.close()
        assert len(await reopened(files)) in (4, 5)

    asyncio.run(run())


@pytest.mark.parametrize("keeps", [False, True])
def test_after_a_failure_at_once_nothing_is_ever_written(keeps: bool) -> None:
    async def run() -> None:
        files = FailingFiles()
        writer = await small(files).open()
        assert writer.append_at_once([[b"a"], [b"b"]], 0) == Appended(2)
        files.fail_at, files.keeps = 1, keeps
        with pytest.raises(WriterFailed, match="the sync failed"):
            writer.append_at_once([[b"c"]], 2)
        before = len(files.writes)
        assert writer.append_at_once([[b"again"]], 2) is None
        with pytest.raises(WriterFailed, match="the sync failed"):
            await writer.append([[b"again"]], 2)
        assert (len(files.writes), writer.last) == (before, 2)
        await writer.close()
        assert [body for _, body in await reopened(files)][:2] == [b"a", b"b"]

    asyncio.run(run())


def test_what_an_append_would_wait_for_or_refuse_is_not_written_at_once() -> None:
    async def run() -> None:
        writer = await small(FailingFiles()).open()
        assert writer.append_at_once([[b"a"]], 7) is None, "another position is expected"
        assert writer.append_at_once([[bytes(ENTRY_BYTES_MAX + 1)]], 0) is None, "too large"
        assert writer.append_at_once([[bytes(900)]] * 5, 0) is None, "the group does not fit into the file"
        under_way = asyncio.create_task(writer.append([[b"a"]], 0))
        await asyncio.sleep(0)
        assert writer.append_at_once([[b"b"]], 0) is None, "a group is being written"
        await under_way
        assert writer.append_at_once([[b"b"]], 1) == Appended(2)
        await writer.close()
        assert writer.append_at_once([[b"c"]], 2) is None, "closed"

    asyncio.run(run())


def test_what_only_the_page_cache_may_hold_is_written_again_on_opening() -> None:
    async def run() -> None:
        files = FailingFiles()
        writer = await small(files).open()
        await append(writer, b"a")
        files.fail_at, files.keeps = 1, True
        with pytest.raises(WriterFailed):
            await writer.append([[b"b"], [b"c"]], 1)
        await writer.close()
        files.writes.clear()
        assert [body for _, body in await reopened(files)] == [b"a", b"b", b"c"]
        assert [offset for _, offset, _ in files.writes] == [FILE_HEADER_BYTES + frame_bytes(1)]
        assert len(files.writes[0][2]) == 2 * frame_bytes(1)

    asyncio.run(run())


def test_a_file_header_that_only_the_page_cache_may_hold_is_written_again_too() -> None:
    async def run() -> None:
        files = FailingFiles()
        writer = await small(files).open()
        await append(writer, *[bytes(900)] * 4)
        files.fail_at, files.keeps = 1, True
        with pytest.raises(WriterFailed):
            await writer.append([[bytes(900)]], 4)
        await writer.close()
        files.writes.clear()
        assert len(await reopened(files)) == 4
        rolled = "journal/00000000000000000005.log"
        assert files.writes == [(rolled, 0, bytes(files.disk[rolled][:FILE_HEADER_BYTES]))]

    asyncio.run(run())


def test_admission_counts_the_group_that_is_being_written() -> None:
    async def run() -> None:
        writer = await small(FailingFiles()).open()
        before = writer.admit(1 << 40, essential=True)
        task = asyncio.create_task(writer.append([[bytes(900)]] * 2, 0))
        await asyncio.sleep(0)
        during = writer.admit(1 << 40, essential=True)
        await task
        assert before is not None
        assert during == before - 2 * frame_bytes(900) == writer.admit(1 << 40, essential=True)

    asyncio.run(run())


def test_closing_ends_the_allocation_ahead() -> None:
    async def run() -> None:
        files = CutFiles()
        writer = await small(files).open()
        await append(writer, *[bytes(900)] * 3)  # the task that makes the next file is due, and has not run yet
        await writer.close()
        await writer.make_room(4000)
        assert spares(files) == []

    asyncio.run(run())


def test_an_append_cancelled_in_the_middle_fails_the_writer() -> None:
    async def run() -> None:
        files = FailingFiles()
        writer = await small(files).open()
        task = asyncio.create_task(writer.append([[b"a"]], 0))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(WriterFailed, match="CancelledError"):
            await writer.append([[b"a"]], 0)

    asyncio.run(run())


def test_the_default_sizes_work() -> None:
    DiskEngine(CutFiles())
