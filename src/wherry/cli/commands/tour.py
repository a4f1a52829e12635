"""`tour`: shows the queue at work without any set-up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wherry.cli.frame import BROKER, app, command


@command(app, "tour", "wherry tour", "wherry tour ./tour-data", panel=BROKER)
def tour(
    directory: Annotated[
        Path | None, typer.Argument(help="A new or empty directory, kept; else a temporary one.")
    ] = None,
) -> None:
    """Take a short tour of the queue in this process: code, and what it does. Takes about three seconds."""
    if directory is not None and directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise typer.BadParameter(f"{directory} is not an empty directory; name a new one")
    from wherry.cli.tour import take  # loads the broker

    raise typer.Exit(take(directory))
