"""Options of all commands: the URL of the broker, the API key, TLS files, and the output format."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from wherry.model.errors import InvalidInput

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from pathlib import Path
    from ssl import SSLContext

    from wherry.cli.link import BrokerLink

T = TypeVar("T")

URL = "http://127.0.0.1:7070"

VARIABLES = ("WHERRY_CA", "WHERRY_CERT", "WHERRY_CERT_KEY")
"""The environment variables for the files of `TlsOptions`."""

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """PEM files for TLS: the authority to trust, and our own certificate."""

    ca: Path | None = None
    cert: Path | None = None
    cert_key: Path | None = None

    def context(self) -> SSLContext | None:
        """Return the context for the client; None for the authorities of the system."""
        if self == TlsOptions():
            return None
        import ssl

        try:
            made = ssl.create_default_context(cafile=self.ca)
        except ssl.SSLError as fault:
            raise InvalidInput("--ca", str(self.ca), f"a PEM file of certificates ({fault})") from None
        if self.cert is not None:
            try:
                made.load_cert_chain(self.cert, self.cert_key)
            except ssl.SSLError as fault:
                files = str(self.cert) if self.cert_key is None else f"{self.cert}, {self.cert_key}"
                raise InvalidInput("--cert", files, f"PEM files of a certificate and its key ({fault})") from None
        return made


@dataclass(slots=True)
class OwnProcess:
    """What `main` knows of the process: with `is_lean` it runs one command that needs no pandas, and nothing else."""

    is_lean: bool = False


PROCESS = OwnProcess()


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """The options that every command has; on the command line they come before its name."""

    url: str = URL
    key: str | None = None
    json: bool = False
    tls: TlsOptions = TlsOptions()

    def run(self, work: Callable[[BrokerLink], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine with a connection to the broker."""
        from asyncio import Runner

        if PROCESS.is_lean:
            from wherry.node.memory import keep_pandas_out

            keep_pandas_out()
        from wherry.cli.link import BrokerLink  # loads Arrow, which takes longer than all of `--help`

        async def connected() -> T:
            async with BrokerLink(self.url, self.key, self.tls.context()) as link:
                return await work(link)

        with Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(connected())


def options_of(ctx: typer.Context, json: bool = False) -> GlobalOptions:
    """Return the global options for a command, which may have a `--json` of its own."""
    found = ctx.find_object(GlobalOptions) or GlobalOptions()
    return replace(found, json=True) if json else found


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation, unless `yes`; abort without it."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question} There is no terminal to ask on: give --yes")
    typer.confirm(question, abort=True)


def _loop_factory() -> Callable[[], AbstractEventLoop] | None:
    """Return the faster loop, where it is installed."""
    try:
        import uvloop  # not on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop
