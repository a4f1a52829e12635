"""A home for Spark whose Python processes start in a third of the time.

Spark starts a Python process for each stream and for each kind of work, and lets it import `pyspark` from a zip file
beside its jars. A zip file holds no bytecode, so each process compiles what it imports: about a second of processor
time, where the installed package takes a third. The home made here consists of links to the installed package, without
that zip file: then processes import `pyspark` from where pip installed it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import shutil
import tempfile
from pathlib import Path

_log = logging.getLogger("wherry.spark")

ZIPPED = Path("python", "lib")
"""The folder with the zip files, in the home of a Spark that pip installed."""


def cache() -> Path:
    """Return the folder for files that Wherry can make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wherry"


def linked_home(folder: Path | None = None) -> Path | None:
    """Return a home of links; None if Spark was not installed by pip, or the folder cannot be written."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    installed = Path(spec.origin).resolve().parent
    if not (installed / ZIPPED / "pyspark.zip").exists() or not (installed / "jars").is_dir():
        return None
    name = hashlib.sha256(str(installed).encode()).hexdigest()[:16]
    home = (folder or cache() / "spark") / name
    try:
        if not home.exists() or _targets(home) != _wanted(installed):
            _make(home, installed)
    except OSError as fault:
        _log.info("Spark runs from where it is installed, not from links to it", extra={"why": str(fault)})
        return None
    return home


def _wanted(installed: Path) -> dict[Path, Path]:
    """Return the links of a home: all of the package but the zip files."""
    parts = [*installed.iterdir(), *(installed / ZIPPED.parent).iterdir()]
    kept = (
        part for part in parts if part.name != "__pycache__" and part not in (installed / "python", installed / ZIPPED)
    )
    return {part.relative_to(installed): part for part in kept}


def _targets(home: Path) -> dict[Path, Path]:
    return {
        link.relative_to(home): link.readlink()
        for link in (*home.iterdir(), *(home / "python").iterdir())
        if link.is_symlink()
    }


def _make(home: Path, installed: Path) -> None:
    """Make the links beside their place, then move them there, since other processes may start a Spark meanwhile."""
    home.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=home.parent))
    (fresh / "python").mkdir()
    for name, part in _wanted(installed).items():
        (fresh / name).symlink_to(part)
    old = fresh.with_suffix(".old")
    try:
        if home.exists():  # links to another version of the package
            home.rename(old)
        fresh.rename(home)
    except OSError:  # another process was quicker
        shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
