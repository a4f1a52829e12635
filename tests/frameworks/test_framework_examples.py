"""The examples of the frameworks run as their pages print them; only the port of the broker is another."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.environments import PINS, programs
from tests.frameworks.programs import PATIENCE_S, Program, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"

READY = {
    "celery": " ready.",
    "dramatiq": "Worker process is ready for action",
    "faststream": "FastStream app started successfully",
}
"""What a worker prints when it is ready."""


def blocks(name: str, kind: str) -> list[str]:
    page = (EXAMPLES / name / "README.md").read_text()
    return re.findall(rf"^```{kind}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", list(READY))
def test_it_runs_as_printed(name, amqp_url, tmp_path):
    serve, work, send = blocks(name, "sh")
    printed, *meanwhile = blocks(name, "text")
    install, start = work.splitlines()
    assert serve == "wherry serve\n"
    assert install.removeprefix("pip install ").strip("'") == PINS[name][0]
    environment = {
        "AMQP_URL": amqp_url,
        "PATH": f"{programs(name)}:/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(tmp_path),
    }
    folder = EXAMPLES / name
    with Program(["bash", "-ec", f"exec {start}"], tmp_path / "log", environment, folder) as worker:
        worker.until_printed(READY[name])
        sent = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", send],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert (sent.returncode, sent.stdout) == (0, printed), sent.stderr + worker.output()
        lines = [line for block in meanwhile for line in block.splitlines()]
        wait_until(lambda: all(line in worker.output() for line in lines), worker.output)
