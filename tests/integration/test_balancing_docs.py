"""Every block of docs/balancing.md runs as printed, one after another."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from wherry.cli.main import app

PAGE = (Path(__file__).parents[2] / "docs/balancing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|sh)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PRINTED = [
    "customer-7 c\ncustomer-8 b\ncustomer-7 c\nb 1 calls, 0.1 s\nc 2 calls, 0.1 s\n",
    "",
    "timed out\nbilling.total, sent again: 3\n",
    "call-1 billing.total timed out b'order 7'\n",
]


def test_blocks_run_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = [
        subprocess.run([sys.executable, "-W", "error", "-c", block], capture_output=True, text=True, check=True).stdout
        for kind, block in BLOCKS
        if kind == "python"
    ]
    assert printed == PRINTED
    lines = [line for kind, block in BLOCKS if kind == "sh" for line in block.splitlines()]
    assert len(lines) == 4
    done = [CliRunner().invoke(app, shlex.split(line)[1:], catch_exceptions=False) for line in lines]
    assert [each.exit_code for each in done] == [0] * 4
    assert "call-1" in done[0].stdout
    assert "order 7" in done[1].stdout
    assert "1 dropped" in done[3].stderr
