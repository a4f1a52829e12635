"""How a command is declared, and how its errors are printed: in one line, with advice."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperGroup

from wherry.model.errors import InvalidInput, NotFound, Unauthorized, Unavailable, WherryError

F = TypeVar("F", bound=Callable[..., None])

_WRONG: type[Exception] = typer.BadParameter.__mro__[2]
"""The base class of all errors of the command line, which typer does not export."""

BROKER, MESSAGES, CATALOG, FIGURES = "The broker", "Messages", "What there is", "Figures"
DATA = "Data"
SERVICES = "Services"
"""The panels of `--help`."""

EXAMPLES: dict[str, tuple[str, ...]] = {}
"""Examples of `--help`, by command. Each runs as printed, one after another: the tests run them."""

ORDER = (
    *("serve", "config", "doctor", "tour", "demo", "completion"),
    *("publish", "consume", "browse", "search", "message"),
    *("topic", "subscription", "route", "dead", "key", "service"),
    *("mesh", "top", "load", "bench"),
    "pipeline",
    "lost",
)
"""The commands as `--help` lists them."""

QUIETLY: dict[str, Any] = {"standalone_mode": False}

DEBUG = "wherry.debug"
"""The key in the context for whether errors are raised with their trace."""


class CommandGroup(TyperGroup):
    """Commands whose errors end in one line and an exit code: 1, or 2 for wrong usage."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """See `click.Command.main`."""
        if not extra.pop("standalone_mode", True):
            return super().main(*args, **extra | QUIETLY)
        try:
            code = super().main(*args, **extra | QUIETLY)
        except _WRONG as fault:
            code = _usage(fault)
        except typer.Abort:
            code = 1
        sys.exit(code)

    def list_commands(self, ctx: Any) -> list[str]:
        """See `click.Group.list_commands`: in the order of `ORDER`."""
        return sorted(super().list_commands(ctx), key=ORDER.index)

    def invoke(self, ctx: Any) -> Any:
        """See `click.Command.invoke`."""
        try:
            return super().invoke(ctx)
        except (WherryError, OSError) as fault:
            if isinstance(fault, BrokenPipeError) or ctx.meta.get(DEBUG):
                raise
            complain(error_line(fault, getattr(ctx.obj, "url", "")))
            raise typer.Exit(1) from None
        except (typer.Exit, typer.Abort, _WRONG):
            raise
        except Exception as fault:
            if ctx.meta.get(DEBUG):
                raise
            complain(f"a fault of this program ({type(fault).__name__}: {fault}); --debug shows where it is")
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
"""The tree of commands; each module of `commands` adds to it."""


def group(name: str, about: str, panel: str) -> typer.Typer:
    """Add a group of commands with a common first word: `wherry topic …`."""
    made = typer.Typer(help=about, no_args_is_help=True, rich_markup_mode="rich")
    app.add_typer(made, name=name, rich_help_panel=panel)
    return made


def command(parent: typer.Typer, path: str, *examples: str, panel: str | None = None) -> Callable[[F], F]:
    """Declare a command: `path` is all its words; its docstring is the help, to which the examples are added."""
    EXAMPLES[path] = examples

    def declare(function: F) -> F:
        paragraphs = [" ".join(part.split()) for part in (function.__doc__ or "").split("\n\n")]
        shown = "\n".join(["\b\nExamples:", *(f"  {example}" for example in examples)])
        text = "\n\n".join([*paragraphs, shown]).replace("[", "\\[")
        parent.command(path.rpartition(" ")[2], help=text, short_help=paragraphs[0], rich_help_panel=panel)(function)
        return function

    return declare


def complain(text: str) -> None:
    """Print one line on stderr."""
    typer.secho(f"wherry: {text}", err=True, fg="red")


def error_line(fault: Exception, url: str = "") -> str:
    """Return an error as one line, with advice."""
    text = " ".join([str(fault) or type(fault).__name__, *getattr(fault, "__notes__", ())]).replace("\n", " ")
    hint = _advice(fault, url)
    return f"{text}; {hint}" if hint else text


def _advice(fault: Exception, url: str) -> str:
    text = str(fault)
    match fault:
        case Unavailable():
            return unreached(text, url)
        case Unauthorized():
            return "give a key with --api-key or WHERRY_KEY"
        case InvalidInput(field="callback") if "may be called" in text:
            return "start the broker with WHERRY_WEBHOOKS_ALLOW_PRIVATE=true to be called here, or load with --sync 1"
        case NotFound() if text.startswith("no topic "):
            return "wherry topic list shows what there is, wherry topic create makes one"
        case NotFound() if text.startswith("no subscription "):
            return "wherry subscription list TOPIC shows what there is, wherry subscription create makes one"
        case _:
            return ""


def unreached(text: str, url: str) -> str:
    """Return advice for when no broker answers at a URL; `text` is the error of the network."""
    scheme, _, place = url.partition("://")
    lower, secure = text.lower(), scheme == "https"
    untrusted, cut = "certificate_verify_failed" in lower, "closed" in lower
    strange = "[ssl" in lower or "no answer" in lower or "timed out" in lower
    hints = (
        (untrusted and "mismatch" in lower, "its certificate is for another name: use that one in --url"),
        (untrusted, "name the authority of its certificate with --ca"),
        ("certificate_required" in lower or (secure and cut), "does it ask for a certificate? --cert shows one"),
        (secure and strange, f"does the port speak TLS? if not, --url http://{place}"),
        (scheme == "http" and cut, f"if the port speaks TLS, --url https://{place}"),
        ("cannot be reached" in lower, "is the broker running? wherry serve, or name another one with --url"),
    )
    return next((hint for fits, hint in hints if fits), "")


def _usage(fault: Any) -> int:
    if type(fault).__name__ == "NoArgsIsHelpError":
        fault.show()
        return int(fault.exit_code)
    ctx = getattr(fault, "ctx", None)
    message = fault.format_message().replace("Value error, ", "")
    message = message.removeprefix("Invalid value: ").rstrip(".").replace("\n", " ")
    complain(f"{message}; try: {ctx.command_path} --help" if ctx is not None else message)
    return int(fault.exit_code)
