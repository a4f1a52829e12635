"""Environments as `pip install` leaves them, without installing anything: links to what some requirements bring along.

The tests run where every extra is installed. A Python that sees such a folder and nothing else is what a reader of the
README has.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

SOURCES = Path(__file__).parents[2] / "src"


def closure(wanted: Iterable[str]) -> dict[str, Distribution]:
    """Return the packages that these requirements bring, by name."""
    found: dict[str, Distribution] = {}
    asked: set[str] = set()
    left = [Requirement(text) for text in wanted]
    while left:
        requirement = left.pop()
        key = f"{requirement.name}[{','.join(sorted(requirement.extras))}]".lower()
        if key in asked:
            continue
        asked.add(key)
        package = found[requirement.name.lower()] = distribution(requirement.name)
        for text in package.requires or ():
            each = Requirement(text)
            if each.marker is None or any(
                each.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)
            ):
                left.append(each)
    return found


def installed(folder: Path, wanted: Iterable[str]) -> dict[str, str]:
    """Return environment variables with which `python` and `wherry` find these requirements, and nothing else."""
    site, bin_ = folder / "site", folder / "bin"
    site.mkdir(parents=True)
    bin_.mkdir()
    for package in closure(wanted).values():
        for path in {Path(str(each)).parts[0] for each in package.files or ()} - {"..", "__pycache__"}:
            there = Path(str(package.locate_file(path)))
            if there.exists() and there.suffix != ".pth" and not (site / path).exists():
                (site / path).symlink_to(there)
    for name in ("wherry", "pyspark_wherry"):
        (site / name).symlink_to(SOURCES / name)
    for name, words in (("python", "-S"), ("wherry", "-S -m wherry")):
        script = bin_ / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        script.chmod(0o755)
    return {**os.environ, "PYTHONPATH": str(site), "PATH": f"{bin_}:{os.environ['PATH']}"}


def named_in(text: str) -> list[str]:
    """Return what a text asks to install: `pip install polars`, `pip install '.[docs]'`."""
    found = re.findall(r"pip install (?:'([^']+)'|([\w.\[\],-]+))", text)
    return [re.sub(r"^(?:\.|wherry)(?=\[|$)", "wherry", quoted or plain) for quoted, plain in found]
