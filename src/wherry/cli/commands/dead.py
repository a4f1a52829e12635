"""`dead`: list, show, redrive, discard and audit dead letters."""

from __future__ import annotations

import getpass
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wherry.cli import output
from wherry.cli.commands.catalog import TopicName
from wherry.cli.commands.messages import Limit, MessageId, Since, Until, shown
from wherry.cli.frame import CATALOG, command, group
from wherry.cli.options import AsJson, GlobalOptions, Yes, confirm, options_of
from wherry.cli.values import given

if TYPE_CHECKING:
    import asyncio

    from wherry.cli.link import BrokerLink

dead = group("dead", "Dead letters: messages whose attempts are used up, or that did not fit.", CATALOG)

Subscription = Annotated[str | None, typer.Option("--subscription", help="Of this subscription.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Whose reason or error contains this.")]
By = Annotated[str | None, typer.Option("--by", help="Who asks, for the audit.", show_default="you")]

PREVIEW = 5
PREVIEW_MAX = 1_000

POLL_S = 0.2
REDRIVE_S = 86_400.0

COLUMNS = {
    "id": "id",
    "subscription": "subscription",
    "reason": "reason",
    "error": "error",
    "attempts": "attempts",
    "died": "died",
    "body": "payload",
}


def _shown(rows: list[dict[str, Any]], topic: str, *, json: bool) -> None:
    if not json:
        rows = [row | {"died": output.moment(row["died_ms"])} for row in rows]
    shown(rows, json=json, empty=f"no such dead letters in {topic}", columns=COLUMNS)


@command(dead, "dead list", "wherry dead list jobs", "wherry dead list jobs --reason picture --since '1d ago' --json")
def list_dead(
    ctx: typer.Context,
    topic: TopicName,
    subscription: Subscription = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 100,
    json: AsJson = False,
) -> None:
    """List dead letters with reason, last error, attempts and time of death."""
    options = options_of(ctx, json)
    query = given(subscription=subscription, reason=reason, from_ms=since, to_ms=until)
    _shown(options.run(lambda link: link.rows("topics", topic, "dead", limit=limit, **query)), topic, json=options.json)


@command(dead, "dead show", "wherry dead show jobs cat.png")
def show_dead(ctx: typer.Context, topic: TopicName, id: MessageId, json: AsJson = False) -> None:  # noqa: A002
    """Show one dead letter: the whole message, and its history."""
    options = options_of(ctx, json)
    for row in options.run(lambda link: _found(link, topic, id)):
        output.fields(row, json=options.json)


