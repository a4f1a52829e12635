"""Every block of Python in the README runs as printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)


def run(block: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The block as a program of its own, in an empty directory; warnings are errors there too."""
    program = folder / "block.py"
    program.write_text(block)
    return subprocess.run(
        [sys.executable, "-W", "error", program], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_page_has_blocks():
    assert len(BLOCKS) >= 5


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_runs_as_printed(number, tmp_path):
    done = run(BLOCKS[number], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_first_block_prints_its_messages_and_is_ten_lines(tmp_path):
    assert run(BLOCKS[0], tmp_path).stdout == "[b'hello', b'world']\n"
    inside = BLOCKS[0].split("async def main():\n")[1].split("\n\n")[0]
    assert len(inside.splitlines()) <= 10


def test_the_last_block_finds_a_segment(tmp_path):
    assert "'payload'" in run(BLOCKS[-1], tmp_path).stdout
