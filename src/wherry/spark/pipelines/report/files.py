"""A report in a folder: `report.json` for programs, `index.html` for people, and a PNG of each plot."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from wherry.spark.pipelines.report.page import page
from wherry.spark.pipelines.report.plots import DARK, LIGHT, plots
from wherry.spark.pipelines.report.report import Report

JSON, PAGE = "report.json", "index.html"


def write(report: Report, folder: Path) -> list[Path]:
    """Write all files; `report.json` is the last, so that all others exist once it does."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = plots(report)
    files: dict[str, bytes] = {}
    for plot in drawn:
        files[f"{plot.name}.png"] = plot.png[LIGHT.name]
        files[f"{plot.name}-dark.png"] = plot.png[DARK.name]
    files[PAGE] = page(report, drawn).encode()
    files[JSON] = msgspec.json.format(msgspec.json.encode(report), indent=1)
    return [_put(folder / name, content) for name, content in files.items()]


def read(folder: Path) -> Report:
    """Return a report that was written before."""
    return msgspec.json.decode((folder / JSON).read_bytes(), type=Report)


def _put(path: Path, content: bytes) -> Path:
    """Write a file in one step, so that no reader sees a part of it."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(content)
    fresh.replace(path)
    return path
