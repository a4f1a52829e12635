"""A fixed list: what is listed, for named services or for every service, and what cannot be done with it."""

from __future__ import annotations

import pytest

from wherry.mesh.catch_all import ASKED_MAX, CatchAllRoster
from wherry.mesh.instance import Instance
from wherry.mesh.listed import HOSTS_MAX, SERVICES_MAX, listed
from wherry.mesh.opening import open_registry
from wherry.model.errors import InvalidInput


def urls(registry, service: str) -> list[str]:
    return [each.url for each in registry.roster.of(service)]


def test_a_list_without_names_is_for_every_service():
    registry = open_registry("static://a:7080,b:7080")
    assert urls(registry, "billing") == urls(registry, "orders") == ["http://a:7080", "http://b:7080"]
    assert registry.roster.of("billing") is registry.roster.of("billing")
    assert registry.roster.of("orders")[0] == Instance(service="orders", id="a:7080", url="http://a:7080")


def test_a_list_names_its_services():
    registry = open_registry("static://billing=10.0.0.1:7080,10.0.0.2:7080;orders%2Fnew=[::1]:7081?scheme=https")
    assert urls(registry, "billing") == ["https://10.0.0.1:7080", "https://10.0.0.2:7080"]
    assert urls(registry, "orders/new") == ["https://[::1]:7081"]
    assert urls(registry, "other") == []
    assert set(registry.roster.services) == {"billing", "orders/new"}


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "hosts"),
        ("a", "hosts"),
        ("a:1,a:1", "hosts"),
        ("billing=", "hosts"),
        ("=a:1", "services"),
        ("*=a:1", "services"),
        ("billing=a:1;orders", "services"),
        ("billing=a:1;billing=b:1", "services"),
        ("billing=a:1;", "services"),
        ("a b=a:1", "services"),
        (",".join(f"a{each}:1" for each in range(HOSTS_MAX + 1)), "hosts"),
        (";".join(f"s{each}=a:1" for each in range(SERVICES_MAX + 1)), "services"),
    ],
)
def test_a_list_that_breaks_a_rule_names_the_field(text, field):
    with pytest.raises(InvalidInput) as refused:
        listed(text)
    assert refused.value.field == field


def test_a_list_has_room_for_its_bounds():
    assert len(listed(",".join(f"a{each}:1" for each in range(HOSTS_MAX)))["*"]) == HOSTS_MAX
    assert len(listed(";".join(f"s{each}=a:1" for each in range(SERVICES_MAX)))) == SERVICES_MAX


@pytest.mark.parametrize("options", [{"scheme": "ftp"}, {"scheme": None}, {"key": "x"}])
def test_options_of_a_list_are_checked(options):
    with pytest.raises(InvalidInput):
        open_registry("static://a:7080", **options)


def test_an_option_is_given_once():
    with pytest.raises(InvalidInput, match="one of the two"):
        open_registry("static://a:7080?scheme=http", scheme="http")


def test_a_list_has_no_path():
    with pytest.raises(InvalidInput, match="without a path"):
        open_registry("static://a:7080/x")


def one(name: str) -> Instance:
    return Instance(service="*", id=name, url=f"http://{name}")


def test_a_change_is_reported_for_each_service_that_was_asked_for():
    roster = CatchAllRoster()
    changes: list[str] = []
    roster.watch(changes.append)
    assert roster.of("billing") == ()
    roster.replace_every([one("b:1"), one("a:1")])
    assert [each.id for each in roster.of("billing")] == ["a:1", "b:1"]
    assert [each.id for each in roster.of("orders")] == ["a:1", "b:1"]
    assert changes == ["billing"]
    roster.replace_every([one("b:1"), one("a:1")])
    assert changes == ["billing"]
    roster.replace_every([])
    assert changes == ["billing", "billing", "orders"]
    assert roster.of("billing") == ()


def test_services_that_are_asked_for_are_bounded():
    roster = CatchAllRoster()
    roster.replace_every([one("a:1")])
    for each in range(ASKED_MAX + 10):
        assert roster.of(f"s{each}")[0].service == f"s{each}"
    assert len(roster.services) == ASKED_MAX
    assert roster.of("no name") == roster.of("") == ()
