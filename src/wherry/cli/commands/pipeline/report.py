"""`pipeline report`: the messages of topics in figures, by Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wherry.cli import output
from wherry.cli.commands.pipeline.archive import (
    FLIGHT,
    ApiKey,
    Master,
    Url,
    address_of,
    link_of,
    spark_installed,
)
from wherry.cli.frame import command
from wherry.cli.options import AsJson, GlobalOptions, options_of
from wherry.cli.values import utc

if TYPE_CHECKING:
    from wherry.spark.link import FlightLink
    from wherry.spark.pipelines.report.report import Percentiles


def report(
    ctx: typer.Context,
    topics: Annotated[
        list[str] | None, typer.Argument(help="Names of topics; * stands for any text. All topics, if none.")
    ] = None,
    to: Annotated[Path, typer.Option("--to", help="The folder for report.json, index.html and plots.")] = Path(
        "report"
    ),
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only what was published, or died, from then on: '2h ago', an ISO time (UTC without a zone), Unix ms.",
            show_default="all",
        ),
    ] = None,
    hot: Annotated[int, typer.Option(min=1, max=1_000, help="How many hot keys of each topic.")] = 10,
    master: Master = "local[*]",
    url: Url = FLIGHT,
    api_key: ApiKey = None,
    json: AsJson = False,
) -> None:
    """Report the messages of topics: rates, sizes, times, dead letters, hot keys; as JSON, a page and plots."""
    since_ms = None if since is None else utc(since)
    options, link = options_of(ctx, json), link_of(ctx, url, api_key)
    address = address_of(link)
    with spark_installed():
        from wherry.spark.pipelines.report import files as report_files
        from wherry.spark.pipelines.report.report import Rollups
        from wherry.spark.pipelines.run.session import opened
        from wherry.spark.read.topics import resolve
    names = resolve(link, tuple(topics or ("*",)))
    if not names:
        raise typer.BadParameter("no topic fits; wherry topic list shows what there is")
    for name in names:  # before Spark is started
        link.action("extents", {"topic": name})
    with opened("wherry report", master, address) as spark, _bars(spark, options) as watch:
        rollups = Rollups(spark, address.options(master), names, since_ms)
        made = rollups.report(watch, hot=hot, delivery_ms=_delivery(options, link))
    files = report_files.write(made, to)
    if options.json:
        output.as_json(made)
        return
    rows = [(each.name, each.messages, output.size(each.bytes), each.keys) for each in made.topics]
    output.console().print(output.table(("topic", "messages", "payloads", "keys"), rows))
    output.note(f"{output.many(len(files), 'file')} in {to}: open {to / report_files.PAGE}")


def register(parent: typer.Typer) -> None:
    """Add the command to `wherry pipeline`."""
    command(
        parent,
        "pipeline report",
        "wherry pipeline report jobs --to report",
        "wherry pipeline report --since '1 hour ago' --to report --json",
    )(report)


@contextmanager
def _bars(spark: Any, options: GlobalOptions) -> Iterator[Callable[[str, Callable[[], Any]], Any]]:
    """Show a bar for each job of Spark on a terminal; nothing elsewhere or with `--json`."""
    from wherry.spark.pipelines.archive.tasks import watched

    if options.json or not sys.stderr.isatty():
        yield lambda _, work: work()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=output.console(err=True)) as bar:

        def watch(name: str, work: Callable[[], Any]) -> Any:
            task = bar.add_task(name, total=None)
            done = watched(spark, name, work, lambda some, all_: bar.update(task, completed=some, total=all_ or None))
            bar.update(task, total=1, completed=1)
            return done

        yield watch


def _delivery(options: GlobalOptions, link: FlightLink) -> Percentiles | None:
    """Return the hand-over times that this broker measured, or None if HTTP does not reach its figures."""
    from wherry.model.errors import WherryError
    from wherry.spark.pipelines.report.report import of_buckets

    before = _published(link)
    try:
        answer = options.run(lambda http: http.send("GET", "/metrics"))
    except (WherryError, OSError):
        return None
    text = bytes(answer.body).decode(errors="replace")
    if not same_broker(text, before, _published(link)):
        return None
    return of_buckets(text, "wherry_delivery_seconds")


def _published(link: FlightLink) -> dict[str, int]:
    rows = [row for batch in link.once({"table": "topics"}) for row in batch.to_pylist()]
    return {row["name"]: row["published"] for row in rows}


def same_broker(text: str, before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    """Return whether figures in Prometheus text belong to the broker with these publishes before and after them.

    Host names do not show that: several brokers may share one, and one broker may have several.
    """
    from prometheus_client.parser import text_string_to_metric_families

    sizes: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        if family.name == "wherry_messages_published":
            sizes.update({each.labels["topic"]: each.value for each in family.samples if each.name.endswith("_total")})
    both = before.keys() & after.keys()
    return bool(both) and all(before[name] <= sizes.get(name, -1) <= after[name] for name in both)
