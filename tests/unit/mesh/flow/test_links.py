"""Which nodes are connected."""

import pytest

from wherry.mesh.flow.links import (
    CANDIDATES_MAX,
    HUBS_MAX,
    LEAVES_MAX,
    MeshNode,
    is_among,
    plan_links,
    refusal,
    run_behind,
)
from wherry.mesh.flow.records import PeerRecord


def url(name: str) -> str:
    return f"http://{name}:7070"


def hub(name: str) -> PeerRecord:
    return PeerRecord(node=name, url=url(name))


def leaf(name: str, of: str) -> PeerRecord:
    return PeerRecord(node=name, url=url(name), role="leaf", hub=of)


@pytest.mark.rows("Q22", "Q23")
@pytest.mark.parametrize("hubs", [1, 2, HUBS_MAX, HUBS_MAX + 1, HUBS_MAX + 3])
def test_both_ends_of_a_link_want_it_or_neither(hubs: int):
    names = [f"h{number}" for number in range(hubs)]
    records = [*map(hub, names), *(leaf(f"l{number}", names[number % hubs]) for number in range(5))]
    nodes = {each.node: MeshNode(each.node, each.role, each.hub) for each in records}
    plans = {}
    for name, me in nodes.items():
        fixed = [url(me.hub)] if me.hub else []
        plan = plan_links(me, fixed, records).wanted
        there = {each.name: each for each in nodes.values() if url(each.name) in plan}
        plans[name] = {url(each) for each in there if not refusal(me, there[each], [n for n in names if n != name])}
    for name in names:
        for other in names:
            assert (
                (url(other) in plans[name])
                == (url(name) in plans[other])
                == (name != other and max(names.index(name), names.index(other)) < HUBS_MAX)
            )
    for each in records:
        if each.role == "leaf":
            assert {name for name in names if each.url in plans[name]} == {each.hub}
            assert plans[each.node] == {url(each.hub or "")}


@pytest.mark.rows("Q22")
def test_an_eighth_hub_is_refused_by_all_and_by_itself():
    names = [f"h{number}" for number in range(HUBS_MAX + 1)]
    connected = names[:-1]
    assert "let h7 be a leaf" in refusal(MeshNode("h0", "hub"), MeshNode("h7", "hub"), connected)
    assert refusal(MeshNode("h0", "hub"), MeshNode("h6", "hub"), connected[:-1]) == ""
    for name in names:
        refused = {
            each for each in names if each != name and refusal(MeshNode(name, "hub"), MeshNode(each, "hub"), names)
        }
        assert refused == (set(connected) if name == "h7" else {"h7"})


def test_a_record_neither_pushes_a_node_out_nor_changes_its_address():
    me, forged = MeshNode("m", "hub"), [hub(f"0{number}") for number in range(30)]
    at_z = {url("z"): MeshNode("z", "hub")}
    plan = plan_links(me, [url("y")], [*forged, hub("y"), hub("z")], at_z)
    assert set(plan.wanted) == {url("y"), url("z"), *(each.url for each in forged[:CANDIDATES_MAX])}
    assert "14 hubs" in plan.refused[forged[-1].url]
    elsewhere = PeerRecord(node="z", url=url("evil"), version=2**62)
    assert plan_links(me, [], [elsewhere], at_z).wanted == (url("z"),)
    assert refusal(me, MeshNode("z", "hub"), ["y"]) == ""  # what has not answered does not count


def test_only_trusted_addresses_are_connected_to_by_a_record():
    patterns = ["http://*.mesh.example:*", "https://c:7070"]
    good = ["http://a.mesh.example:1", "https://c:7070"]
    bad = [
        "http://evil:1",
        "http://a.mesh.example.evil:1",
        "https://c:70700",
        "http://e:1/.mesh.example:1",
        "https://xc:7070",
    ]
    for addresses in (good, bad):
        assert [is_among(each, patterns) for each in addresses] == [addresses is good] * len(addresses)
    records = [PeerRecord(node=f"n{at}", url=each) for at, each in enumerate([*good, *bad])]
    plan = plan_links(MeshNode("m", "hub"), ["http://fixed:1"], records, {}, lambda each: is_among(each, patterns))
    assert plan.wanted == ("http://fixed:1", *good)
    assert set(plan.refused) == set(bad)


def test_the_data_of_a_leaf_is_another_with_another_hub():
    assert run_behind("5f0c", None) == "5f0c"
    assert len({run_behind("5f0c", each) for each in (None, "http://a:1", "http://b:1")}) == 3


@pytest.mark.rows("Q23")
def test_leaves_are_bounded_and_connect_to_their_hub_alone():
    me = MeshNode("h", "hub")
    plan = plan_links(me, [], [leaf(f"l{number:03}", "h") for number in range(LEAVES_MAX + 2)])
    assert (len(plan.wanted), len(plan.refused)) == (LEAVES_MAX, 2)
    assert refusal(me, MeshNode("l", "leaf", "h"), []) == ""
    assert "not reached its hub" in refusal(me, MeshNode("l", "leaf", None), [])
    assert refusal(me, MeshNode("l", "leaf", "other"), []) == "its hub is other"
    assert refusal(MeshNode("l", "leaf"), MeshNode("m", "leaf"), []) == "a leaf connects to a hub"
    assert refusal(MeshNode("l", "leaf"), MeshNode("h", "hub"), []) == ""
    assert refusal(me, MeshNode("h", "hub"), []) == "it is this node"