@command(
    dead,
    "dead redrive",
    "wherry dead redrive jobs --dry-run",
    "wherry dead redrive jobs --subscription strict --rate 100 --yes",
)
def redrive(
    ctx: typer.Context,
    topic: TopicName,
    subscription: Subscription = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    rate: Annotated[int | None, typer.Option(min=1, help="At most so many a second.", show_default="no bound")] = None,
    by: By = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would go, and stop.")] = False,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Redrive dead letters: they wait again, with no attempts counted. A repeat has no further effect."""
    options = options_of(ctx, json)
    wanted = given(subscription=subscription, reason=reason, from_ms=since, to_ms=until)
    total = _preview(options, topic, wanted)
    if dry_run or not total:
        return
    confirm(f"Redrive {_about(total)} of {topic}?", yes)
    body = given(filter=wanted, rate=rate) | {"by": by or getpass.getuser()}
    count = options.run(lambda link: _redrive(link, topic, body, total))
    if options.json:
        output.as_json({"count": count})
    else:
        output.note(f"{count:,} redriven")


@command(dead, "dead discard", "wherry dead discard jobs --reason nonsense --yes")
def discard(
    ctx: typer.Context,
    topic: TopicName,
    subscription: Subscription = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    by: By = None,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Discard dead letters, which deletes them."""
    options = options_of(ctx, json)
    wanted = given(subscription=subscription, reason=reason, from_ms=since, to_ms=until)
    total = _preview(options, topic, wanted)
    if not total:
        return
    confirm(f"Discard {_about(total)} of {topic}?", yes)
    body = {"filter": wanted, "by": by or getpass.getuser()}
    count = options.run(lambda link: link.call("POST", "topics", topic, "dead", "discard", body=body))["count"]
    if options.json:
        output.as_json({"count": count})
    else:
        output.note(f"{count:,} discarded")


@command(dead, "dead audit", "wherry dead audit jobs")
def audit(ctx: typer.Context, topic: TopicName, json: AsJson = False) -> None:
    """List who redrove or discarded dead letters, when and how many."""
    options = options_of(ctx, json)
    records = options.run(lambda link: link.call("GET", "topics", topic, "dead", "audit"))["records"]
    rows = records if options.json else [record | {"at": output.moment(record["at_ms"])} for record in records]
    names = ("at", "what", "by", "subscription", "messages")
    output.show({name: name for name in names}, rows, json=options.json, empty=f"nobody did anything in {topic} yet")


async def _found(link: BrokerLink, topic: str, message_id: str) -> list[dict[str, Any]]:
    """Return the reasons of a message, for each subscription that has it as a dead letter."""
    from wherry.model.errors import NotFound

    views = (await link.call("GET", "topics", topic, "subscriptions"))["subscriptions"]
    try:
        [message] = await link.rows("topics", topic, "messages", message_id)
    except NotFound:
        raise NotFound("dead letter", message_id) from None
    names = ["", *(view["stats"]["name"] for view in views if view["stats"]["dead"])]
    found = [await _dead_for(link, topic, name, message) for name in names]
    if not any(found):
        raise NotFound("dead letter", message_id)
    return [row for row in found if row]


async def _dead_for(link: BrokerLink, topic: str, subscription: str, message: dict[str, Any]) -> dict[str, Any] | None:
    """Return the dead letter of a subscription at an offset."""
    place = {"partition": message["partition"], "offset": message["offset"]}
    rows = await link.rows("topics", topic, "dead", subscription=subscription, **place)
    return rows[0] if rows else None


def _about(total: int) -> str:
    return f"more than {PREVIEW_MAX:,} dead letters" if total > PREVIEW_MAX else output.many(total, "dead letter")


def _preview(options: GlobalOptions, topic: str, wanted: dict[str, Any]) -> int:
    """Print which dead letters match; return how many, as far as they were counted."""
    rows = options.run(lambda link: link.rows("topics", topic, "dead", **wanted, limit=PREVIEW_MAX + 1))
    if not options.json:
        _shown(rows[:PREVIEW], topic, json=False)
        if len(rows) > PREVIEW:
            output.note(f"{_about(len(rows))} in all; wherry dead list shows them")
    return len(rows)


async def _redrive(link: BrokerLink, topic: str, body: dict[str, Any], total: int) -> int:
    """Make the call, with a progress bar on a terminal, since the broker answers only at the end."""
    from asyncio import ensure_future

    place = ("topics", topic, "dead", "redrive")
    call = ensure_future(link.call("POST", *place, body=body, wait_s=REDRIVE_S))
    if "rate" in body and sys.stderr.isatty():
        await _watch(link, topic, call, total)
    return int((await call)["count"])


async def _watch(link: BrokerLink, topic: str, call: asyncio.Future[Any], total: int) -> None:
    from asyncio import wait

    from rich.progress import Progress

    async def left() -> int:
        return int((await link.call("GET", "topics", topic))["stats"]["dead"])

    before = await left()
    with Progress(console=output.console(err=True), transient=True) as bar:
        task = bar.add_task("redriving", total=total if total <= PREVIEW_MAX else before)
        while not call.done():
            await wait([call], timeout=POLL_S)
            bar.update(task, completed=before - await left())
