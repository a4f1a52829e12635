"""A journal that version 1 wrote must always open and give exactly its entries; writing it again gives its bytes."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from tests.golden.make_journal_v1 import FOLDER, GROUPS, engine, make

BODIES = [b"".join(parts) for group in GROUPS for parts in group]


def test_an_old_journal_opens_and_has_its_bodies(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "copy")

    async def run() -> None:
        journal = engine(tmp_path / "copy")
        writer = await journal.open()
        assert [(record.position, bytes(record.body)) async for record in journal.read(0)] == list(enumerate(BODIES, 1))
        await writer.append([[b"goes on"]], len(BODIES))
        await writer.close()

    asyncio.run(run())


def test_the_same_bytes_are_still_written(tmp_path: Path) -> None:
    asyncio.run(make(tmp_path))
    golden = {path.name: path.read_bytes() for path in FOLDER.glob("journal/*.log")}
    assert len(golden) == 3
    assert {path.name: path.read_bytes() for path in tmp_path.glob("journal/0*.log")} == golden
