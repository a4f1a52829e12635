"""Checkpoints of streaming queries whose driver died before the first micro-batch was planned."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlparse

LOGS = ("offsets", "commits")


def clear_unbegun(location: str) -> list[Path]:
    """Remove what was left in a checkpoint by a driver that was killed while it wrote the first offsets of a query.

    Spark writes them to a file with a hidden name, and renames it. When it finds such a file and no offsets, it refuses
    to start the query ("should be empty on batch 0"), although no micro-batch has begun. A checkpoint with offsets is
    not changed, nor is one that is not on a disk of this machine, where Spark renames no files.

    Parameters
    ----------
    location
        The option `checkpointLocation` of the query.

    Returns
    -------
    list of Path
        The files that were removed.

    Examples
    --------
    >>> clear_unbegun("no such checkpoint")
    []
    """
    parts = urlparse(location)
    if parts.scheme not in ("", "file"):
        return []
    root = Path(unquote(parts.path) if parts.scheme else location)
    found = [path for name in LOGS if (root / name).is_dir() for path in (root / name).iterdir()]
    if not all(path.name.startswith(".") for path in found):
        return []
    for path in found:
        path.unlink(missing_ok=True)
    return found
