"""`wherry.scan` by Polars and DuckDB, beside the same engines over Parquet with the same rows, in the same run.

The log is read of the node's files, as on its own machine, and through Flight, as from elsewhere; `archive` reads the
files of an archive. Each rate is the median of several rounds; what it is compared with is measured between them.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import wherry
from bench.figure import Figure
from bench.measuring import disk, progress
from bench.spark import Node, fill, node
from wherry.model.calls.log import LOGGED
from wherry.scanning.columns import MESSAGES
from wherry.spark.link import FlightLink
from wherry.spark.pipelines.archive import files as archive_files
from wherry.spark.pipelines.archive import manifest
from wherry.spark.pipelines.archive.manifest_store import store

COUNT = 1_000_000
ROUNDS = 3
TOPIC = "log"
GROUP_ROWS = 131_072
TARGET_BYTES = 128 << 20
IN_FILES_S = 10

TOUCH = (
    'SELECT count(topic), sum(partition), sum("offset"), count(id), count(key), sum(priority), count(due),'
    " count(expires), max(published), count(headers), sum(octet_length(payload)) FROM rows"
)
FEW = 'SELECT count(DISTINCT key), sum("offset") FROM rows'
COUNTED = "SELECT count(*) FROM rows"

Query = Callable[[Any], object]
"""What an engine does with a source: a lazy frame, or a relation."""


def figures(scale: int) -> list[Figure]:
    """Return everything about scans; nothing where polars or duckdb is not installed."""
    try:
        import duckdb  # noqa: F401, PLC0415  extras
        import polars  # noqa: F401, PLC0415
    except ImportError:
        return []
    count = COUNT // scale
    with tempfile.TemporaryDirectory(dir=disk(), prefix="bench-scan-") as root, node(Path(root) / "node") as here:
        fill(here, TOPIC, count)
        _wait_for_files(here)
        parquet = Path(root) / "log.parquet"
        _write_parquet(here, parquet)
        archive = _archived(here, Path(root) / "lake")
        sources = {
            "files": lambda: wherry.scan(TOPIC, url=here.flight_url),
            "flight": lambda: wherry.scan(TOPIC, url=here.flight_url, local_files=False),
            "archive": lambda: wherry.scan(TOPIC, url=here.flight_url, archive=archive),
        }
        return _measured(sources, str(parquet), count)


def _measured(sources: dict[str, Callable[[], wherry.Scan]], parquet: str, count: int) -> list[Figure]:
    import duckdb  # noqa: PLC0415  an extra
    import polars as pl  # noqa: PLC0415  an extra

    con = duckdb.connect()
    found = []
    for name, (by_polars, by_duckdb) in _queries(count).items():
        rows = count // 100 if name == "skipped" else count
        for engine, query, plain, opened in (
            ("polars", by_polars, partial(pl.scan_parquet, parquet), wherry.Scan.polars),
            ("duckdb", by_duckdb, partial(con.read_parquet, parquet), partial(wherry.Scan.duckdb, connection=con)),
        ):
            against = "pl.scan_parquet" if engine == "polars" else "read_parquet"
            took: dict[str, list[float]] = {"parquet": [], **{place: [] for place in sources}}
            for _ in range(ROUNDS):
                took["parquet"].append(_timed(partial(query, plain())))
                for place, scan in sources.items():
                    took[place].append(_timed(partial(query, opened(scan()))))
            rate = {place: rows / statistics.median(each) for place, each in took.items()}
            unit = f"rows/s, {name}"
            found += [
                Figure(f"scan.{engine}_{name}_{place}", rate[place], unit, against, rate["parquet"])
                for place in sources
            ]
            progress(f"{engine} {name}: " + "  ".join(f"{place} {value:,.0f}" for place, value in rate.items()))
    return found


def _queries(count: int) -> dict[str, tuple[Query, Query]]:
    """Return queries by name: over all columns, few columns, none, and rows of which a filter skips most."""
    import polars as pl  # noqa: PLC0415  an extra

    col = pl.col
    last = count // 200  # of each of the two partitions: together a hundredth of the rows
    touched = [
        *(col(name).count() for name in ("topic", "id", "key", "due", "expires", "headers")),
        *(col(name).sum() for name in ("partition", "offset", "priority")),
        col("published").max(),
        col("payload").bin.size().sum(),
    ]

    def collected(frame: Any) -> object:
        return frame.collect(engine="streaming")

    def asked(text: str) -> Query:
        return lambda rows: rows.query("rows", text).fetchall()

    behind = f'WHERE "offset" >= {count // 2 - last}'
    return {
        "all": (lambda frame: collected(frame.select(touched)), asked(TOUCH)),
        "few": (lambda frame: collected(frame.select(col("key").n_unique(), col("offset").sum())), asked(FEW)),
        "count": (lambda frame: collected(frame.select(pl.len())), asked(COUNTED)),
        "skipped": (
            lambda frame: collected(frame.filter(col("offset") >= count // 2 - last).select(touched)),
            asked(f"{TOUCH} {behind}"),
        ),
    }


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _wait_for_files(here: Node) -> None:
    """Wait until the node has moved what was filled in to segments, or has done what it does of that."""
    link, until = FlightLink(here.flight_url), time.monotonic() + IN_FILES_S
    stops = link.action("extents", {"topic": TOPIC})["stop"]
    while time.monotonic() < until:
        asked = [
            {"topic": TOPIC, "partition": int(number), "start": stop // 2, "stop": stop}
            for number, stop in stops.items()
        ]
        if all(link.action("nearby", each)["in_files"] for each in asked):
            return
        time.sleep(0.5)


def _write_parquet(here: Node, path: Path) -> None:
    scan = wherry.scan(TOPIC, url=here.flight_url)
    with pq.ParquetWriter(path, MESSAGES) as writer:
        waiting: list[pa.RecordBatch] = []
        for batch in scan.arrow():
            waiting.append(batch)
            if sum(each.num_rows for each in waiting) >= GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(waiting), row_group_size=GROUP_ROWS)
                waiting = []
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting))


def _archived(here: Node, folder: Path) -> str:
    """Write an archive as `wherry pipeline archive` does, without Spark."""
    link, place = FlightLink(here.flight_url), store(str(folder)).under(manifest.folder(TOPIC))
    manifest.begun(place, TOPIC, "archive", "bench")
    covers, added = {}, []
    for text, stop in link.action("extents", {"topic": TOPIC})["stop"].items():
        ticket = {"topic": TOPIC, "partition": int(text), "start": 0, "stop": stop, "columns": LOGGED.names}
        added += archive_files.write(place, int(text), link.read(ticket, files=True), TARGET_BYTES)
        covers[int(text)] = (0, stop)
    manifest.append(place, "bench", covers, added, [])
    return str(folder)
