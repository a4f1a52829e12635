"""`serve` and `config show`: run a node, and print its configuration."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wherry.cli import output
from wherry.cli.frame import BROKER, app, command, complain, group
from wherry.cli.options import AsJson, options_of
from wherry.model.errors import InvalidInput

if TYPE_CHECKING:
    from wherry.node.sources import Effective

FLAGS: dict[str, tuple[str, str]] = {
    "--host": ("ADDRESS", "Where to listen; 127.0.0.1 is for this machine only."),
    "--port": ("PORT", "0 lets the system choose."),
    "--unix-socket": ("PATH", "A Unix socket to listen on as well."),
    "--flight-port": ("PORT", "The same for Arrow Flight."),
    "--amqp-port": ("PORT", "The same for AMQP 0-9-1."),
    "--stomp-port": ("PORT", "The same for STOMP."),
    "--data": ("DIRECTORY", "Where the messages are."),
    "--cache-bytes": ("BYTES", "Memory for recent messages."),
    "--tls-certificate": ("FILE", "PEM; with --tls-key the port speaks https."),
    "--tls-key": ("FILE", "PEM."),
    "--tls-client-ca": ("FILE", "PEM; clients show a certificate of it."),
    "--keys": ("WHEN", "Whether requests need an API key: auto, on, off."),
    "--open": ("", "Serve other machines without keys."),
    "--log-level": ("LEVEL", "debug, info, warning, error."),
    "--log-format": ("FORMAT", "auto, text, json."),
}
"""The flags of `wherry.node.sources`, with their help; a test compares the two."""


def _with_flags(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command that takes all flags, and passes those that were given as `flags`."""
    own = inspect.signature(function, eval_str=True)
    kept = [each for name, each in own.parameters.items() if name != "flags"]
    names = {flag.strip("-").replace("-", "_"): flag for flag in FLAGS}
    made = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(flag))
        for name, flag in names.items()
    ]

    def run(**given: Any) -> None:
        flags = {flag: value for name, flag in names.items() if (value := given.pop(name)) is not None}
        function(**given, flags=flags)

    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in kept]
    signature = inspect.Signature([*parameters, *made])
    run.__doc__, run.__name__ = function.__doc__, function.__name__
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
    return run


def _option(flag: str) -> Any:
    metavar, text = FLAGS[flag]
    if not metavar:
        return Annotated[bool | None, typer.Option(flag, help=text, show_default=False)]
    return Annotated[str | None, typer.Option(flag, metavar=metavar, help=text, show_default=False)]


ConfigFile = Annotated[str | None, typer.Option(metavar="FILE", help="A TOML file; wherry.toml if it is there.")]


def effective(config: str | None = None, flags: dict[str, object] | None = None) -> Effective:
    """Return the configuration in force, ignoring variables that only the command line reads."""
    from wherry.node.sources import load  # loads the broker

    return load(config, os.environ, flags)


def _effective(config: str | None, flags: dict[str, object]) -> Effective:
    try:
        return effective(config, flags)
    except InvalidInput as fault:
        complain(f"{fault}; wherry config show prints what is in force")
        raise typer.Exit(2) from None


@command(app, "serve", "wherry serve", "wherry serve --data ./data --port 7071", panel=BROKER)
@_with_flags
def serve(flags: dict[str, object], config: ConfigFile = None) -> None:
    """Serve a broker over HTTP, until Ctrl-C.

    Values come from the defaults, then the file, then WHERRY_… in the environment, then these flags.
    """
    found = _effective(config, flags)
    from wherry.node.process import run  # loads the broker

    raise typer.Exit(run(found.config))


config_app = group("config", "The configuration of a broker.", BROKER)


@command(config_app, "config show", "wherry config show", "wherry config show --port 7071 --json")
@_with_flags
def show_config(ctx: typer.Context, flags: dict[str, object], config: ConfigFile = None, json: AsJson = False) -> None:
    """Show the settings of a broker started here, and the source of each value.

    Takes the flags of `serve`, and reads the same file and environment.
    """
    as_json = options_of(ctx, json).json
    settings = [setting._asdict() for setting in _effective(config, flags).settings()]
    if not as_json:
        settings = [setting | {"value": str(setting["value"])} for setting in settings]
    output.show({name: name for name in ("name", "value", "source")}, settings, json=as_json, empty="")
