"""`load`: publishes at an even pace, some messages sync and some async, and measures the time until each is settled."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Literal

import typer

from wherry.cli.commands.catalog import TopicName
from wherry.cli.frame import FIGURES, app, command
from wherry.cli.options import AsJson, options_of
from wherry.cli.values import duration

SUBSCRIPTION = "load"
TIMEOUT_MS = 10_000
SYNC = 0.5

Wait = Literal["stored", "delivered", "settled"]


@command(
    app,
    "load",
    "wherry load trial --count 3 --rate 10",
    "wherry load jobs --rate 100 --duration 2s --sync 1 --wait stored",
    panel=FIGURES,
)
def load(
    ctx: typer.Context,
    topic: TopicName,
    rate: Annotated[float, typer.Option(min=0.001, max=100_000, help="Messages a second.")] = 1.0,
    sync: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="The share that waits; the rest is called back.", show_default="0.5"),
    ] = None,
    wait: Annotated[Wait, typer.Option(help="What the sync ones wait for.")] = "settled",
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after so many.")] = None,
    length: Annotated[
        int | None, typer.Option("--duration", parser=duration, metavar="DURATION", help="Stop after so long.")
    ] = None,
    size: Annotated[int, typer.Option(min=1, max=1 << 20, help="Bytes of a body.")] = 256,
    timeout: Annotated[
        int | None,
        typer.Option(parser=duration, metavar="DURATION", help="How long to wait for an outcome.", show_default="10s"),
    ] = None,
    consumer: Annotated[
        bool, typer.Option("--consumer/--no-consumer", help=f"Also consume, as subscription {SUBSCRIPTION!r}.")
    ] = True,
    callback_host: Annotated[str, typer.Option(help="Under which name the broker reaches this machine.")] = "127.0.0.1",
    json: AsJson = False,
) -> None:
    """Publish at an even pace, and report the time until each message is settled by every subscription.

    The request of a sync message waits until then; an async one is answered at once, and the broker calls back. For
    calls to this machine the broker's configuration needs webhooks.allow_private; without it all are sync, unless
    --sync is given. A message that is not settled in time has failed. Ends by --count, --duration or Ctrl-C.
    """
    from wherry.cli.load import Load

    options = options_of(ctx, json)
    share, mix = (SYNC, False) if sync is None else (sync, True)
    job = Load(topic, rate, share, mix, wait, count, length, size, timeout or TIMEOUT_MS, callback_host)
    with suppress(KeyboardInterrupt):
        options.run(lambda link: job.run(link, consume=consumer))
    job.report(json=options.json)
