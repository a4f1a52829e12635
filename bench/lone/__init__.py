"""The lone message, and its neighbours: programs that send one message and wait, beside what else they would use.

Each part is a module with `figures(scale)`. Brokers take turns, and each figure is the median of the rounds. A line is
printed for each run: the rate, how old or late messages are, and what the server and the clients took of the processor.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.figure import Figure
from bench.lone import amqp, before, delays, index, inside, many, node, paced, priority, queues, requests, transient

PARTS: dict[str, Callable[[int], list[Figure]]] = {
    "paced": paced.figures,
    "many": many.figures,
    "amqp": amqp.figures,
    "delays": delays.figures,
    "priority": priority.figures,
    "requests": requests.figures,
    "queues": queues.figures,
    "index": index.figures,
    "inside": inside.figures,
    "transient": transient.figures,
    "node": node.figures,
    "before": before.figures,
}


def figures(scale: int) -> list[Figure]:
    """Measure all parts."""
    return [figure for measure in PARTS.values() for figure in measure(scale)]
