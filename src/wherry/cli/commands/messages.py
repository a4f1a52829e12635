"""`browse`, `search` and `message`: read messages without consuming them, and change those that still wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from wherry.cli import output
from wherry.cli.commands.catalog import TopicName
from wherry.cli.commands.publish import Instant
from wherry.cli.frame import MESSAGES, app, command, group
from wherry.cli.options import AsJson, options_of
from wherry.cli.values import checked_key, given, instant, pairs, require_any
from wherry.model.limits import PRIORITY_DEFAULT

if TYPE_CHECKING:
    from wherry.cli.link import BrokerLink

MessageId = Annotated[str, typer.Argument(help="Its own id, or partition-offset.", metavar="ID")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000_000, help="At most so many.")]
Since = Annotated[
    int | None,
    typer.Option("--since", parser=instant, metavar="TIME", help="'2h ago', an ISO time, or Unix milliseconds."),
]
Until = Annotated[
    int | None, typer.Option("--until", parser=instant, metavar="TIME", help="The same; itself not included.")
]

COLUMNS = {"id": "id", "when": "published", "key": "key", "priority": "priority", "due": "due", "body": "payload"}


def shown(rows: list[dict[str, Any]], *, json: bool, empty: str, columns: dict[str, str] = COLUMNS) -> None:
    """Print messages as a listing, without empty columns."""
    if not json:
        for row in rows:
            row |= {"when": output.moment(row.get("published_ms")), "body": output.body(row)}
            row["due"] = output.moment(row.get("due_ms") or row.get("at_ms"))
            row["priority"] = None if row.get("priority") == PRIORITY_DEFAULT else row.get("priority")
        columns = {name: head for name, head in columns.items() if any(row.get(name) not in (None, "") for row in rows)}
    output.show(columns, rows, json=json, empty=empty)


@command(app, "browse", "wherry browse jobs", "wherry browse jobs --start 100 --limit 3 --json", panel=MESSAGES)
def browse(
    ctx: typer.Context,
    topic: TopicName,
    partition: Annotated[int, typer.Option(min=0)] = 0,
    start: Annotated[int, typer.Option(min=0, help="The offset to begin at.")] = 0,
    limit: Limit = 10,
    scheduled: Annotated[
        str | None, typer.Option(metavar="SUBSCRIPTION", help="What comes when to this subscription instead.")
    ] = None,
    json: AsJson = False,
) -> None:
    """List messages without consuming them: no lease, no attempt, no change of order."""
    options = options_of(ctx, json)

    async def work(link: BrokerLink) -> list[dict[str, Any]]:
        if scheduled is not None:
            return await link.rows("topics", topic, "subscriptions", scheduled, "scheduled", limit=limit)
        return await link.rows("topics", topic, "messages", partition=partition, start=start, limit=limit)

    shown(
        options.run(work), json=options.json, empty=f"no messages in partition {partition} of {topic} from {start} on"
    )


@command(
    app,
    "search",
    "wherry search jobs --key ann",
    "wherry search jobs --header source=shell --since '1h ago' --json",
    panel=MESSAGES,
)
def search(
    ctx: typer.Context,
    topic: TopicName,
    key: Annotated[str | None, typer.Option(parser=checked_key, metavar="TEXT", help="With exactly this key.")] = None,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="With it; may be repeated.")] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 100,
    json: AsJson = False,
) -> None:
    """Find messages by key, headers or the time of their publish; all given conditions must hold."""
    options = options_of(ctx, json)
    headers = [f"{name}:{value}" for name, value in (pairs(header) or {}).items()] or None
    query = given(key=key, header=headers, from_ms=since, to_ms=until)
    rows = options.run(lambda link: link.rows("topics", topic, "search", limit=limit, **query))
    shown(rows, json=options.json, empty=f"nothing in {topic} fits")


messages = group("message", "One message, by id.", MESSAGES)


@command(messages, "message show", "wherry message show jobs 0-0")
def show(ctx: typer.Context, topic: TopicName, id: MessageId, json: AsJson = False) -> None:  # noqa: A002
    """Show a message with all its fields, without consuming it."""
    options = options_of(ctx, json)
    [row] = options.run(lambda link: link.rows("topics", topic, "messages", id))
    output.fields(row, json=options.json)


@command(messages, "message fate", "wherry message fate jobs 0-0")
def fate(ctx: typer.Context, topic: TopicName, id: MessageId, json: AsJson = False) -> None:  # noqa: A002
    """Show the fate of a message: as a whole, and for each subscription."""
    options = options_of(ctx, json)
    view = options.run(lambda link: link.call("GET", "topics", topic, "messages", id, "fate"))
    if options.json:
        output.as_json(view)
        return
    typer.echo(view["fate"])
    rows = [{"subscription": name, "fate": state} for name, state in view["subscriptions"].items()]
    columns = {name: name for name in ("subscription", "fate")}
    output.show(columns, rows, json=False, empty=f"no subscription of {topic} has to do with it")


@command(messages, "message amend", "wherry message amend jobs alarm --due 'in 1h' --payload 'get up'")
def amend(
    ctx: typer.Context,
    topic: TopicName,
    id: MessageId,  # noqa: A002
    payload: Annotated[str | None, typer.Option(help="Another body.")] = None,
    priority: Annotated[int | None, typer.Option(help="0 to 65535, smallest first.")] = None,
    due: Instant = None,
    expires: Instant = None,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="All headers anew.")] = None,
    version: Annotated[int | None, typer.Option(help="Only if it is still at this version.")] = None,
    json: AsJson = False,
) -> None:
    """Change a message that still waits: its body, priority, times or headers."""
    wanted = given(payload=payload, priority=priority, due_ms=due, expires_ms=expires, headers=pairs(header))
    require_any(wanted)
    options = options_of(ctx, json)
    body = wanted | given(version=version)
    view = options.run(lambda link: link.call("PATCH", "topics", topic, "messages", id, body=body))
    if options.json:
        output.as_json(view)
    else:
        output.note(f"message {id} is at version {view['version']}")


@command(messages, "message cancel", "wherry message cancel jobs alarm")
def cancel(ctx: typer.Context, topic: TopicName, id: MessageId) -> None:  # noqa: A002
    """Cancel a message that still waits; a leased or settled message cannot be cancelled."""
    options_of(ctx).run(lambda link: link.call("DELETE", "topics", topic, "messages", id))
    output.note(f"message {id} of {topic} is cancelled")
