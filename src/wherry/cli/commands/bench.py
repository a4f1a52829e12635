"""`bench`: measures the broker from this machine, in a few seconds; deletes what it created."""

from __future__ import annotations

from typing import Annotated

import typer

from wherry.cli import output
from wherry.cli.frame import FIGURES, app, command
from wherry.cli.options import AsJson, options_of


@command(
    app, "bench", "wherry bench --messages 20000", "wherry bench --messages 20000 --size 1024 --json", panel=FIGURES
)
def bench(
    ctx: typer.Context,
    messages: Annotated[int, typer.Option(min=1_000, max=100_000_000, help="How many for each part.")] = 200_000,
    size: Annotated[int, typer.Option(min=1, max=65_535, help="Bytes of a body.")] = 256,
    batch: Annotated[int, typer.Option(min=1, max=65_536, help="Messages of a batch.")] = 1_000,
    json: AsJson = False,
) -> None:
    """Publish and consume through a temporary topic: batches, then one message at a time.

    The parts run one after another, never at the same time, and every confirm waits for the disk. One by one means one
    call for each message: the client still gathers up to 2,000 messages to a request, so do not compare it to --batch.
    Results of short runs vary; for ratios to other brokers see `make bench`.
    """
    from wherry.cli.bench import Bench

    options = options_of(ctx, json)
    rows = options.run(lambda link: Bench(link, messages, size, batch).run())
    shown = {"what": "what", "messages": "messages", "seconds": "seconds", "rate": "a second", "mib": "MiB/s"}
    output.show(shown, rows, json=options.json, empty="")
