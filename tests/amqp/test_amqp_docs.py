"""The page about AMQP runs as printed."""

import re
import subprocess
from pathlib import Path

from tests.environments import python_with

PAGE = Path(__file__).parents[2] / "docs/amqp.md"


def test_its_python_runs(amqp_url):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    host = amqp_url.partition("://")[2].rpartition("@")[2].rstrip("/")
    program = block.replace("127.0.0.1:5672", host)
    assert program != block
    done = subprocess.run([python_with("pika"), "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
