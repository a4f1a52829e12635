"""Every block of Python in docs/client.md runs as printed, against a node."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from tests.integration.worlds import Node

PAGE = (Path(__file__).parents[2] / "docs/client.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PRINTED = [
    "0-0 b'hello'\n0-1 b'world'\n0-2 b'later'\n",
    "b'hello'\n",
    "the last one is stored as 0-9999\n",
    "{'0-0': 'settled', '0-1': 'dead'}\nFate(fate='dead', subscriptions={'workers': 'dead'})\n",
    "499500\n",
]


@pytest.mark.parametrize("number", range(len(PRINTED)))
def test_a_block_runs_as_printed(number: int, tmp_path: Path):
    async def main() -> tuple[bytes, bytes]:
        async with Node(tmp_path / "home") as node:
            block = BLOCKS[number].replace("http://127.0.0.1:7070", node.url)
            program = await asyncio.create_subprocess_exec(
                *(sys.executable, "-W", "error", "-c", block),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            return await asyncio.wait_for(program.communicate(), 60)

    assert len(BLOCKS) == len(PRINTED)
    assert asyncio.run(main()) == (PRINTED[number].encode(), b"")
