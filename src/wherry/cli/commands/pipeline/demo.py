"""`demo`: broker, load, streaming pipeline and consumers together, and a chart of the rates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wherry.cli import output
from wherry.cli.frame import BROKER, app, command
from wherry.cli.options import AsJson, options_of

if TYPE_CHECKING:
    from rich.live import Live

    from wherry.spark.pipelines.demo.demo import Story


@command(app, "demo", "wherry demo", "wherry demo --seconds 20 --rate 5000", panel=BROKER)
def demo(
    ctx: typer.Context,
    seconds: Annotated[float, typer.Option(min=2, max=86_400, help="How long the pipeline runs.")] = 60.0,
    rate: Annotated[int, typer.Option(min=1, max=1_000_000, help="Orders a second.")] = 2_000,
    picture: Annotated[Path, typer.Option(help="Path of the PNG.")] = Path("wherry-demo.png"),
    master: Annotated[str, typer.Option(help="Where Spark runs.")] = "local[*]",
    json: AsJson = False,
) -> None:
    """Run a broker, publish orders, pipe them through Spark to another topic and consumers, and show the rates."""
    import tempfile

    from wherry.cli.commands.pipeline.archive import spark_installed
    from wherry.cli.commands.pipeline.pipeline import stoppable

    options = options_of(ctx, json)
    with spark_installed():
        from wherry.spark.pipelines.demo.demo import demo as run
        from wherry.spark.pipelines.demo.picture import chart
        from wherry.spark.pipelines.demo.picture import picture as draw
    with (
        stoppable(),
        tempfile.TemporaryDirectory(prefix="wherry-demo-") as folder,
        _Screen(quiet=options.json) as screen,
    ):
        story = run(Path(folder), seconds=seconds, rate=rate, master=master, report=screen.report)
    if not story.moments:
        output.note("stopped before the first micro-batch: there is nothing to show")
        raise typer.Exit(1)
    draw(story, picture)
    if options.json:
        output.as_json(_summary(story) | {"picture": str(picture)})
        return
    for line in chart(story):
        typer.echo(line)
    typer.echo("")
    output.fields(_summary(story), json=False)
    output.note(f"the picture is {picture}")


def _summary(story: Story) -> dict[str, object]:
    last = story.moments[-1]
    return {
        "seconds": round(last.at_s, 1),
        "spark_start_s": round(story.spark_s, 1),
        "published": story.counts.published,
        "piped": last.piped,
        "bad": last.bad,
        "consumed": story.counts.consumed,
        "lag": last.lag,
        "micro_batches": story.figures[0].batch + 1,
        "states": {each.query: each.state for each in story.figures},
    }


class _Screen:
    """Shows the chart so far and the queries, live."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = output.console(err=True)
        self._quiet, self._shown = quiet, ""
        self._live: Live | None = None

    def __enter__(self) -> _Screen:
        if self._console.is_terminal and not self._quiet:
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def report(self, what: str, story: Story | None) -> None:
        if self._quiet:
            return
        if self._live is None:
            if what != self._shown:
                output.note(what)
            self._shown = what
            return
        from rich.console import Group
        from rich.text import Text

        from wherry.cli.commands.pipeline.pipeline import live_table
        from wherry.spark.pipelines.demo.picture import chart

        lines = [Text(f"{what} …")] if story is None else [Text(line) for line in chart(story)]
        parts = lines if story is None else [*lines, Text(""), live_table(story.figures)]
        self._live.update(Group(*parts), refresh=True)
