"""Where the journal ends: torn tails are cut and stay cut, damage in the middle is refused and left alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from tests.unit.journal.cutfiles import CutFiles, PowerCut
from tests.unit.journal.journals import FILE_BYTES, append, bodies, numbered, reopened, small, written
from wherry.journal.disk import scan as disk_scan
from wherry.journal.engine import Record, Writer
from wherry.journal.format import FILE_HEADER_BYTES, FRAME_HEADER_BYTES, encode_frame, frame_bytes
from wherry.model.errors import Corrupt

FIRST = "journal/00000000000000000001.log"
KEPT = [[b"first", b"second"], [b"third" * 9]]
TORN = [b"fourth" * 5, b"fifth" * 20, b"sixth"]  # one group, never confirmed


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make chunks smaller than some frames, so that every way of reading is taken."""
    monkeypatch.setattr(disk_scan, "CHUNK_BYTES", 96)


def disks() -> tuple[bytes, bytes, int, int]:
    """Return the file without and with the torn group, and where that group begins and ends."""

    async def run() -> tuple[bytes, bytes, int, int]:
        files = CutFiles()
        await written(files, KEPT)
        before = bytes(files.disk[FIRST])
        files.writes.clear()
        writer = await small(files).open()
        await append(writer, *TORN)
        _, offset, data = files.writes[-1]
        return before, bytes(files.disk[FIRST]), offset, offset + len(data)

    return asyncio.run(run())


BEFORE, AFTER, BEGIN, END = disks()
STARTS = [BEGIN, BEGIN + frame_bytes(30), BEGIN + frame_bytes(30) + frame_bytes(100), END]


async def same_length_leads_nowhere(disk: bytes, whole: int) -> None:
    """Open, write a frame exactly as long as the torn one, open again: none of the torn group may follow it."""
    files = CutFiles({FIRST: bytearray(disk)})
    kept = numbered([*KEPT, TORN[:whole]])
    assert await reopened(files) == kept
    assert await reopened(files) == kept
    if whole < len(TORN):
        writer = await small(files).open()
        await append(writer, b"N" * len(TORN[whole]))
        await writer.close()
        assert await reopened(files) == [*kept, (len(kept) + 1, b"N" * len(TORN[whole]))]


def test_a_tail_torn_at_every_byte_is_cut_there() -> None:
    async def run() -> None:
        for cut in range(BEGIN, END + 1):
            whole = sum(end <= cut or not any(AFTER[cut:end]) for end in STARTS[1:])
            await same_length_leads_nowhere(AFTER[:cut] + BEFORE[cut:], whole)

    asyncio.run(run())


def test_pages_that_came_in_the_wrong_order_are_cut() -> None:
    """Let only the end of the group reach the disk: its valid frames stand behind a hole."""

    async def run() -> None:
        for cut in range(BEGIN + 1, END):
            await same_length_leads_nowhere(BEFORE[:cut] + AFTER[cut:], 0)

    asyncio.run(run())


def test_a_hole_in_the_middle_of_the_group_is_cut() -> None:
    async def run() -> None:
        for cut in range(STARTS[1], STARTS[2] - 8, 8):
            whole = 1 if any(AFTER[cut : cut + 8]) else 3
            await same_length_leads_nowhere(AFTER[:cut] + bytes(8) + AFTER[cut + 8 :], whole)

    asyncio.run(run())


def test_without_the_zeros_the_torn_group_would_come_back() -> None:
    """Shows that the test above can fail: the frame behind the cut is whole, has the right position and seed."""

    async def run() -> None:
        files = CutFiles({FIRST: bytearray(BEFORE[: STARTS[1]] + AFTER[STARTS[1] :])})
        frame = b"".join(encode_frame(4, 3, [b"N" * 30], 7))
        files.disk[FIRST][BEGIN : STARTS[1]] = frame
        assert len(await reopened(files)) == 6

    asyncio.run(run())


