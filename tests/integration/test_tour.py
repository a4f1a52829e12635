"""The tour runs from start to end, teaches what it should, and tidies up."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

WORDS = (
    "create_topic",
    "publish",
    "Arrow",
    "lease",
    "ack",
    "nack",
    "dead letter",
    "redriven",
    "priority",
    "scheduled",
    "amend",
    "cancel",
    "transaction",
    "SIGKILL",
    "browse",
    "search",
    "ready",
    "a second",
    "README.md",
)


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the tour in a process of its own, with its temporary files where a test can see them."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "wherry", "tour", *arguments],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_tour_shows_everything_and_leaves_nothing(tmp_path):
    process = start(tmp_path)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert [word for word in WORDS if word not in out] == []
    assert "5,000 messages are there" in out
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_was_named_is_kept_and_not_overwritten(tmp_path):
    process = start(tmp_path, "kept")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "kept is kept" in out
    assert (tmp_path / "kept" / "tour" / "journal").is_dir()
    again = start(tmp_path, "kept")
    _, errors = again.communicate(timeout=60)
    assert again.returncode == 2
    assert "not an empty directory" in errors


def test_control_c_ends_the_tour_quietly(tmp_path):
    process = start(tmp_path)
    assert process.stdout is not None
    while "Pull and ack" not in process.stdout.readline():
        time.sleep(0)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")
    assert "Stopped" in out
    assert list(tmp_path.iterdir()) == []
