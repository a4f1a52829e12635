"""Names of nodes, and what was read of them, against a naive picture of the same tree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.mesh.instance import Instance, encode
from wherry.mesh.zookeeper.nodes import INSTANCES_MAX, SERVICES_MAX, NodePaths, Tree, name_of, node_name
from wherry.model.errors import InvalidInput

visible = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=128)


@given(visible)
def test_a_name_is_its_node_and_back(name):
    node = node_name(name)
    assert node.isascii() and "/" not in node and node not in {".", ".."}
    assert name_of(node) == name


@pytest.mark.parametrize("node", ["", "a b", "%zz", "%41", "a/b", "ü", "%ff", ".", "%2e"])
def test_a_node_that_no_name_has_is_foreign(node):
    assert name_of(node) is None


@given(visible, visible)
def test_a_path_is_about_its_service_and_instance(service, instance_id):
    paths = NodePaths("/shop/one")
    assert paths.key(paths.path(service, instance_id)) == (service, instance_id)
    assert paths.key(paths.path(service)) == (service, "")
    assert paths.key(paths.path()) == ("", "")


@pytest.mark.parametrize("path", ["/shop", "/shop/other", "/shop/services/%zz", "/shop/services/a/b/c", "/"])
def test_a_path_elsewhere_is_about_nothing(path):
    assert NodePaths("/shop").key(path) is None


def test_a_root_is_checked():
    assert NodePaths("").top == NodePaths("/").top == "/wherry/services"
    assert NodePaths("/a.b/c_d-e/").top == "/a.b/c_d-e/services"
    for bad in ("a", "/..", "/a//b", "/a b", "/zookeeper/x", "/" + "a" * 256):
        with pytest.raises(InvalidInput):
            NodePaths(bad)


def instance(service: str, name: str, port: int = 1) -> Instance:
    return Instance(service=service, id=name, url=f"http://h:{port}")


def read(tree: Tree, services: dict[str, dict[str, int]]) -> None:
    """Give a tree what is there, as a reader would, only what it asks for."""
    new, _ = tree.set_services(services)
    for service, found in services.items():
        assert service not in new or not any(tree.has(service, each) for each in found)
        for each in tree.set_instances(service, found):
            tree.set_content(service, each, encode(instance(service, each, found[each])))


trees = st.dictionaries(
    st.sampled_from("abc"), st.dictionaries(st.sampled_from("xyz"), st.just(1), max_size=3), max_size=3
)


@given(st.lists(trees, min_size=1, max_size=6))
def test_a_tree_is_what_was_read_last(states):
    tree = Tree()
    for state in states:
        read(tree, state)
        for service in "abc":
            assert sorted(each.id for each in tree.of(service)) == sorted(state.get(service, {}))
        assert sorted(tree.keys()) == sorted(
            [(service, "") for service in state]
            + [(service, each) for service, found in state.items() for each in found]
        )


@given(trees, trees)
def test_what_was_known_is_held_until_it_is_read_again_or_released(before, after):
    tree = Tree()
    read(tree, before)
    tree.hold({service: tree.of(service) for service in before})
    read(tree, after)
    for service in "abc":
        ids = [each.id for each in tree.of(service)]
        assert sorted(ids) == sorted({*before.get(service, {}), *after.get(service, {})})
    held = {service for service in before if before[service].keys() - after.get(service, {}).keys()}
    assert set(tree.release()) == held
    for service in "abc":
        assert sorted(each.id for each in tree.of(service)) == sorted(after.get(service, {}))


def test_an_instance_that_came_back_and_went_is_not_held():
    tree = Tree()
    tree.hold({"a": [instance("a", "x")]})
    read(tree, {"a": {"x": 2}})
    assert [each.url for each in tree.of("a")] == ["http://h:2"]
    read(tree, {"a": {}})
    assert tree.of("a") == []


def test_what_is_no_instance_is_counted_until_it_is_gone():
    tree = Tree()
    tree.set_services(["a", "%zz", "b b"])
    assert tree.ignored == 2
    assert tree.set_instances("a", ["x", "y", "%zz"]) == ["x", "y"]
    tree.set_content("a", "x", b"{")
    tree.set_content("a", "y", encode(instance("a", "other")))
    tree.set_content("a", "gone", b"{")
    tree.set_content("none", "x", b"{")
    assert (tree.ignored, tree.of("a")) == (5, [])
    tree.set_content("a", "x", encode(instance("a", "x")))
    assert tree.ignored == 4
    tree.set_instances("a", ["x"])
    assert tree.ignored == 2
    tree.set_services([])
    assert tree.ignored == 0


def test_services_and_instances_are_bounded():
    tree = Tree()
    new, _ = tree.set_services(f"s{each:05}" for each in range(SERVICES_MAX + 3))
    assert (len(new), tree.ignored) == (SERVICES_MAX, 3)
    assert len(tree.set_instances("s00000", (f"i{each}" for each in range(INSTANCES_MAX - 1)))) == INSTANCES_MAX - 1
    assert tree.set_instances("s00001", ["b", "a"]) == ["a"]
    assert (tree.set_instances("s00002", ["a"]), tree.ignored) == ([], 5)
    tree.set_instances("s00000", [])
    assert tree.set_instances("s00002", ["a"]) == ["a"]


def test_what_is_forgotten_counts_as_new_when_it_is_there_again():
    tree = Tree()
    read(tree, {"a": {"x": 1}, "b": {"y": 1}})
    tree.set_content("b", "y", b"{")
    tree.forget("a", "x")
    tree.forget("none", "x")
    tree.forget_service("b")
    tree.forget_service("none")
    assert (tree.of("a"), tree.of("b"), tree.ignored) == ([], [], 0)
    assert tree.set_services(["a", "b"]) == (["b"], [])
    assert tree.set_instances("a", ["x"]) == ["x"]
