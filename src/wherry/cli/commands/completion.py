"""`completion`: words of the command line that the shell can complete."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from wherry.cli.frame import BROKER, app, command

VARIABLE = "_WHERRY_COMPLETE"
"""The variable with which the shell asks `wherry` for words."""


@command(app, "completion", "wherry completion bash", 'eval "$(wherry completion bash)"', panel=BROKER)
def completion(shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="Which shell.")]) -> None:
    """Print the completion script of a shell; `wherry --install-completion` installs it."""
    typer.echo(get_completion_script(prog_name="wherry", complete_var=VARIABLE, shell=shell))
