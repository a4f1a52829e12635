"""`key`: API keys and their rights."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from wherry.cli import output
from wherry.cli.commands.publish import Instant
from wherry.cli.frame import CATALOG, command, group
from wherry.cli.options import AsJson, Yes, confirm, options_of
from wherry.cli.values import given, require_any

keys = group("key", "API keys: who may publish, consume or administer which topics.", CATALOG)

KeyId = Annotated[str, typer.Argument(help="The public part: 8 letters and digits.", metavar="ID")]
VERBS = ("publish", "consume", "admin")


def _right(text: str) -> dict[str, str]:
    verb, _, topics = text.partition(":")
    if verb not in VERBS:
        allowed = "publish, consume or admin, and after a colon the topics, such as publish:jobs*"
        raise typer.BadParameter(f"{text!r} is no right; write {allowed}", param_hint="--right")
    return {"verb": verb, "topics": topics or "*"}


def _readable(view: dict[str, Any]) -> dict[str, Any]:
    rights = [f"{right['verb']}:{right['topics']}" for right in view["rights"]]
    created, expires = (output.moment(view.get(name)) for name in ("created_ms", "expires_ms"))
    made_by = view.get("made_by") or "–"
    return view | {"rights": rights, "created": created, "made by": made_by, "expires": expires or "never"}


@command(
    keys,
    "key create",
    "wherry key create ann --right 'publish:jobs*' --right consume:jobs",
    "wherry key create bob --right admin --expires 'in 30d'",
)
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Whose it is.")],
    right: Annotated[
        list[str], typer.Option(metavar="VERB[:TOPICS]", help="publish, consume, admin; * is any characters.")
    ],
    expires: Instant = None,
    json: AsJson = False,
) -> None:
    """Make a key. Its token is shown only now."""
    options = options_of(ctx, json)
    body = {"name": name, "rights": [_right(text) for text in right], "expires_ms": expires}
    view = options.run(lambda link: link.call("POST", "keys", body=body))
    if options.json:
        output.as_json(view)
        return
    typer.echo(view["token"])
    output.note(f"key {view['id']} of {name}: this is shown once. Use it with --api-key or WHERRY_KEY")


@command(keys, "key list", "wherry key list", "wherry key list --json")
def list_keys(ctx: typer.Context, json: AsJson = False) -> None:
    """List all keys, without their secrets."""
    options = options_of(ctx, json)
    views = options.run(lambda link: link.call("GET", "keys"))["keys"]
    rows = views if options.json else [_readable(view) for view in views]
    names = ("id", "name", "rights", "created", "made by", "expires")
    output.show({each: each for each in names}, rows, json=options.json, empty="no keys yet: wherry key create")


@command(keys, "key show", "wherry key show $ID")
def show(ctx: typer.Context, id: KeyId, json: AsJson = False) -> None:  # noqa: A002
    """Show the name and the rights of a key."""
    options = options_of(ctx, json)
    view = options.run(lambda link: link.call("GET", "keys", id))
    output.fields(view if options.json else view | {"rights": _readable(view)["rights"]}, json=options.json)


@command(
    keys,
    "key change",
    "wherry key change $ID --right 'publish:jobs*' --expires 'in 90d'",
    "wherry key change $ID --name 'ann of sales' --never-expires",
)
def change(
    ctx: typer.Context,
    id: KeyId,  # noqa: A002
    name: Annotated[str | None, typer.Option(help="Whose it is.")] = None,
    right: Annotated[list[str] | None, typer.Option(metavar="VERB[:TOPICS]", help="All rights anew.")] = None,
    expires: Instant = None,
    never_expires: Annotated[bool, typer.Option("--never-expires", help="It stays good.")] = False,
) -> None:
    """Change the given fields of a key; its token stays."""
    if never_expires and expires is not None:
        raise typer.BadParameter("either --expires or --never-expires")
    rights = [_right(text) for text in right or ()] or None
    wanted = given(name=name, rights=rights, expires_ms=expires) | ({"expires_ms": None} if never_expires else {})
    require_any(wanted)
    options_of(ctx).run(lambda link: link.call("PATCH", "keys", id, body=wanted))
    output.note(f"key {id} is changed")


@command(keys, "key delete", "wherry key delete $ID --yes")
def delete(ctx: typer.Context, id: KeyId, yes: Yes = False) -> None:  # noqa: A002
    """Delete a key: requests with its token are refused from now on."""
    options = options_of(ctx)
    view = options.run(lambda link: link.call("GET", "keys", id))
    confirm(f"Delete key {id} of {view['name']}?", yes)
    options.run(lambda link: link.call("DELETE", "keys", id))
    output.note(f"key {id} of {view['name']} is deleted")
