"""The package as people install it: one command, everything it needs declared, small and quick to load."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

THEIRS = {"pytest", "pandas", "opentelemetry"}
"""Loaded only where they are installed; the last one is many packages under one name."""


def named(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_.-]", text)[0].lower().replace("_", "-") for text in requirements}


def imported() -> dict[str, Path]:
    """Return every foreign module that the package imports, with a file that does."""
    found: dict[str, Path] = {}
    for path in (ROOT / "src/wherry").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            found |= {name.partition(".")[0]: path for name in names}
    return {name: path for name, path in found.items() if name not in sys.stdlib_module_names and name != "wherry"}


@pytest.mark.more
@pytest.mark.rows("D16")
def test_one_install_brings_everything_that_is_imported():
    base = named(PROJECT["dependencies"])
    extras = {
        name
        for key, listed in PROJECT["optional-dependencies"].items()
        if key not in ("dev", "test")
        for name in named(listed)
    }
    owners = packages_distributions()
    for module, path in imported().items():
        declared = {name.lower().replace("_", "-") for name in owners.get(module, [module])}
        assert declared & (base | extras) or module in THEIRS, f"{path} imports {module}"
    assert PROJECT["scripts"] == {"wherry": "wherry.cli.main:main"}


@pytest.mark.rows("Q1")
def test_the_package_is_small_and_documents_what_it_is_not_for():
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, wherry; print(*sys.modules)"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"pyarrow", "numpy", "typer", "rich", "prometheus_client", "uvloop"} & set(loaded)
    assert len(PROJECT["dependencies"]) <= 12
    assert "not aimed at tracking financial transactions" in (ROOT / "README.md").read_text()
