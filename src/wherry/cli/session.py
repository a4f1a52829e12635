"""Where the broker is, who asks, and how the answer should look: what all commands have in common."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from wherry.cli.link import Link

T = TypeVar("T")

URL = "http://127.0.0.1:7070"

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


@dataclass(frozen=True, slots=True)
class Session:
    """The options before the command."""

    url: str = URL
    key: str | None = None
    json: bool = False

    def run(self, work: Callable[[Link], Coroutine[Any, Any, T]]) -> T:
        """Do something with a broker at the other end."""
        from asyncio import Runner

        from wherry.cli.link import Link  # brings Arrow along, which takes longer than all of `--help`

        async def connected() -> T:
            async with Link(self.url, self.key) as link:
                return await work(link)

        with Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(connected())


def session(ctx: typer.Context, json: bool = False) -> Session:
    """The session of a command, which may have a `--json` of its own."""
    found = ctx.find_object(Session) or Session()
    return replace(found, json=True) if json else found


def confirm(question: str, yes: bool) -> None:
    """Go on only if somebody says so."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question} Nobody is here to ask: say --yes")
    typer.confirm(question, abort=True)


def _loop_factory() -> Callable[[], AbstractEventLoop] | None:
    """The faster loop, where it is to be had."""
    try:
        import uvloop  # not on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop
