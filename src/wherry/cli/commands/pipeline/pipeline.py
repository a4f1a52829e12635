"""`pipeline`: the data pipeline, on Spark. Heavy modules are imported when a command runs."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wherry.cli import output
from wherry.cli.commands.pipeline import archive as pipeline_archive
from wherry.cli.commands.pipeline import report as pipeline_report
from wherry.cli.commands.pipeline.archive import (
    FLIGHT,
    ApiKey,
    Consume,
    Master,
    Url,
    spark_installed,
)
from wherry.cli.frame import DATA, command, group
from wherry.cli.options import AsJson, GlobalOptions, options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table

    from wherry.spark.pipelines.run.address import BrokerAddress
    from wherry.spark.pipelines.run.figures import QueryFigures

COLUMNS = ("query", "to", "state", "batch", "in/s", "out/s", "rows", "lag", "age", "bad")
JSON_EVERY_S = 1.0

pipeline = group("pipeline", "Topics through Spark: pipelines, archive, replay, reports, a cluster.", DATA)
pipeline_archive.register(pipeline)
pipeline_report.register(pipeline)


@command(
    pipeline,
    "pipeline run",
    "wherry pipeline run orders.toml --once",
    "wherry pipeline run orders.toml --once --master 'local[2]' --json",
)
def run(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="TOML, or a spark-pipeline.yml of Spark.")],
    once: Annotated[bool, typer.Option("--once", help="Read the messages that exist now, and stop.")] = False,
    seconds: Annotated[
        float | None, typer.Option(min=1, help="Stop after this many seconds.", show_default="Ctrl-C")
    ] = None,
    consume: Consume = False,
    master: Master = "local[*]",
    url: Url = FLIGHT,
    api_key: ApiKey = None,
    json: AsJson = False,
) -> None:
    """Run a pipeline: topics, through SQL or Python, to topics, Parquet or tables.

    The run continues from the checkpoints of the pipeline, and each row is written once. Rows that cannot be decoded
    are sent to a dead-letter topic with the reason, and the queries continue. The first run on a queue without a
    subscription needs --consume. docs/pipelines.md describes the file.
    """
    options, address = options_of(ctx, json), _address(ctx, url, api_key)
    with spark_installed():
        from wherry.spark.pipelines.run import declared as run_declared
        from wherry.spark.pipelines.run import spec
        from wherry.spark.pipelines.run.frames import words
        from wherry.spark.pipelines.run.run import (
            CONF,
            Pipeline,
            check_sources,
            summary,
        )
        from wherry.spark.pipelines.run.session import opened
    if run_declared.is_declared(file):
        _check_declared(seconds, options)
        raise typer.Exit(run_declared.run(file, address, master))
    made = spec.read(file)
    check_sources(address.link(), made, consume=consume)  # before Spark is started
    with opened(made.name, master, address, CONF | words(made.spark)) as spark, _shown(options) as report:
        figures = Pipeline(spark, made, address, once=once, consume=consume).run(report, is_over=_after(seconds))
    ended = summary(figures)
    if options.json:
        output.as_json(ended)
    for each in figures:
        if each.reason is not None:
            output.note(f"{each.query}: {each.reason} ({output.many(each.restarts, 'restart')})")
    if ended["failed"]:
        raise typer.Exit(1)


cluster = typer.Typer(help="A Spark cluster on this machine.", no_args_is_help=True, rich_markup_mode="rich")
pipeline.add_typer(cluster, name="cluster")


@command(
    cluster,
    "pipeline cluster up",
    "wherry pipeline cluster up --seconds 1",
    "wherry pipeline cluster up --workers 2 --cores 1 --memory-mb 1024",
)
def up(
    ctx: typer.Context,
    workers: Annotated[int, typer.Option(min=1, max=64, help="How many workers.")] = 2,
    cores: Annotated[int, typer.Option(min=1, max=256, help="Cores of each worker.")] = 1,
    memory_mb: Annotated[int, typer.Option(min=512, max=1 << 20, help="Memory of each worker, in MiB.")] = 1_024,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port of the master; 0 takes a free one.")] = 7_077,
    seconds: Annotated[
        float | None, typer.Option(min=1, help="Stop after this many seconds.", show_default="Ctrl-C")
    ] = None,
    json: AsJson = False,
) -> None:
    """Start a real Spark master and workers on the loopback address, until Ctrl-C. No password: only for trials.

    Every command with --master runs there unchanged, with executors in processes of their own.
    """
    options = options_of(ctx, json)
    with spark_installed():
        from wherry.spark.pipelines.cluster import cluster as started
    if not options.json:
        output.note("starting; it takes some seconds")
    try:
        with stoppable(), started(workers, cores=cores, memory_mb=memory_mb, port=port) as made:
            if options.json:
                output.as_json({"master": made.url, "workers": workers, "cores": cores, "memory_mb": memory_mb})
            else:
                _tell_cluster(made.url, workers, cores, memory_mb)
            until = None if seconds is None else time.monotonic() + seconds
            while (until is None or time.monotonic() < until) and not (fallen := made.fallen()):
                time.sleep(0.2)
            if fallen:
                raise ChildProcessError(f"{', '.join(fallen)} of the cluster ended by itself")
    except KeyboardInterrupt:
        output.note("stopped")


def _tell_cluster(url: str, workers: int, cores: int, memory_mb: int) -> None:
    typer.echo(url)
    output.note(
        f"{output.many(workers, 'worker')}, {output.many(cores, 'core')} and {memory_mb:,} MiB each; Ctrl-C stops"
    )
    output.note(f"  wherry pipeline run FILE --master {url}")
    output.note(f'  wherry.spark.session(master="{url}")')


@contextmanager
def stoppable() -> Iterator[None]:
    """Treat a SIGTERM like a Ctrl-C, so that the command ends the processes that it started."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _address(ctx: typer.Context, url: str, api_key: str | None) -> BrokerAddress:
    return pipeline_archive.address_of(pipeline_archive.link_of(ctx, url, api_key))


