"""A transient `flow` topic to ten subscribers, at one node and over two, beside sockets without a server.

The peers take turns, and each figure is the median of the rounds. A `safe` topic of the same node is measured too: what
it is slower or faster by is the price of `flow`. `mesh.take` is the processor that a node takes for each message of a
peer's delivery before it publishes it, against a budget.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from bench.figure import Figure
from bench.lone.shapes import SUBSCRIBERS, subscriber
from bench.lone.turns import Contender, Contenders, Servers, by_sides, in_turn, unit
from bench.measuring import Measured
from bench.peers.peer import SIZE
from bench.peers.wherry import WherryNode
from bench.peers.zenoh import Zenoh
from bench.peers.zeromq import ZeroMq
from wherry.mesh.flow.links import MeshNode
from wherry.mesh.flow.passing import Source, take
from wherry.model.calls.origin import HEADER, OriginPlace, show_origin
from wherry.model.schema import DELIVERED

COUNT = 100_000
DELIVERY = 4_000
"""Messages of a peer that are taken together: as many as it may have under way."""

NAMES = [subscriber(number) for number in range(SUBSCRIBERS)]
TOPIC = "fan"


class _MeshNode(WherryNode):
    """A node that is passed on to: its peer is at another port."""

    def __init__(self, folder: Path, name: str, peers: tuple[int, ...] = ()) -> None:
        super().__init__(folder)
        self._mesh = {
            "WHERRY_MESH_NODE": name,
            "WHERRY_MESH_PEERS": ",".join(f"http://127.0.0.1:{each}" for each in peers),
        }

    def environment(self) -> dict[str, str]:
        return {name: value for name, value in self._mesh.items() if value}


class NodePair(_MeshNode):
    """Two nodes: the producer is a client of the `first`, the subscribers are clients of this one."""

    name = "Wherry, two nodes"

    def __init__(self, folder: Path) -> None:
        self.first = _MeshNode(folder / "first", "first")
        super().__init__(folder, "second", (self.first.port,))

    def start(self) -> None:
        self.first.folder.mkdir()
        self.first.start()
        super().start()

    def stop(self) -> None:
        super().stop()
        self.first.stop()

    def processor_s(self) -> float:
        return super().processor_s() + self.first.processor_s()

    def flows(self) -> bool:
        """Return whether the second node reads the topic at the first."""
        connection = http.client.HTTPConnection("127.0.0.1", self.first.port)
        connection.request("GET", "/v1/mesh")
        backlogs = json.loads(connection.getresponse().read())["backlogs"]
        connection.close()
        return any(each["topic"] == TOPIC for each in backlogs)


def figures(scale: int) -> list[Figure]:
    """Measure all parts."""
    return [figure for measure in PARTS.values() for figure in measure(scale)]


def _fanout(scale: int) -> list[Figure]:
    count = COUNT // scale
    contenders: Contenders = {
        "flow": Contender(WherryNode, lambda node: _one(node, "flow", count)),
        "pair": Contender(NodePair, lambda pair: _two(pair, count)),
        "safe": Contender(WherryNode, lambda node: _one(node, "safe", count), "Wherry, a safe topic"),
        "zeromq": Contender(ZeroMq, by_sides("zeromq", "fanout", count, TOPIC), "ZeroMQ XPUB and SUB, pyzmq"),
        "zenoh": Contender(Zenoh, by_sides("zenoh", "fanout", count, TOPIC)),
    }
    with Servers() as servers:
        found = in_turn(servers, "mesh.fanout", contenders, scale)
    rows = []
    for ours, name in (("flow", "fanout"), ("pair", "fanout.two_nodes")):
        for other in ("safe", "zeromq", "zenoh"):
            if other in found:
                rates, title = (found[ours]["rate"], found[other]["rate"]), contenders[other].title
                rows.append(Figure(f"mesh.{name}.rate_by_{other}", rates[0], unit("rate"), title, rates[1]))
    return rows


def _one(node: WherryNode, mesh: str, count: int) -> Measured:
    topic = f"{TOPIC}-{mesh}"
    node.create({topic: {"persistent": False, "mesh": mesh}}, {name: {"acks": False} for name in NAMES})
    return by_sides("wherry", "fanout", count, topic)(node)


def _two(pair: NodePair, count: int) -> Measured:
    for node, names in ((pair.first, []), (pair, NAMES)):
        node.create({TOPIC: {"persistent": False, "mesh": "flow"}}, {name: {"acks": False} for name in names})
    pair.wait_until(pair.flows)
    return by_sides("wherry", "onward", count, TOPIC, pair.first.port)(pair)


def _take(scale: int) -> list[Figure]:
    """Measure messages of the peer's own, without headers and with one, and those that came to it from another node."""
    me, source = MeshNode("b", "hub"), Source(MeshNode("a", "hub"), "r1", TOPIC)
    leaf = show_origin(OriginPlace("l", "r1", 0), 7, "leaf", TOPIC)
    given = {"plain": None, "headers": [("traceparent", "0" * 55)], "passed_on": [(HEADER, leaf)]}
    figures = []
    for name, headers in given.items():
        row = {"payload": bytes(SIZE), "partition": 0, "attempt": 1, "priority": 1, "published": 0, "headers": headers}
        batch = pa.RecordBatch.from_pylist([{**row, "offset": at} for at in range(DELIVERY)], DELIVERED)
        spent = []
        for _ in range(max(3, 30 // scale)):
            began = time.process_time()
            take(me, source, batch)
            spent.append((time.process_time() - began) / DELIVERY * 1e6)
        figures.append(Figure(f"mesh.take.{name}", min(spent), "us a message", "0.25 us", 0.25))
    return figures


PARTS: dict[str, Callable[[int], list[Figure]]] = {"fanout": _fanout, "take": _take}
