"""`wherry`: all commands in one tree."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from wherry.cli.commands import (  # noqa: F401  each adds its commands to the tree
    bench,
    catalog,
    completion,
    consume,
    dead,
    doctor,
    keys,
    load,
    messages,
    publish,
    routes,
    serve,
    top,
    tour,
)
from wherry.cli.commands.pipeline import demo, pipeline  # noqa: F401  each adds its commands to the tree
from wherry.cli.frame import DEBUG, app
from wherry.cli.options import PROCESS, URL, VARIABLES, GlobalOptions, TlsOptions

__all__ = ["app", "main"]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # only here

        typer.echo(f"wherry {version('wherry')}")
        raise typer.Exit


def _file(place: int, about: str) -> Any:
    return typer.Option(
        envvar=VARIABLES[place], metavar="FILE", help=about, exists=True, dir_okay=False, show_envvar=True
    )


@app.callback()
def wherry(
    ctx: typer.Context,
    url: Annotated[str, typer.Option(envvar="WHERRY_URL", help="The URL of the broker.")] = URL,
    api_key: Annotated[
        str | None, typer.Option("--api-key", envvar="WHERRY_KEY", help="Your API key.", show_envvar=True)
    ] = None,
    ca: Annotated[Path | None, _file(0, "PEM; the authority of an https broker.")] = None,
    cert: Annotated[Path | None, _file(1, "PEM; a certificate to show to the broker.")] = None,
    cert_key: Annotated[Path | None, _file(2, "PEM; its private key, if it is in another file.")] = None,
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
    if cert_key is not None and cert is None:
        raise typer.BadParameter("the key of a certificate comes with --cert", param_hint="--cert-key")
    ctx.obj = GlobalOptions(url, api_key, json, TlsOptions(ca, cert, cert_key))
    ctx.meta[DEBUG] = debug


def main() -> None:
    """Run the command line."""
    PROCESS.is_lean = not {"pipeline", "demo"} & set(sys.argv)  # Spark converts to and from pandas
    app(prog_name="wherry")
