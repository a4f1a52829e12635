"""Assignment strategies of others in a real `wherry serve`: a package beside it, found by its entry point."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

import wherry

PAGE = (Path(__file__).parents[2] / "docs/semantics.md").read_text(encoding="utf-8")
(STICKY,) = re.findall(r"^```python\n(class Sticky.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
(TABLE,) = re.findall(
    r'^```toml\n\[project.entry-points."wherry.assignments"\]\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL
)

pytestmark = pytest.mark.rows("D12")


def installed(folder: Path, code: str, points: str) -> Path:
    """Install a package as pip leaves it: a module, and a folder with its entry points."""
    about = folder / "my_package-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "my_package.py").write_text(code)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[wherry.assignments]\n{points.replace(chr(34), '')}")
    return folder


def command(data: Path) -> list[str]:
    flags = ["--port", "0", "--log-format", "json"]
    return [sys.executable, "-m", "wherry", "serve", "--data", str(data), *flags]


@contextmanager
def serving(data: Path, package: Path) -> Iterator[str]:
    """Yield the address of a node that finds a package."""
    environment = {**os.environ, "PYTHONPATH": str(package)}
    with subprocess.Popen(
        command(data), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                entry = json.loads(line)
                if entry["message"] == "ready":
                    break
            else:
                pytest.fail("it did not start")
            yield entry["url"]
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def test_a_strategy_of_an_installed_package_shares_out_partitions_also_after_a_restart(tmp_path: Path):
    package, data = installed(tmp_path / "site", STICKY, TABLE), tmp_path / "data"
    with serving(data, package) as url, wherry.connect_sync(url) as client:
        client.create_topic("jobs", partitions=2)
        client.subscribe("jobs", "workers", assignment="sticky")
        with urlopen(f"{url}/openapi.json", timeout=20) as answer:
            assert '"sticky"' in answer.read().decode(), "the interface lists the strategy"
    with serving(data, package) as url, wherry.connect_sync(url) as client:
        for name in ("ann", "bob", "cid"):
            client.pull("jobs", "workers", consumer=name)
        with urlopen(f"{url}/v1/topics/jobs/subscriptions/workers/consumers", timeout=20) as answer:
            found = {each["name"]: each["partitions"] for each in json.load(answer)["consumers"]}
        assert found == {"ann": [0], "bob": [1], "cid": []}


@pytest.mark.parametrize(
    ("code", "points", "why"),
    [
        ("x = 1/0", "broken = my_package:Sticky\n", "ZeroDivisionError"),
        (STICKY.replace("rotates", "turns"), "broken = my_package:Sticky\n", "rotates"),
        (
            STICKY.replace("range(partitions)", "range(7, 9)"),
            "broken = my_package:Sticky\n",
            "from 0",
        ),
        (STICKY, "shared = my_package:Sticky\n", "not taken"),
    ],
)
def test_an_entry_point_that_is_no_strategy_stops_the_start_and_is_named(
    tmp_path: Path, code: str, points: str, why: str
):
    environment = {**os.environ, "PYTHONPATH": str(installed(tmp_path / "site", code, points))}
    ended = subprocess.run(
        command(tmp_path / "data"), capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert ended.returncode != 0
    assert points.split(maxsplit=1)[0] in ended.stderr
    assert why in ended.stderr
    assert "Traceback" not in ended.stderr
