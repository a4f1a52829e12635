"""Short names for what every test of the disk journal does."""

from __future__ import annotations

from collections.abc import Sequence

from wherry.journal.disk.disk import DiskEngine
from wherry.journal.disk.files import Files
from wherry.journal.engine import Engine, Writer

FILE_BYTES = 4096
ENTRY_BYTES_MAX = 1024


def small(files: Files, **options: int) -> DiskEngine:
    return DiskEngine(
        files,
        file_bytes=options.get("file_bytes", FILE_BYTES),
        reserve_bytes=options.get("reserve_bytes", 512),
        entry_bytes_max=options.get("entry_bytes_max", ENTRY_BYTES_MAX),
        new_seed=lambda: 7,  # the same for every file: only positions keep stale frames out
    )


async def append(writer: Writer, *bodies: bytes) -> None:
    outcome = await writer.append([[body] for body in bodies], writer.last)
    assert type(outcome).__name__ == "Appended", outcome


async def bodies(engine: Engine, start: int = 0) -> list[tuple[int, bytes]]:
    return [(position, bytes(body)) async for position, body in engine.read(start)]


async def reopened(files: Files, **options: int) -> list[tuple[int, bytes]]:
    engine = small(files, **options)
    writer = await engine.open()
    found = await bodies(engine)
    assert writer.last == (found[-1][0] if found else writer.last)
    await writer.close()
    return found


async def written(files: Files, groups: Sequence[Sequence[bytes]], **options: int) -> None:
    writer = await small(files, **options).open()
    for group in groups:
        await append(writer, *group)
    await writer.close()


def numbered(groups: Sequence[Sequence[bytes]]) -> list[tuple[int, bytes]]:
    return list(enumerate((body for group in groups for body in group), 1))