def _check_declared(seconds: float | None, options: GlobalOptions) -> None:
    """Raise for options that Spark's own command cannot have: it stops after one run, and prints in its own format."""
    if seconds is not None:
        raise typer.BadParameter("Spark's own pipelines end by themselves", param_hint="--seconds")
    if options.json:
        raise typer.BadParameter("Spark's own pipelines do not report progress as JSON", param_hint="--json")


def _after(seconds: float | None) -> Callable[[], bool]:
    """Return a function that returns whether so many seconds have passed since its first call."""
    until: float | None = None

    def is_over() -> bool:
        nonlocal until
        now = time.monotonic()
        until = until if until is not None else now + seconds if seconds is not None else None
        return until is not None and now >= until

    return is_over


@contextmanager
def _shown(options: GlobalOptions) -> Iterator[Callable[[list[QueryFigures]], None]]:
    """Show a live table on a terminal, or the last state elsewhere; with `--json` a line for each query each second."""
    terminal = output.console()
    if options.json:
        yield _Lines()
    elif not terminal.is_terminal:
        last: list[list[QueryFigures]] = []
        yield lambda figures: last.__setitem__(slice(None), [figures])
        terminal.print(*map(live_table, last))
    else:
        from rich.live import Live

        with Live(console=terminal, auto_refresh=False) as screen:
            yield lambda figures: screen.update(live_table(figures), refresh=True)


class _Lines:
    """Prints figures as JSON, once a second at most."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, figures: list[QueryFigures]) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + JSON_EVERY_S
            for each in figures:
                output.as_json(each)


def live_table(figures: list[QueryFigures]) -> Table:
    """Return a table of the queries of a pipeline, each with its state."""
    return output.table(COLUMNS, map(_line, figures))


def _line(each: QueryFigures) -> list[object]:
    age = output.span(each.lag_ms) if each.lag and each.lag_ms is not None else ""
    batch = each.batch if each.batch >= 0 else None
    rates = [f"{rate:,.0f}" for rate in (each.in_per_s, each.out_per_s)]
    return [each.query, each.target, each.state, batch, *rates, each.rows_in, each.lag, age, each.bad]
