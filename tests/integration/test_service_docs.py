"""The example of services, and the programs of their page, run as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "services.py"
PROGRAMS = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "docs" / "services.md").read_text(encoding="utf-8"), re.S | re.M
)


@pytest.mark.rows("P1", "P3")
def test_two_services_and_a_caller_in_40_lines_run_as_printed():
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 40
    command = [sys.executable, "-W", "error", str(EXAMPLE), str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("total: 7\n", "")


def test_the_page_shows_the_example_and_its_first_program_runs(tmp_path):
    first, shown, rights = PROGRAMS
    assert shown == EXAMPLE.read_text(encoding="utf-8")
    (tmp_path / "first.py").write_text(first)
    command = [sys.executable, "-W", "error", "first.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+ 3\n", done.stdout), done.stderr
    page = (ROOT / "docs" / "identity.md").read_text(encoding="utf-8")
    trust = [each for each in re.findall(r"^```python\n(.*?)^```$", page, re.S | re.M) if "TrustedIssuer" in each]
    for program in (rights, *trust):
        exec(compile(program, "rights", "exec"), {})
    assert len(trust) == 1
