"""What members provide, turned over into services."""

from __future__ import annotations

from collections.abc import Iterable

from wherry.mesh.gossip.services import ProvidedServices
from wherry.mesh.instance import Instance
from wherry.mesh.registry import Roster


class CountingRoster(Roster):
    """Count how many instances it was given."""

    given = 0

    def replace(self, service: str, instances: Iterable[Instance]) -> None:
        every = list(instances)
        self.given += len(every)
        super().replace(service, every)


def instance(name: str, service: str = "billing", port: int = 1) -> Instance:
    return Instance(service=service, id=name, url=f"http://h:{port}")


def test_a_service_changes_once_however_many_members_changed():
    roster = CountingRoster()
    changed: list[str] = []
    roster.watch(changed.append)
    provided = ProvidedServices(roster)
    for number in range(500):
        provided.provide(f"m{number}", [instance(f"i{number:03}"), instance(f"i{number:03}", "orders")])
    assert not roster.services
    provided.publish()
    assert changed == ["billing", "orders"]
    assert roster.given == 1_000, "not the square of it"
    provided.publish()
    assert roster.given == 1_000


def test_what_a_member_no_longer_provides_is_gone():
    roster = Roster()
    provided = ProvidedServices(roster)
    provided.provide("a", [instance("x"), instance("y", "orders")])
    provided.provide("b", [instance("z")])
    provided.publish()
    provided.provide("a", [instance("x", port=2)])
    provided.provide("b", [])
    provided.publish()
    assert {service: [each.url for each in found] for service, found in roster.services.items()} == {
        "billing": ["http://h:2"]
    }
    provided.provide("a", ())
    provided.publish()
    assert not roster.services
