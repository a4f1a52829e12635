"""`route`: rules that copy a publish to topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wherry.cli import output
from wherry.cli.frame import CATALOG, command, group
from wherry.cli.options import AsJson, Yes, confirm, options_of
from wherry.cli.values import checked_key, given, pairs

if TYPE_CHECKING:
    from wherry.cli.link import BrokerLink
    from wherry.model.calls.publish import Published

routes = group("route", "Routes: one publish, copied to the topics whose rules match.", CATALOG)

Kind = Literal["direct", "fanout", "pattern", "headers"]
RouteName = Annotated[str, typer.Argument(help="The name of a route.", metavar="ROUTE")]


def _binding(text: str, kind: Kind, *, any_header: bool) -> dict[str, object]:
    """Parse a binding: `jobs`, `jobs=orders.*`, or of headers `jobs=region:eu,size:big`."""
    topic, _, match = text.partition("=")
    if kind != "headers":
        return given(topic=topic, match=match or None)
    wanted = [pair.partition(":") for pair in match.split(",")]
    if not all(name and sign for name, sign, _ in wanted):
        allowed = "the topic and the headers that lead there, such as jobs=region:eu,size:big"
        raise typer.BadParameter(f"{text!r} is no rule; write {allowed}", param_hint="--to")
    headers = {name: value for name, _, value in wanted}
    return given(topic=topic, headers=headers, any_header=any_header or None)


def _readable(binding: dict[str, Any]) -> str:
    headers = ",".join(f"{name}:{value}" for name, value in binding.get("headers", {}).items())
    match = binding.get("match") or headers
    return f"{binding['topic']}={match}" if match else str(binding["topic"])


@command(
    routes,
    "route put",
    "wherry route put orders --kind pattern --to 'jobs=order.#' --to 'mails=order.paid'",
    "wherry route put all --kind fanout --to jobs --to mails",
    "wherry route put regions --kind headers --to jobs=region:eu",
)
def put(
    ctx: typer.Context,
    route: RouteName,
    kind: Annotated[Kind, typer.Option(help="By routing key, to all, by dotted words, by headers.")],
    to: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC[=MATCH]", help="In a pattern * is one word, # any number. May be repeated."),
    ] = None,
    any_header: Annotated[bool, typer.Option("--any-header", help="One of the headers is enough.")] = False,
) -> None:
    """Create a route, or replace its rules."""
    bindings = [_binding(text, kind, any_header=any_header) for text in to or ()]
    options_of(ctx).run(lambda link: link.call("PUT", "routes", route, body={"kind": kind, "bindings": bindings}))
    output.note(f"route {route} has {output.many(len(bindings), 'rule')}")


@command(routes, "route list", "wherry route list", "wherry route list --json")
def list_routes(ctx: typer.Context, json: AsJson = False) -> None:
    """List all routes with their rules."""
    options = options_of(ctx, json)
    rows = options.run(lambda link: link.call("GET", "routes"))["routes"]
    if not options.json:
        rows = [row | {"rules": list(map(_readable, row.get("bindings", ())))} for row in rows]
    hint = "no routes yet: wherry route put all --kind fanout --to jobs"
    output.show({name: name for name in ("name", "kind", "rules")}, rows, json=options.json, empty=hint)


@command(routes, "route show", "wherry route show orders")
def show(ctx: typer.Context, route: RouteName, json: AsJson = False) -> None:
    """Show a route with its rules."""
    options = options_of(ctx, json)
    view = options.run(lambda link: link.call("GET", "routes", route))
    if not options.json:
        view["bindings"] = list(map(_readable, view.get("bindings", ())))
    output.fields(view, json=options.json)


@command(
    routes,
    "route publish",
    "wherry route publish orders 'order 7 is paid' --routing-key order.paid",
    "wherry route publish regions 'order 8 came in' --routing-header region=eu",
)
def publish(
    ctx: typer.Context,
    route: RouteName,
    texts: Annotated[list[str], typer.Argument(help="One message each.", metavar="TEXT")],
    routing_key: Annotated[str, typer.Option(help="What direct and pattern routes match.")] = "",
    routing_header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="What headers routes match. May be repeated.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(parser=checked_key, metavar="TEXT", help="What messages are ordered by.")
    ] = None,
    priority: Annotated[int | None, typer.Option(help="0 to 65535, smallest first.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Of the messages. May be repeated.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Publish through a route: a copy for each topic that matches, all of them or none."""
    options, own, routing = options_of(ctx, json), pairs(header), pairs(routing_header, "--routing-header")

    async def work(link: BrokerLink) -> dict[str, Published]:
        from wherry.model.schema import Message  # loads Arrow

        messages = [Message(payload=text.encode(), key=key, priority=priority, headers=own) for text in texts]
        return await link.client.publish_route(route, messages, routing_key=routing_key, headers=routing)

    rows = [{"topic": topic, "ids": published.ids()} for topic, published in options.run(work).items()]
    output.show({"topic": "topic", "ids": "ids"}, rows, json=options.json, empty="no rule matched: it went nowhere")


@command(routes, "route delete", "wherry route delete orders --yes")
def delete(ctx: typer.Context, route: RouteName, yes: Yes = False) -> None:
    """Delete a route; its topics stay."""
    options = options_of(ctx)
    rules = output.many(len(options.run(lambda link: link.call("GET", "routes", route)).get("bindings", ())), "rule")
    confirm(f"Delete route {route} with {rules}?", yes)
    options.run(lambda link: link.call("DELETE", "routes", route))
    output.note(f"route {route} is deleted, with {rules}")
