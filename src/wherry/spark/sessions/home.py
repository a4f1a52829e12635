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
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

_log = logging.getLogger("wherry.spark")

ZIPPED = Path("python", "lib")
"""The folder with the zip files, in the home of a Spark that pip installed."""


def cache() -> Path:
    """Return the folder for files that Wherry can make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wherry"


def worker_python(conf: Mapping[str, str]) -> str:
    """Return the Python that the workers of a session run on."""
    return conf.get("spark.pyspark.python", os.environ.get("PYSPARK_PYTHON", sys.executable))


def home_for(master: str, conf: Mapping[str, str]) -> Path | None:
    """Return the home of links for a session; None if Spark should run from where it is installed, or was told to.

    Only on this machine, and only if the Python of the workers is this one: another may have no `pyspark` but the zip.
    """
    if not master.startswith("local") or "SPARK_HOME" in os.environ or worker_python(conf) != sys.executable:
        return None
    return linked_home()


def linked_home(folder: Path | None = None) -> Path | None:
    """Return a home of links; None if Spark was not installed by pip, or the folder cannot be written."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    installed = Path(spec.origin).resolve().parent
    if not (installed / ZIPPED / "pyspark.zip").exists() or not (installed / "jars").is_dir():
        return None
    try:
        links = _links(installed)
        home = (folder or cache() / "spark") / hashlib.sha256(repr(sorted(links.items())).encode()).hexdigest()[:16]
        if not all((home / name).is_symlink() for name in links):
            _make(home, links)
    except (OSError, RuntimeError) as fault:  # `Path.home` raises a RuntimeError for a user without one
        _log.info("Spark runs from where it is installed, not from links to it", extra={"why": str(fault)})
        return None
    return home


def _links(installed: Path) -> dict[Path, Path]:
    """Return the links of a home: all of the package but the zip files."""
    left_out = (installed / "__pycache__", installed / ZIPPED.parent, installed / ZIPPED)
    parts = (*installed.iterdir(), *(installed / ZIPPED.parent).iterdir())
    return {part.relative_to(installed): part for part in parts if part not in left_out}


def _make(home: Path, links: Mapping[Path, Path]) -> None:
    """Make the links beside their place, then move them there.

    A home that is whole is never replaced, since other processes may start a Spark from it: its name tells its links.
    """
    home.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=home.parent))
    try:
        (fresh / ZIPPED.parent).mkdir()
        for name, part in links.items():
            (fresh / name).symlink_to(part)
        try:
            fresh.rename(home)
        except OSError:
            if all((home / name).is_symlink() for name in links):
                return  # another process was quicker
            home.rename(fresh / "broken")  # some of its links were removed
            fresh.rename(home)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
