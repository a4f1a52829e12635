"""Makes `journal_v1/`: a journal of version 1 as it was first written. Run once; the files must never change again.

PYTHONPATH=src:. python tests/golden/make_journal_v1.py
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from wherry.journal.disk.disk import DiskEngine
from wherry.journal.disk.real_files import RealFiles

FOLDER = Path(__file__).parent / "journal_v1"
FILE_BYTES = 1024
SEEDS = (0x01020304, 0xA5A5A5A5, 0)
GROUPS: list[list[list[bytes]]] = [
    [[b"a"], [b"two ", b"parts"], [b""]],
    [[bytes(range(256))]],
    [[b"12345678"], [b"123456789"]],
    [[b"does not fit into the first file" * 12], [b"goes with it" * 12]],
    [[b"a frame inside a body: WHJ1"], [b"WHJ1" * 64]],
]


def engine(root: Path) -> DiskEngine:
    seeds = iter(SEEDS)
    return DiskEngine(
        RealFiles(root), file_bytes=FILE_BYTES, reserve_bytes=128, entry_bytes_max=512, new_seed=lambda: next(seeds)
    )


async def make(root: Path) -> None:
    writer = await engine(root).open()
    for group in GROUPS:
        await writer.append(group, writer.last)
    await writer.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(make(Path(made)))
        FOLDER.joinpath("journal").mkdir(parents=True, exist_ok=True)
        for path in Path(made, "journal").glob("0*.log"):
            shutil.copyfile(path, FOLDER / "journal" / path.name)


if __name__ == "__main__":
    main()
