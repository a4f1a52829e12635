"""`wherry`: all commands in one tree."""

from __future__ import annotations

from typing import Annotated

import typer

from wherry.cli.commands import (  # noqa: F401  each adds its commands to the tree
    bench,
    catalogue,
    completion,
    consume,
    dead,
    doctor,
    keys,
    load,
    look,
    publish,
    serve,
    top,
    tour,
)
from wherry.cli.frame import DEBUG, app
from wherry.cli.session import URL, Session

__all__ = ["app", "main"]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # only here

        typer.echo(f"wherry {version('wherry')}")
        raise typer.Exit


@app.callback()
def wherry(
    ctx: typer.Context,
    url: Annotated[str, typer.Option(envvar="WHERRY_URL", help="Where the broker is.")] = URL,
    key: Annotated[str | None, typer.Option(envvar="WHERRY_KEY", help="An API key.", show_envvar=True)] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """A message queue whose log is Apache Arrow.

    Begin with [bold]wherry serve[/bold] in one terminal, and in another
    [bold]wherry publish --create jobs hello[/bold] and [bold]wherry consume --create jobs workers[/bold].
    """
    ctx.obj = Session(url, key, json)
    ctx.meta[DEBUG] = debug


def main() -> None:
    """The entry point."""
    app(prog_name="wherry")
