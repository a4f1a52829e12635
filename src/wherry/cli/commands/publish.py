"""`publish`: arguments, files, stdin."""

from __future__ import annotations

import sys
import time
from base64 import b64encode
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import typer

from wherry.cli import output
from wherry.cli.commands.catalog import TopicName
from wherry.cli.frame import MESSAGES, app, command, complain
from wherry.cli.options import AsJson, GlobalOptions, options_of
from wherry.cli.values import REACHED, checked_key, duration, given, instant, pairs
from wherry.model.errors import WherryError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from wherry.cli.feed import InputMessage
    from wherry.cli.link import BrokerLink

STDIN = "-"
PATIENCE_S = 30.0
IDS_SHOWN_MAX = 100
CALL_MESSAGES, CALL_BYTES = 1_000, 4 << 20
TIMEOUT_MS = 30_000

Wait = Literal["delivered", "settled"]

Instant = Annotated[
    int | None, typer.Option(parser=instant, metavar="TIME", help="'in 10m', an ISO time, or Unix milliseconds.")
]


class Progress(Protocol):
    """Shows the progress of a publish."""

    def read(self, size: int) -> None:
        """Count bytes that were read."""

    def sent(self, count: int) -> None:
        """Show how many messages were sent in all."""


@command(
    app,
    "publish",
    "wherry publish --create jobs hello world",
    "wherry publish jobs 'call ann' --key ann --header source=shell",
    "wherry publish jobs 'wake up' --id alarm --due 'in 10m'",
    "seq 1000 | wherry publish jobs",
    """echo '{"payload": {"n": 1}, "key": "ann"}' | wherry publish jobs --ndjson""",
    "wherry publish jobs --file README.md --whole",
    "wherry publish calls 'is anybody there?' --wait settled --timeout 20s",
    panel=MESSAGES,
)
def publish(
    ctx: typer.Context,
    topic: TopicName,
    texts: Annotated[list[str] | None, typer.Argument(help="One message each.", metavar="TEXT")] = None,
    files: Annotated[
        list[Path] | None, typer.Option("--file", "-f", help="A message a line; - is stdin. May be repeated.")
    ] = None,
    ndjson: Annotated[bool, typer.Option("--ndjson", help='Each is JSON: {"payload": …, "key": …}.')] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Each file is one message, byte for byte.")] = False,
    key: Annotated[
        str | None,
        typer.Option(
            parser=checked_key, metavar="TEXT", help="What messages are ordered by, and what chooses a partition."
        ),
    ] = None,
    priority: Annotated[int | None, typer.Option(help="0 to 65535, smallest first.")] = None,
    due: Instant = None,
    expires: Instant = None,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="May be repeated.")] = None,
    id: Annotated[str | None, typer.Option(help="An id of your own, for a single message.")] = None,  # noqa: A002
    create: Annotated[bool, typer.Option("--create", help="Create the topic if it is not there.")] = False,
    wait: Annotated[
        Wait | None, typer.Option(help="Until each was handed over, or is over.", show_default="until stored")
    ] = None,
    timeout: Annotated[
        int | None,
        typer.Option(parser=duration, metavar="DURATION", help="How long to --wait, at most.", show_default="30s"),
    ] = None,
    json: AsJson = False,
) -> None:
    """Publish messages; they are on disk when the command ends.

    Each TEXT is one message; without TEXT, each line of stdin or of the named files. Options apply to every message;
    fields of a line of NDJSON override them. With --wait each message is printed with its fate, and the exit code is 1
    if one did not reach it in time.
    """
    sources = [str(file) for file in files or ()]
    if not texts and not sources:
        if sys.stdin.isatty():
            output.note("a message a line; Ctrl-D ends")
        sources = [STDIN]
    if id is not None and (len(texts or ()) + len(sources) != 1 or (sources and not whole)):
        raise typer.BadParameter("an id is for one message: one TEXT, or one --file with --whole", param_hint="--id")
    fields = given(id=id, key=key, priority=priority, due_ms=due, expires_ms=expires, headers=pairs(header))
    job = PublishJob(topic, texts or [], sources, fields, ndjson, whole, create, wait, timeout or TIMEOUT_MS)
    job.run(options_of(ctx, json))


