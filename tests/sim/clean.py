"""The checks that a seed is clean, else the error names the command that repeats it, and that it has one trace."""

import os
import subprocess
import sys

from wherry.sim.__main__ import failure, try_seed


def assert_clean(seed: int, part: str) -> None:
    """Run one part of a seed; fail with its violations and with the command that repeats it."""
    violations = try_seed(seed, [part])
    assert not violations, failure(seed, violations)


def assert_one_trace(program: str) -> None:
    """Run a program that prints traces under two hash seeds; fail if it prints two texts."""
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "4711")
    }
    assert len(traces) == 1
