"""Follow docs/first-queue.md from start to end: each block runs as printed, and prints what the page shows."""

import re
from pathlib import Path

from tests.integration.shell import bash, broker, write_commands

PAGE = (Path(__file__).parents[2] / "docs/first-queue.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(sh|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RESTART = "Stop the broker in the first terminal with Ctrl-C, and start it again"


def follow(part: str, folder: Path, url: str) -> int:
    """Follow a part of the page; return how many outputs of it were compared."""
    printed, compared = "", 0
    for kind, code in BLOCK.findall(part):
        if kind == "python":
            [name] = re.findall(r"Save this program as `(\w+\.py)`", part)
            (folder / name).write_text(code.replace("http://127.0.0.1:7070", url))
        elif kind == "sh":
            done = bash(code, folder, url)
            assert done.returncode == 0, (code, done.stderr)
            printed = done.stdout
        else:
            assert printed.endswith(code)
            compared += 1
    return compared


def test_the_tutorial_runs_as_printed_over_a_restart_of_the_broker(tmp_path):
    write_commands(tmp_path)
    before, after = PAGE.split(RESTART)
    with broker(tmp_path) as url:
        assert follow(before, tmp_path, url) == 4
    with broker(tmp_path) as url:
        assert follow(after, tmp_path, url) == 1
