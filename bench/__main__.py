"""`python -m bench [--only core]`: measures, prints a table, writes a JSON list for comparing over time."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from bench import amqp, balancing, core, fair, frames, http, lone, mesh, service, spark, start, stomp
from bench.figure import Figure, table
from bench.measuring import progress

PARTS = {
    "start": start.figures,
    "core": core.figures,
    "http": http.figures,
    "lone": lone.figures,
    "amqp": amqp.figures,
    "stomp": stomp.figures,
    "fair": fair.figures,
    "balancing": balancing.figures,
    "service": service.figures,
    "mesh": mesh.figures,
    "scan": frames.figures,
    "spark": spark.figures,
}
PIECES = {f"lone.{name}": measure for name, measure in lone.PARTS.items()}
PIECES |= {f"service.{name}": measure for name, measure in service.PARTS.items()}
PIECES |= {f"mesh.{name}": measure for name, measure in mesh.PARTS.items()}
PIECES |= {f"fair.{wire}": measure for wire, measure in fair.PARTS.items()}
"""Pieces of a part, which can be measured by themselves."""


def main() -> None:
    """Run the parts, print and write."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", choices=sorted(PARTS | PIECES), help="one part, or a piece of it")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"), help="where the figures go")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size: to see that it runs")
    given = parser.parse_args()
    scale = 10 if given.quick else 1
    figures: list[Figure] = []
    for name, measure in ({given.only: (PARTS | PIECES)[given.only]} if given.only else PARTS).items():
        began = time.monotonic()
        figures += measure(scale)
        progress(f"{name} took {time.monotonic() - began:.0f} s\n")
    print(table(figures))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps([figure.row() for figure in figures], indent=2) + "\n")
    print(f"\nwritten to {given.out}")


if __name__ == "__main__":
    main()