@pytest.mark.parametrize("chunk_bytes", range(48, 48 + 2 * FRAME_HEADER_BYTES, 8))
def test_frames_across_the_edges_of_chunks_are_found(chunk_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put frames behind a hole of any length, so that the edges of the chunks fall on every place of their headers."""
    monkeypatch.setattr(disk_scan, "CHUNK_BYTES", chunk_bytes)

    async def run() -> None:
        for distance in range(FRAME_HEADER_BYTES, 3 * FRAME_HEADER_BYTES, 8):
            files = CutFiles({FIRST: bytearray(BEFORE)})
            frame = b"".join(encode_frame(5, 4, [b"vouches for 4"], 7))
            files.disk[FIRST][BEGIN + distance : BEGIN + distance + len(frame)] = frame
            with pytest.raises(Corrupt, match=f"entry 5 at byte {BEGIN + distance} proves"):
                await small(files).open()

    asyncio.run(run())


def test_small_bodies_do_not_keep_the_chunks_they_were_read_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check inside a chunk and across its edge: else one message that waits would keep megabytes."""
    monkeypatch.setattr(disk_scan, "CHUNK_BYTES", 200)

    async def run() -> None:
        files = CutFiles({FIRST: bytearray(AFTER)})
        engine = small(files)
        await engine.open()
        assert [type(record.body) async for record in engine.read(1)] == [bytes] * 6

    asyncio.run(run())


GROUPS = [[bytes([n]) * (40 + n * 91 % 700) for _ in range(1 + n % 3)] for n in range(16)]


def journal() -> dict[str, bytearray]:
    files = CutFiles()
    asyncio.run(written(files, GROUPS))
    return {path: data for path, data in files.disk.items() if "spare" not in path}


JOURNAL = journal()


def frames() -> Iterator[tuple[int, str, int, int]]:
    """Yield position, path, offset and bytes of every frame of `JOURNAL`."""
    path, at = FIRST, FILE_HEADER_BYTES
    for position, body in numbered(GROUPS):
        if f"journal/{position:020d}.log" in JOURNAL:
            path, at = f"journal/{position:020d}.log", FILE_HEADER_BYTES
        yield position, path, at, frame_bytes(len(body))
        at += frame_bytes(len(body))


FRAMES = list(frames())
CONFIRMED = len(FRAMES) - len(GROUPS[-1])


def copy() -> CutFiles:
    return CutFiles(JOURNAL)


def corrupt(files: CutFiles) -> Corrupt:
    """Open, which must refuse and leave everything as it was."""
    before = {path: bytes(data) for path, data in files.disk.items()}
    with pytest.raises(Corrupt) as raised:
        asyncio.run(small(files).open())
    assert files.disk == before
    assert files.writes == []
    files.lock()  # given back
    return raised.value


def test_the_journal_has_several_files() -> None:
    assert len(JOURNAL) > 3
    assert asyncio.run(reopened(copy())) == numbered(GROUPS)


@pytest.mark.parametrize("where", ["magic", "position", "body", "zeros"])
@pytest.mark.parametrize("frame", FRAMES[:CONFIRMED], ids=str)
def test_damage_at_every_confirmed_frame_is_refused(frame: tuple[int, str, int, int], where: str) -> None:
    position, path, at, size = frame
    files = copy()
    if where == "zeros":
        files.disk[path][at : at + size] = bytes(size)
    else:
        files.disk[path][at + {"magic": 0, "position": 8, "body": FRAME_HEADER_BYTES}[where]] ^= 4
    error = corrupt(files)
    assert (error.path, error.at) == (path, at)
    assert f"entry {position} " in str(error)


@pytest.mark.parametrize("frame", FRAMES[CONFIRMED:], ids=str)
def test_damage_in_the_last_group_is_cut_as_the_known_limit_describes(frame: tuple[int, str, int, int]) -> None:
    position, path, at, _ = frame
    files = copy()
    files.disk[path][at] ^= 1
    assert asyncio.run(reopened(files)) == numbered(GROUPS)[: position - 1]


def test_a_missing_file_in_the_middle_is_refused() -> None:
    files = copy()
    gone = sorted(files.disk)[1]
    del files.disk[gone]
    error = corrupt(files)
    assert error.path == FIRST
    assert f"entry {int(gone[-24:-4])} is missing" in str(error)


def test_a_missing_first_file_is_a_trimmed_one() -> None:
    files = copy()
    del files.disk[FIRST]
    first = int(min(files.disk)[-24:-4])
    assert asyncio.run(reopened(files)) == numbered(GROUPS)[first - 1 :]


@pytest.mark.parametrize("number", range(len(JOURNAL)))
def test_a_damaged_file_header_is_refused(number: int) -> None:
    files = copy()
    path = sorted(files.disk)[number]
    files.disk[path][9] ^= 1
    assert corrupt(files).path == path


def test_a_file_that_was_cut_short_is_refused() -> None:
    files = copy()
    del files.disk[FIRST][-8:]
    assert corrupt(files).path == FIRST


def test_a_single_file_without_header_that_is_not_the_first_is_refused() -> None:
    path = f"journal/{50:020d}.log"
    assert corrupt(CutFiles({path: bytearray(FILE_BYTES)})).path == path


@pytest.mark.parametrize("header", [b"", b"WHJF garbage", bytes(JOURNAL[FIRST])])
def test_a_last_file_without_its_header_was_never_used(header: bytes) -> None:
    """Try a fresh file, a torn one, and a reused one that still has the header and the frames of its earlier use."""
    files = copy()
    unused = f"journal/{len(FRAMES) + 1:020d}.log"
    files.disk[unused] = bytearray(header.ljust(FILE_BYTES, b"\0"))
    assert asyncio.run(reopened(files)) == numbered(GROUPS)
    assert unused not in files.disk


@pytest.mark.parametrize("content", [b"", bytes(FILE_BYTES)])
def test_a_journal_whose_making_was_cut_begins_anew(content: bytes) -> None:
    files = CutFiles({FIRST: bytearray(content)})
    assert asyncio.run(reopened(files)) == []


def test_frames_of_a_later_version_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    files = CutFiles({FIRST: bytearray(BEFORE)})
    monkeypatch.setattr("wherry.journal.format.VERSION", 2)
    frame = b"".join(encode_frame(4, 3, [b"new"], 7))
    monkeypatch.undo()
    files.disk[FIRST][BEGIN : BEGIN + len(frame)] = frame
    assert "another version" in str(corrupt(files))


def test_a_frame_inside_a_payload_is_not_a_frame() -> None:
    """Write a payload that is a frame of another journal, which would prove damage, and then tear the write."""

    async def run() -> None:
        files = CutFiles()
        inner = b"".join(encode_frame(9, 8, [b"from elsewhere"], 12345))
        writer = await small(files).open()
        await append(writer, b"kept")
        await append(writer, inner)
        await writer.close()
        files.disk[FIRST][FILE_HEADER_BYTES + frame_bytes(4)] ^= 1
        assert await reopened(files) == [(1, b"kept")]

    asyncio.run(run())


def test_damage_after_opening_is_found_by_reading() -> None:
    async def run() -> list[Record]:
        files = copy()
        engine = small(files)
        await engine.open()
        _, path, at, _ = FRAMES[3]
        files.disk[path][at + FRAME_HEADER_BYTES] ^= 1
        return [record async for record in engine.read(0)]

    with pytest.raises(Corrupt, match="entry 4 was damaged"):
        asyncio.run(run())


async def publish_and_trim(writer: Writer, chance: random.Random, sent: list[bytes], acked: list[int]) -> None:
    for _ in range(40):
        group = [chance.randbytes(chance.choice([0, 7, 100, 100, 100, 600])) for _ in range(chance.randint(1, 6))]
        del sent[writer.last :]
        sent += group
        await append(writer, *group)
        acked[0] = writer.last
        if chance.random() < 0.3:
            await writer.trim(writer.last - 20)


async def one_life(disk: dict[str, bytearray], seed: int, sent: list[bytes], acked: list[int]) -> dict[str, bytearray]:
    """Open, check, and work until the power is cut; return the disk that is left."""
    chance = random.Random(seed)
    files = CutFiles(disk, calls_left=chance.randint(0, 40), seed=seed)
    try:
        engine = small(files)
        writer = await engine.open()
        found = await bodies(engine)
        assert acked[0] <= writer.last <= len(sent)
        assert found == list(enumerate(sent, 1))[writer.last - len(found) : writer.last]
        assert not found or found[0][0] <= max(1, acked[0] - 19)
        await publish_and_trim(writer, chance, sent, acked)
    except PowerCut:
        pass
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*tasks, return_exceptions=True)
    return files.disk


@pytest.mark.parametrize("seed", range(12))
def test_no_confirmed_entry_is_lost_over_many_power_cuts(seed: int) -> None:
    async def run() -> None:
        disk: dict[str, bytearray] = {}
        sent: list[bytes] = []
        acked = [0]
        for life in range(20):
            disk = await one_life(disk, seed * 1000 + life, sent, acked)
        assert acked[0] > 50

    asyncio.run(run())
