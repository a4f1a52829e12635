"""`pipeline archive`, `replay` and `backfill`: jobs over whole topics, on Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wherry.cli import output
from wherry.cli.frame import command
from wherry.cli.options import AsJson, options_of
from wherry.cli.values import duration, pairs, utc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from wherry.spark.link import FlightLink
    from wherry.spark.pipelines.archive.tasks import ProgressListener
    from wherry.spark.pipelines.replay.ledger import JobResult
    from wherry.spark.pipelines.run.address import BrokerAddress

FLIGHT = "grpc://127.0.0.1:7072"
RETRY_S = 30.0

Url = Annotated[
    str, typer.Option("--url", envvar="WHERRY_FLIGHT_URL", help="Arrow Flight address of the broker.", show_envvar=True)
]
ApiKey = Annotated[str | None, typer.Option("--api-key", help="Your API key.", show_default="as before the command")]
Master = Annotated[str, typer.Option(help="Where Spark runs: local[2], spark://host:7077, sc://host:15002.")]
Rate = Annotated[float | None, typer.Option(min=0.001, help="Messages a second.", show_default="as fast as can be")]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Only messages published from then on: '2h ago', an ISO time (UTC without a zone), Unix ms.",
    ),
]
Consume = Annotated[
    bool, typer.Option("--consume", help="Allow to be the only reader of a queue, which deletes messages once read.")
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Only messages published before then.")]


def archive(
    ctx: typer.Context,
    topics: Annotated[list[str], typer.Argument(help="Names of topics; * stands for any text.", metavar="TOPIC…")],
    to: Annotated[
        str,
        typer.Option("--to", metavar="URL", help="A folder that driver and executors share, or s3://bucket/folder."),
    ],
    target_mib: Annotated[float, typer.Option(min=0.01, help="Size of a file.")] = 128.0,
    compact: Annotated[bool, typer.Option("--compact/--no-compact", help="Merge small files.")] = True,
    verify: Annotated[bool, typer.Option("--verify", help="Then read all files again, and compare.")] = False,
    on_loss: Annotated[
        Literal["fail", "go-on"], typer.Option(help="What to do about messages that were deleted unarchived.")
    ] = "fail",
    subscription: Annotated[
        str | None, typer.Option(help="Subscription of a new archive.", show_default="a random name")
    ] = None,
    grace: Annotated[
        int | None,
        typer.Option(
            parser=duration, metavar="DURATION", help="How long replaced files stay for readers.", show_default="1h"
        ),
    ] = None,
    consume: Consume = False,
    master: Master = "local[*]",
    url: Url = FLIGHT,
    api_key: ApiKey = None,
    json: AsJson = False,
) -> None:
    """Archive topics as Parquet, by topic and date, with a manifest of the files.

    A run archives the messages since the last run, and completes a run that was killed. The archive is a durable
    subscription: the broker keeps messages until a manifest covers them. A queue without another subscription deletes
    them then, so the first run on one needs --consume.
    """
    from wherry.spark.pipelines.archive import archive as jobs
    from wherry.spark.read.topics import resolve

    chosen, link = options_of(ctx, json), link_of(ctx, url, api_key)
    names = resolve(link, tuple(topics))
    if not names:
        raise typer.BadParameter(f"no topic fits {' '.join(topics)}")
    options = jobs.ArchiveOptions(
        target_bytes=int(target_mib * (1 << 20)),
        compact=compact,
        go_on_after_loss=on_loss == "go-on",
        subscription=subscription,
        consume=consume,
        grace_s=jobs.GRACE_S if grace is None else grace / 1_000,
    )
    for name in names:  # before Spark is started
        jobs.check_topic(link, name, to, consume=consume)
    rows = []
    with _spark(master, link) as spark, watching(json=chosen.json) as watch:
        for name in names:
            done = jobs.archive(spark, link, name, to, options, watch)
            if verify:
                jobs.verify(spark, name, to, watch)
            rows.append(_plain(done) | ({"verified": True} if verify else {}))
    columns = {"topic": "topic", "rows": "new rows", "archived_rows": "rows", "archived_files": "files"}
    shown = [row | {"size": output.size(row["archived_bytes"])} for row in rows] if not chosen.json else rows
    output.show(columns | {"size": "size", "sum": "sum"}, shown, json=chosen.json, empty="")


def replay(
    ctx: typer.Context,
    topic: Annotated[str, typer.Argument(help="The topic to read.", metavar="TOPIC")],
    into: Annotated[str, typer.Option("--into", metavar="TOPIC", help="The topic to publish to.")],
    job: Annotated[str, typer.Option("--job", help="Name of the job, which is done once, however often it is run.")],
    archive: Annotated[
        str | None, typer.Option("--archive", metavar="URL", help="Read this archive of the topic.", show_default="log")
    ] = None,
    since: Since = None,
    until: Until = None,
    key: Annotated[list[str] | None, typer.Option(help="Only messages with this key. May be repeated.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Only messages with this header. May be repeated.")
    ] = None,
    priority_min: Annotated[int | None, typer.Option(help="Only messages with at least this priority.")] = None,
    priority_max: Annotated[int | None, typer.Option(help="Only messages with at most this priority.")] = None,
    rate: Rate = None,
    on_loss: Annotated[
        Literal["fail", "go-on"], typer.Option(help="What to do about messages that were deleted unread.")
    ] = "fail",
    keep_ids: Annotated[bool, typer.Option("--keep-ids", help="Keep the ids; they must be new in the topic.")] = False,
    keep_times: Annotated[bool, typer.Option("--keep-times", help="Keep due and expiry times.")] = False,
    master: Master = "local[*]",
    url: Url = FLIGHT,
    api_key: ApiKey = None,
    json: AsJson = False,
) -> None:
    """Publish messages of a topic's log or archive again, to a topic.

    The first run of a job fixes what is replayed. A second run continues the job, or does nothing if the job is done.
    """
    from wherry.model.calls.where import Where
    from wherry.spark.pipelines.replay import replay as jobs

    chosen, link = options_of(ctx, json), link_of(ctx, url, api_key)
    where = Where(
        keys=key or None,
        headers=pairs(header),
        from_ms=None if since is None else utc(since),
        to_ms=None if until is None else utc(until),
        priority_min=priority_min,
        priority_max=priority_max,
    )
    request = jobs.ReplayRequest(
        topic=topic,
        into=into,
        archive=archive,
        where=where,
        rate=rate,
        go_on_after_loss=on_loss == "go-on",
        keep_ids=keep_ids,
        keep_times=keep_times,
        times=(since or "", until or ""),
    )
    jobs.check_request(link, job, request)  # before Spark is started
    with _spark(master, link) as spark, watching(json=chosen.json) as watch:
        done = jobs.replay(spark, link, job, request, watch)
    _print_result(done, json=chosen.json)


def backfill(
    ctx: typer.Context,
    topic: Annotated[str, typer.Argument(help="The topic to publish to.", metavar="TOPIC")],
    files: Annotated[list[str], typer.Argument(help="Parquet, NDJSON or CSV; paths or URLs.", metavar="FILE…")],
    job: Annotated[
        str | None,
        typer.Option("--job", help="Name of the job, which is done once.", show_default="a digest of the files"),
    ] = None,
    due: Annotated[str, typer.Option(help="The column with the due time.")] = "due",
    payload: Annotated[str, typer.Option(help="The column with the payload.")] = "payload",
    rate: Rate = None,
    master: Master = "local[*]",
    url: Url = FLIGHT,
    api_key: ApiKey = None,
    json: AsJson = False,
) -> None:
    """Publish the messages of files, each due at the time in its row; also id, key, priority, expires, headers.

    Times are timestamps, Unix milliseconds or ISO text. A second run continues the job, or does nothing if the job is
    done.
    """
    from wherry.spark.pipelines.backfill import backfill as jobs
    from wherry.spark.pipelines.backfill.files import ColumnNames

    chosen, link = options_of(ctx, json), link_of(ctx, url, api_key)
    jobs.check_files(link, topic, files)  # before Spark is started
    with _spark(master, link) as spark, watching(json=chosen.json) as watch:
        names = ColumnNames(due=due, payload=payload)
        done = jobs.backfill(spark, link, topic, files, job=job, names=names, rate=rate, watch=watch)
    _print_result(done, json=chosen.json)


def register(parent: typer.Typer) -> None:
    """Add these commands to `wherry pipeline`."""
    command(
        parent,
        "pipeline archive",
        "wherry pipeline archive jobs --to lake",
        "wherry pipeline archive 'job*' --to lake --target-mib 256 --verify --json",
    )(archive)
    command(
        parent,
        "pipeline replay",
        "wherry pipeline replay jobs --into again --job monday --since '2h ago' --rate 500",
        "wherry pipeline replay jobs --archive lake --into again --job ann --key ann",
    )(replay)
    command(
        parent,
        "pipeline backfill",
        "wherry pipeline backfill reminders reminders.parquet",
        "wherry pipeline backfill reminders july.csv august.csv --due send_at --payload text --job summer",
    )(backfill)


def link_of(ctx: typer.Context, url: str, api_key: str | None) -> FlightLink:
    """Return the link to the broker once it has answered, since starting Spark without a broker would take long."""
    from wherry.model.errors import InvalidInput, Unavailable
    from wherry.spark.link import FlightLink
    from wherry.spark.options.options import SCHEMES

    if not url.startswith(SCHEMES):
        raise InvalidInput("--url", url, f"an address of Arrow Flight, such as {FLIGHT} or grpc+tls://host:7072")
    chosen = options_of(ctx)
    ca = chosen.tls.ca
    link = FlightLink(url, api_key or chosen.key, None if ca is None else str(ca))
    try:
        link.action("topics", {})  # before Spark is started: check that the broker answers and accepts the key
    except Unavailable as fault:
        fault.args = (
            f"no broker answers Arrow Flight at {url} ({fault}); wherry serve starts one, --url names another",
        )
        raise
    return link._replace(retry_s=RETRY_S)


def address_of(link: FlightLink) -> BrokerAddress:
    """Return the same broker, for Spark."""
    from wherry.spark.pipelines.run.address import BrokerAddress

    return BrokerAddress(link.url, link.key, link.ca)


@contextmanager
def spark_installed() -> Iterator[None]:
    """Raise an error that names the package to install if an import fails."""
    from wherry.model.errors import WherryError

    try:
        yield
    except ImportError as fault:
        raise WherryError(f"Spark is not installed ({fault}); pip install 'wherry[spark]'") from None


@contextmanager
def _spark(master: str, link: FlightLink) -> Iterator[SparkSession]:
    with spark_installed():
        from wherry.spark.pipelines.run.session import opened
    with opened("wherry pipeline", master, address_of(link)) as spark:
        yield spark


@contextmanager
def watching(*, json: bool) -> Iterator[ProgressListener]:
    """Show a progress bar on a terminal; nothing elsewhere or with `--json`."""
    from wherry.spark.pipelines.archive.tasks import SilentListener

    if json or not sys.stderr.isatty():
        yield SilentListener()
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=output.console(err=True)) as bar:
        yield _Bars(bar)


class _Bars:
    """A bar for each stage of a job."""

    def __init__(self, bar: Any) -> None:
        self._bar, self._task = bar, None

    def stage(self, name: str, total: float | None) -> None:
        self._task = self._bar.add_task(name, total=total)

    def done(self, amount: float) -> None:
        self._bar.advance(self._task, amount)


def _plain(value: Any) -> dict[str, Any]:
    import msgspec

    built: dict[str, Any] = msgspec.to_builtins(value, str_keys=True)
    return built


def _print_result(done: JobResult, *, json: bool) -> None:
    if json:
        output.as_json(_plain(done))
    elif done.repeated:
        output.note(f"job {done.job} was done before, with {output.many(done.rows_before, 'message')}: nothing to do")
    else:
        before = f", {done.rows_before:,} by earlier runs" if done.rows_before else ""
        output.note(f"{output.many(done.rows, 'message')} into {done.into} by job {done.job}{before}")
