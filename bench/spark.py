"""The data pipeline: Spark over Flight beside Spark over Parquet, of the same rows, in the same session and run.

Each throughput is the median of several rounds; what it is compared with is measured between them. Spark runs on the
node's machine, where tasks read history from its files; `spark.read_flight` is the same read all of it through Flight.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import flight

from bench import flow
from bench.figure import Figure
from bench.measuring import disk, quantile
from bench.peers.peer import free_port
from bench.peers.wherry import WherryMessages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIZE = 256
ROWS = 10_000
COUNT = 5_000_000
ROUNDS = 3
PER_MESSAGE = 200_000
LIVE_RATE, LIVE_S = 1_000, 10
FLOOR_BATCHES = 20

ALL = "rows/s, every column"
COLUMNS = ("topic", "partition", "offset", "id", "key", "priority", "due", "expires", "published", "payload")


class Node(WherryMessages):
    """A node with Flight on a port that is known."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.flight_port = free_port()
        os.environ["WHERRY_FLIGHT_PORT"] = str(self.flight_port)

    @property
    def flight_url(self) -> str:
        """Return where executors read."""
        return f"grpc://127.0.0.1:{self.flight_port}"


def figures(scale: int) -> list[Figure]:
    """Return everything about Spark; nothing where it is not installed."""
    try:
        from wherry.spark.sessions.session import session  # noqa: PLC0415  an extra
    except ImportError:
        return []
    result: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=disk(), prefix="bench-spark-") as root, node(Path(root) / "node") as here:
        fill(here, "log", COUNT // scale)
        _paced(here)  # what was filled in is still being moved to segments
        result += _live(here)
        spark = session("bench", master=f"local[{os.cpu_count()}]", memory="2g")
        try:
            result += _batch(spark, here, Path(root), COUNT // scale)
            result += _stream(spark, here, Path(root), COUNT // scale)
        finally:
            spark.stop()
        result.append(_per_message(here, result, PER_MESSAGE // scale))
    return result


@contextmanager
def node(folder: Path) -> Iterator[Node]:
    """Run a node with a topic `bench`, which live consumers use."""
    folder.mkdir()
    here = Node(folder)
    try:
        here.start()
        yield here
    finally:
        here.stop()
        shutil.rmtree(folder, ignore_errors=True)


def act(client: flight.FlightClient, action: str, **body: Any) -> dict[str, Any]:
    """Call an action of Flight."""
    (answer,) = client.do_action(flight.Action(action, json.dumps(body).encode()))
    found: dict[str, Any] = json.loads(answer.body.to_pybytes())
    return found


def fill(here: Node, topic: str, count: int) -> None:
    """Publish so many messages in two partitions of a topic that keeps them."""
    client = flight.connect(here.flight_url)
    act(client, "create-topic", name=topic, partitions=2, keep="bytes", keep_bytes=1 << 40)
    keys = pa.array([f"user-{n % 997}" for n in range(ROWS)])
    payload = pa.array([os.urandom(SIZE) for _ in range(ROWS)], pa.binary())
    batch = pa.RecordBatch.from_arrays([payload, keys], names=["payload", "key"])
    writer, reader = client.do_put(flight.FlightDescriptor.for_path(topic), batch.schema)
    with writer:
        for _ in range(count // ROWS):
            writer.write_batch(batch)
        writer.done_writing()
        while reader.read() is not None:
            pass


def _read(spark: SparkSession, here: Node, *, files: bool = True) -> DataFrame:
    """Return the whole log: of the node's files, as on its own machine, or through Flight, as from elsewhere."""
    reader = spark.read.format("wherry").option("url", here.flight_url).option("topic", "log")
    return reader.option("localFiles", str(files).lower()).load()


def _touch(frame: DataFrame) -> None:
    """Reduce every value of every column to one number."""
    frame.selectExpr(f"bit_xor(xxhash64({', '.join(COLUMNS)}))", "sum(size(headers))").collect()


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _batch(spark: SparkSession, here: Node, root: Path, count: int) -> list[Figure]:
    parquet = str(root / "log.parquet")
    _read(spark, here).write.parquet(parquet)  # also warms the workers
    names = ("touch", "touch_flight", "touch_parquet", "write", "write_parquet")
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(ROUNDS):
        times["touch_parquet"].append(_timed(lambda: _touch(spark.read.parquet(parquet))))
        times["touch"].append(_timed(lambda: _touch(_read(spark, here))))
        times["touch_flight"].append(_timed(lambda: _touch(_read(spark, here, files=False))))
        for name, source in (
            ("write_parquet", lambda: spark.read.parquet(parquet)),
            ("write", lambda: _read(spark, here)),
        ):
            out = str(root / f"{name}-{number}")
            times[name].append(_timed(lambda source=source, out=out: source().write.parquet(out)))  # type: ignore[misc]
            shutil.rmtree(out)
    rate = {name: count / statistics.median(each) for name, each in times.items()}
    return [
        Figure("spark.read", rate["touch"], f"{ALL}, local files", "spark.read.parquet", rate["touch_parquet"]),
        Figure(
            "spark.read_flight", rate["touch_flight"], f"{ALL}, Flight", "spark.read.parquet", rate["touch_parquet"]
        ),
        Figure(
            "spark.to_parquet", rate["write"], "rows/s, local files", "from Parquet to Parquet", rate["write_parquet"]
        ),
        _sink(spark, here, parquet, count),
    ]


def _sink(spark: SparkSession, here: Node, parquet: str, count: int) -> Figure:
    """Write files into a topic, a task for each core: staged, committed once, fsynced."""
    client = flight.connect(here.flight_url)
    spark.read.parquet(parquet).select("key", "payload").limit(count // 5).repartition(
        os.cpu_count() or 1
    ).write.parquet(f"{parquet}-some")
    frame = spark.read.parquet(f"{parquet}-some")
    rows, took = frame.count(), []
    for number in range(ROUNDS):
        act(client, "create-topic", name=f"sink-{number}", partitions=2)
        writer = frame.write.format("wherry").option("url", here.flight_url).option("topic", f"sink-{number}")
        took.append(_timed(writer.mode("append").save))
        act(client, "delete-topic", topic=f"sink-{number}")
    return Figure("spark.sink", rows / statistics.median(took), "rows/s, fsynced", "500,000 rows/s", 500_000)


def _stream(spark: SparkSession, here: Node, root: Path, count: int) -> list[Figure]:
    took = []
    for number in range(ROUNDS):
        reader = spark.readStream.format("wherry").option("url", here.flight_url).option("topic", "log")
        frame = reader.option("startingOffsets", "earliest").option("maxRowsPerBatch", 1_000_000).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(root / f"catch-up-{number}"))
        query = writer.trigger(availableNow=True).start()
        took.append(_timed(query.awaitTermination))
        assert sum(each["numInputRows"] for each in query.recentProgress) == count
    rate = count / statistics.median(took)
    ours, rate_source = _floor(spark, here, root)
    return [
        Figure("spark.catch_up", rate, "rows/s, whole run", "500,000 rows/s", 500_000),
        Figure("spark.floor", ours, "ms a small micro-batch", "Spark's own rate source", rate_source),
    ]


def _floor(spark: SparkSession, here: Node, root: Path) -> tuple[float, float]:
    """Return what a micro-batch of few rows takes, ours and that of a source inside Spark."""
    client = flight.connect(here.flight_url)
    act(client, "create-topic", name="floor", keep="bytes", keep_bytes=1 << 30)
    sources = {
        "floor": spark.readStream.format("wherry").option("url", here.flight_url).option("topic", "floor"),
        "rate": spark.readStream.format("rate").option("rowsPerSecond", 100),
    }
    batch = pa.RecordBatch.from_pydict({"payload": pa.array([b"x"], pa.binary())})
    found = {}
    for name, reader in sources.items():
        place = str(root / f"floor-{name}")
        query = reader.load().writeStream.format("noop").option("checkpointLocation", place).start()
        done: dict[int, float] = {}
        until = time.monotonic() + 60
        while len(done) < FLOOR_BATCHES and time.monotonic() < until:
            writer, _ = client.do_put(flight.FlightDescriptor.for_path("floor"), batch.schema)
            with writer:
                writer.write_batch(batch)
            time.sleep(0.5)
            done |= {p["batchId"]: _worked_ms(p["durationMs"]) for p in query.recentProgress if p["numInputRows"]}
        query.stop()
        found[name] = statistics.median(sorted(done.values()))
    return found["floor"], found["rate"]


def _worked_ms(took: dict[str, int]) -> int:
    """Return what a micro-batch took, without the wait for something to read."""
    return took["triggerExecution"] - took.get("latestOffset", 0)


def _live(here: Node) -> list[Figure]:
    """Measure live consumers beside a scan of all history by another process: of the node's files, and through it."""
    idle = _paced(here)
    result = []
    for way in ("files", "flight"):
        scan = subprocess.Popen([sys.executable, "-m", "bench.scan", here.flight_url, "log", way])
        try:
            during = _paced(here)
        finally:
            scan.terminate()
            scan.wait()
        result += [
            Figure(
                f"spark.live_{word}_{way}",
                quantile(during, share),
                "ms beside a full scan",
                f"idle, {word}",
                quantile(idle, share),
            )
            for share, word in ((0.5, "p50"), (0.99, "p99"))
        ]
    return result


def _paced(here: Node) -> list[float]:
    """Return ages of messages at a steady rate."""
    reports = flow.results(flow.sides("bench.worker", "messages", here.port, LIVE_RATE * LIVE_S, LIVE_RATE))
    ages: list[float] = reports["consume"]["found"]["age"]
    return ages[LIVE_RATE:]


def _per_message(here: Node, figures: list[Figure], count: int) -> Figure:
    """Read the same rows one by one, as a consumer has them."""
    import asyncio  # noqa: PLC0415

    import wherry  # noqa: PLC0415

    async def consume() -> float:
        async with wherry.connect(f"http://127.0.0.1:{here.port}") as client:
            await client.subscribe("log", "loop", start="earliest")
            async with client.consumer("log", "loop") as consumer:
                began, got = time.perf_counter(), 0
                async for message in consumer:
                    assert len(message.payload) == SIZE
                    got += 1
                    message.ack_later()
                    if got == count:
                        return count / (time.perf_counter() - began)
        raise AssertionError

    loop = asyncio.run(consume())
    ours = next(figure.value for figure in figures if figure.name == "spark.read")
    return Figure("spark.read_by_loop", ours, f"{ALL}, local files", "one message at a time by the client", loop)
