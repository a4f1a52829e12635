"""The house is tidy: short files and functions, folders that show their shape, no path of a machine."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 55
"""Of a function, with its docstring. Commands are longer: each option is a line or two, and `--help` reads them."""

COMMAND_LINES_MAX = 65
MODULES_MAX = 14
"""Modules of a folder of the product, Python or JavaScript, without `__init__`: more are sub-folders."""

SOCKET = re.compile(r"\.listen\(|open_connection\(|start_server\(|create_(?:server|connection)\(|socket\.socket\(")
"""How a test would open a socket."""

MACHINE = re.compile(r"/(?:root|home|work|Users)/[a-z]|files\.pythonhosted\.org|registry\.npmjs\.org")


def tracked(*endings: str) -> list[Path]:
    """Return files under version control; all files of the tree where there is no repository, as in an archive."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split(
        "\n"
    )
    names = [each for each in listed if each] or [str(each.relative_to(ROOT)) for each in ROOT.rglob("*")]
    return [ROOT / name for name in names if name.endswith(endings) and (ROOT / name).is_file()]


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_file_is_long():
    long = {shown(path): len(path.read_text().splitlines()) for path in tracked(".py", ".js")}
    assert {name: lines for name, lines in long.items() if lines > FILE_LINES_MAX} == {}


def test_no_function_is_long():
    long = {}
    for path in (path for path in tracked(".py") if shown(path).startswith("src")):
        most = COMMAND_LINES_MAX if "cli/commands" in shown(path) else FUNCTION_LINES_MAX
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > most:
                    long[f"{shown(path)}:{node.name}"] = lines
    assert long == {}


def test_no_folder_is_flat():
    modules = Counter(shown(path.parent) for path in tracked(".py", ".js") if path.name != "__init__.py")
    flat = {folder: count for folder, count in modules.items() if folder.startswith("src/") and count > MODULES_MAX}
    assert flat == {}


def test_every_package_has_a_docstring():
    silent = [
        shown(path)
        for path in tracked("__init__.py")
        if shown(path).startswith("src/") and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_no_unit_test_opens_a_socket():
    unit = [path for path in tracked(".py") if shown(path).startswith("tests/unit/")]
    assert [shown(path) for path in unit if SOCKET.search(path.read_text())] == []


@pytest.mark.parametrize("ending", [".py", ".md", ".toml", ".js", ".html", ".c", ".h", ".3", "Makefile"])
def test_no_path_of_a_machine_and_no_registry(ending):
    found = {
        shown(path): hits
        for path in tracked(ending)
        if path != Path(__file__) and (hits := MACHINE.findall(path.read_text()))
    }
    assert found == {}