@dataclass
class PublishJob:
    """One run of the command."""

    topic: str
    texts: list[str]
    sources: list[str]
    fields: dict[str, Any]
    ndjson: bool
    whole: bool
    create: bool
    wait: Wait | None
    timeout_ms: int
    count: int = 0
    stored: int = 0
    """How many messages are on disk, if not all are."""
    began: float = 0.0
    fates: list[str] = field(default_factory=list)

    def run(self, options: GlobalOptions) -> None:
        """Publish, and print the result."""
        try:
            with _meter(self.sources) as meter:
                ids = options.run(lambda link: self._publish(link, meter))
        except WherryError as fault:
            if self.stored:
                fault.add_note(f"({self.stored:,} {'was' if self.stored == 1 else 'were'} stored)")
            raise
        seconds, count, fates = time.perf_counter() - self.began, self.count, dict(sorted(Counter(self.fates).items()))
        if options.json:
            result = {"count": count, "seconds": round(seconds, 3), "rate": round(count / seconds, 1)}
            output.as_json(result | ({"ids": ids} if ids else {}) | ({"fates": fates} if fates else {}))
        else:
            for each, fate in zip_longest(ids, self.fates[: len(ids)]):
                typer.echo(each if fate is None else f"{each} {fate}")
            output.note(f"{count:,} published to {self.topic} in {seconds:.2f} s ({count / seconds:,.0f} a second)")
        late = count - sum(fates.get(fate, 0) for fate in REACHED[self.wait]) if self.wait is not None else 0
        if late:
            words = ", ".join(f"{times:,} {fate}" for fate, times in fates.items())
            complain(f"{late:,} of {count:,} not {self.wait} within {output.span(self.timeout_ms)}: {words}")
            raise typer.Exit(1)

    async def _publish(self, link: BrokerLink, meter: Progress) -> list[str]:
        from wherry.cli import feed

        await link.alive()  # the producer would retry for a while; a user wants the error at once
        if self.create and await link.exists("topics", self.topic) is None:
            await link.call("PUT", "topics", self.topic, body={})
        fields, first = self.fields, []
        if self.wait is not None:
            return await self._publish_and_wait(link, meter)
        self.began = time.perf_counter()
        entries = feed.messages(self.texts, self.sources, meter.read, ndjson=self.ndjson, entire=self.whole)
        producer = link.client.producer(self.topic, patience_s=PATIENCE_S)
        try:
            async with producer:
                async for message in entries:
                    pending = await producer.publish(message.payload, **{**fields, **message.fields})
                    if self.count < len(self.texts) <= IDS_SHOWN_MAX:
                        first.append(pending)
                    self.count += 1
                    meter.sent(self.count)
                ids = [await pending.stored() for pending in first]
                await producer.flush()
        finally:
            self.stored = producer.stored
        return ids

    async def _publish_and_wait(self, link: BrokerLink, meter: Progress) -> list[str]:
        """Publish a few messages in each call, which the broker answers when their fate is reached."""
        from wherry.cli import feed

        ids: list[str] = []
        self.began = time.perf_counter()
        entries = feed.messages(self.texts, self.sources, meter.read, ndjson=self.ndjson, entire=self.whole)
        async for call in _calls(entries):
            body = [{"payload_base64": b64encode(each.payload).decode(), **self.fields, **each.fields} for each in call]
            query = {"wait": self.wait, "timeout_ms": self.timeout_ms}
            result = await link.call(
                "POST", "topics", self.topic, "messages", body=body, wait_s=self.timeout_ms / 1_000, **query
            )
            self.fates += result["fates"]
            self.count += len(call)
            self.stored = self.count
            meter.sent(self.count)
            if len(self.texts) <= IDS_SHOWN_MAX:
                named = [own.get("id") or place for own, place in zip(body, result["ids"], strict=True)]
                ids += named[: len(self.texts) - len(ids)]
        return ids


async def _calls(entries: AsyncIterator[InputMessage]) -> AsyncIterator[list[InputMessage]]:
    """Yield lists of as many messages as one call takes, or fewer at the end."""
    call: list[InputMessage] = []
    size = 0
    async for each in entries:
        if call and (len(call) >= CALL_MESSAGES or size + len(each.payload) > CALL_BYTES):
            yield call
            call, size = [], 0
        call.append(each)
        size += len(each.payload)
    if call:
        yield call


class _Silent:
    def read(self, size: int) -> None:
        pass

    def sent(self, count: int) -> None:
        pass


@contextmanager
def _meter(sources: list[str]) -> Iterator[Progress]:
    """Show a progress bar for a long input on a terminal; else nothing."""
    if not sources or not sys.stderr.isatty() or (STDIN in sources and sys.stdin.isatty()):
        yield _Silent()
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    files = [Path(source) for source in sources]
    known = all(file.is_file() for file in files)
    total = sum(file.stat().st_size for file in files) if known else None
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=output.console(err=True), transient=True) as bar:
        yield _Bar(bar, total)


class _Bar:
    """A bar for the bytes that are read, and a text for the messages that are sent."""

    def __init__(self, bar: Any, total: int | None) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=total)
        self._began = time.perf_counter()

    def read(self, size: int) -> None:
        self._bar.advance(self._task, size)

    def sent(self, count: int) -> None:
        if count % 1_000 == 0:
            rate = count / (time.perf_counter() - self._began)
            self._bar.update(self._task, description=f"{count:,} messages, {rate:,.0f} a second")
