"""What no linter rule covers: pure code and builtins that differ by process, and the shard behind the broker's port."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src/wherry"
PURE = sorted(path for folder in ("model", "core") for path in (SOURCE / folder).rglob("*.py"))

OUTSIDE = sorted(path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in ("broker", "sim"))
"""What reaches the broker through `broker.port`."""

BANNED = {
    "hash": "it differs from process to process for strings; use a stated hash function",
    "input": "pure code does no IO",
    "open": "pure code does no IO",
    "__import__": "it hides an import from the layers check",
}


def impure_calls(source: str) -> list[str]:
    return [
        f"line {node.lineno}: {node.func.id}(): {BANNED[node.func.id]}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BANNED
    ]


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_pure_code_calls_no_builtin_that_depends_on_the_process(path):
    assert impure_calls(path.read_text(encoding="utf-8")) == []


def test_a_planted_call_is_found():
    assert len(impure_calls("def f(key):\n    return hash(key) % 7\n")) == 1


def test_nothing_outside_the_broker_reaches_its_shard():
    found = {
        path.relative_to(SOURCE).as_posix() for path in OUTSIDE if re.search(r"\.shard\b", path.read_text("utf-8"))
    }
    assert found == set(), "these need a call of `broker.port` instead"
