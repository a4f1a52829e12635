"""What a node takes of a delivery of a peer."""

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from wherry.mesh.flow.links import MeshNode
from wherry.mesh.flow.passing import Source, take
from wherry.model.calls.origin import HEADER, OriginPlace, show_origin
from wherry.model.schema import DELIVERED

H, G = MeshNode("h", "hub"), MeshNode("g", "hub")
L, M = MeshNode("l", "leaf", "h"), MeshNode("m", "leaf", "h")


def delivered(*rows: dict[str, Any]) -> pa.RecordBatch:
    full = [
        {"offset": at, "priority": 1, "published": 0, "payload": b"x", "partition": 0, "attempt": 1, **row}
        for at, row in enumerate(rows)
    ]
    return pa.RecordBatch.from_pylist(full, DELIVERED)


def of(node: str, offset: int, role: Any, topic: str = "t") -> dict[str, Any]:
    return {"headers": [("k", "v"), (HEADER, show_origin(OriginPlace(node, "r", 0), offset, role, topic))]}


def origins(me: MeshNode, peer: MeshNode, batch: pa.RecordBatch) -> dict[str, list[int]]:
    parts = take(me, Source(peer, "r", "t"), batch).parts
    return {part.origin.place.node: part.origin.offsets.tolist() for part in parts}


@pytest.mark.rows("Q21", "Q23")
def test_a_message_is_taken_by_the_one_way_on_which_it_comes():
    batch = delivered({}, of("x", 70, "hub"), of("m", 80, "leaf"), of("l", 90, "leaf"), {})
    assert origins(G, H, batch) == {"h": [0, 4], "m": [80], "l": [90]}  # a hub of a hub: not what came from a hub
    assert origins(L, H, batch) == {"h": [0, 4], "x": [70], "m": [80]}  # a leaf of its hub: all but its own
    assert origins(H, L, delivered({}, of("m", 80, "hub"), of("h", 5, "hub"))) == {"l": [0]}  # of a leaf: its own
    assert take(G, Source(H, "r", "t"), batch).left_out == 1


def test_rows_are_in_the_order_of_their_offsets_at_the_origin_and_each_is_there_once():
    batch = delivered(of("m", 9, "leaf"), of("m", 7, "leaf"), {"payload": b"own"}, of("m", 9, "leaf"))
    parts = {part.origin.place.node: part for part in take(G, Source(H, "r", "t"), batch).parts}
    assert parts["m"].origin.offsets.tolist() == [7, 9]
    assert parts["h"].messages.column("payload").to_pylist() == [b"own"]


@pytest.mark.parametrize("headers", [None, [("a", "b")], [("a", "b"), (HEADER, "forged"), ("c", "d")]])
def test_what_is_published_again_has_its_fields_and_the_header_of_its_origin(headers: Any):
    row = {"id": "i", "key": "k", "expires": 5, "envelope": b"e", "headers": headers}
    (part,) = take(G, Source(H, "r9", "my topic"), delivered(row, {"offset": 3, "partition": 0})).parts
    names = part.messages.schema.names
    assert "offset" not in names and "published" not in names and "attempt" not in names
    first, second = part.messages.to_pylist()
    assert (first["id"], first["key"], first["envelope"], first["payload"]) == ("i", "k", b"e", b"x")
    kept = [pair for pair in headers or () if pair[0] != HEADER]
    assert first["headers"] == [*kept, (HEADER, "h r9 0-0 hub my topic")]
    assert second["headers"] == [(HEADER, "h r9 0-3 hub my topic")]


def test_a_header_of_another_topic_makes_no_origin():
    assert origins(G, H, delivered(of("m", 80, "leaf", "other"))) == {"h": [0]}


@pytest.mark.rows("Q21")
@pytest.mark.parametrize("seed", range(40))
def test_columns_and_rows_give_the_same(seed: int):
    """Deliveries without a message of another node are taken by whole columns."""
    random = Random(seed)

    def headers() -> Any:
        return random.choice((None, [], [("k", "v" * random.randrange(3))], [("a", ""), ("b", "x"), ("a", "y")]))

    rows = [
        {"offset": random.randrange(30), "partition": random.randrange(2), "headers": headers(), "payload": b"%d" % row}
        for row in range(40)
    ]
    if seed % 4 == 0:
        rows = [{**row, "headers": None} for row in rows]
    for row in rows:
        row["payload"] = b"%d/%d" % (row["partition"], row["offset"])  # the same message if it is there twice
    batch = delivered(*rows).slice(random.randrange(5), 30)
    by_columns = take(G, Source(H, "r", "t"), batch)
    # one more message, of another node: then all are taken by rows
    both = pa.Table.from_batches([batch, delivered(of("m", 80, "leaf"))]).combine_chunks().to_batches()[0]
    by_rows = take(G, Source(H, "r", "t"), both)
    assert by_columns.left_out == by_rows.left_out == 0
    parts = {part.origin.place: part for part in by_rows.parts if part.origin.place.node == "h"}
    assert {part.origin.place for part in by_columns.parts} == set(parts)
    for part in by_columns.parts:
        part.messages.validate(full=True)
        other = parts[part.origin.place]
        assert part.origin.offsets.tolist() == other.origin.offsets.tolist()
        assert len({*part.origin.offsets.tolist()}) == part.messages.num_rows
        payloads = part.messages.column("payload").to_pylist()
        assert payloads == other.messages.column("payload").to_pylist()
        assert payloads == [b"%d/%d" % (part.origin.place.partition, at) for at in part.origin.offsets.tolist()]
        shown = [(HEADER, show_origin(part.origin.place, at, "hub", "t")) for at in part.origin.offsets.tolist()]
        given: dict[Any, list[Any]] = {(row["partition"], row["offset"]): [] for row in rows}
        for row in rows:
            given[row["partition"], row["offset"]].append(list(row["headers"] or ()))
        for at, header, found in zip(
            part.origin.offsets, shown, part.messages.column("headers").to_pylist(), strict=True
        ):
            assert found[-1] == header
            assert found[:-1] in given[part.origin.place.partition, int(at)]
