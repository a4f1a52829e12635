"""Which nodes are connected."""

import pytest

from wherry.mesh.flow.links import HUBS_MAX, LEAVES_MAX, MeshNode, plan_links, refusal
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
        plans[name] = set(plan_links(me, fixed, records).wanted)
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
    for name in names:
        plan = plan_links(MeshNode(name, "hub"), [url("h7")], map(hub, names))
        assert all("7 hubs at most" in why for why in plan.refused.values())
        assert set(plan.refused) == ({url(each) for each in names[:-1]} if name == "h7" else {url("h7")})
    connected = names[:-1]
    assert "let h7 be a leaf" in refusal(MeshNode("h0", "hub"), MeshNode("h7", "hub"), connected)
    assert refusal(MeshNode("h0", "hub"), MeshNode("h6", "hub"), connected[:-1]) == ""


@pytest.mark.rows("Q23")
def test_leaves_are_bounded_and_connect_to_their_hub_alone():
    me = MeshNode("h", "hub")
    plan = plan_links(me, [], [leaf(f"l{number:03}", "h") for number in range(LEAVES_MAX + 2)])
    assert (len(plan.wanted), len(plan.refused)) == (LEAVES_MAX, 2)
    assert refusal(me, MeshNode("l", "leaf", "h"), []) == ""
    assert refusal(me, MeshNode("l", "leaf", None), []) == ""
    assert refusal(me, MeshNode("l", "leaf", "other"), []) == "its hub is other"
    assert refusal(MeshNode("l", "leaf"), MeshNode("m", "leaf"), []) == "a leaf connects to a hub"
    assert refusal(MeshNode("l", "leaf"), MeshNode("h", "hub"), []) == ""
    assert refusal(me, MeshNode("h", "hub"), []) == "it is this node"
