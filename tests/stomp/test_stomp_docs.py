"""The page about STOMP runs as printed."""

import re
import subprocess
from pathlib import Path

from tests.environments import python_with

PAGE = Path(__file__).parents[2] / "docs/stomp.md"


def test_its_python_runs(port):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    program = block.replace("61613", str(port))
    assert program != block
    done = subprocess.run(
        [python_with("stomp.py-8"), "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
