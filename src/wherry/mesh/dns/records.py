"""Which instances the records of DNS name, and when they are read again. Pure: no lookup, no clock."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from wherry.mesh.instance import Instance
from wherry.mesh.listed import EVERY, SERVICES_MAX, instances, service_name
from wherry.mesh.urls import HostPort
from wherry.model.errors import InvalidInput

INSTANCES_MAX = 1_000
"""Of one service; of more, those with the lowest priority number, then by address, are taken."""


NAME_BYTES_MAX = 253

_LABEL = re.compile(r"[A-Za-z0-9_-]{1,62}")
"""Of a service, without the underscore that stands before it."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*")


class SrvRecord(NamedTuple):
    """An SRV record: a host and a port, and how much they are preferred (RFC 2782)."""

    priority: int
    weight: int
    port: int
    target: str


def questions(name: str, port: int | None, services: Sequence[str]) -> dict[str, str]:
    """Return by service the name that is asked for: its hosts with a port, its SRV records without.

    Examples
    --------
    >>> questions("example.com", None, ["billing"])
    {'billing': '_billing._tcp.example.com'}
    >>> questions("_billing._tcp.example.com", None, [])
    {'billing': '_billing._tcp.example.com'}
    >>> questions("peers.example.com", 7080, [])
    {'*': 'peers.example.com'}
    """
    if not _NAME.fullmatch(name) or len(name) > NAME_BYTES_MAX:
        raise InvalidInput("name", name, f"a name in DNS: at most {NAME_BYTES_MAX} characters, labels of 1 to 63")
    if len(services) > SERVICES_MAX:
        raise InvalidInput("services", f"{len(services)} services", f"at most {SERVICES_MAX}")
    named = dict.fromkeys(service_name(each) for each in services)
    if port is not None:
        return dict.fromkeys(named or [EVERY], name)
    first, _, rest = name.partition(".")
    if not named and first.startswith("_") and rest.lower().startswith("_tcp."):
        return {service_name(first[1:]): name}
    if not named:
        raise InvalidInput(
            "name", name, "with a port for address records; for SRV records with services=…, or _service._tcp in front"
        )
    for service in named:
        if not _LABEL.fullmatch(service) or len(service) + len(name) > NAME_BYTES_MAX - 7:
            raise InvalidInput("services", service, "letters, digits, '-' and '_', at most 62, for a name in DNS")
    return {service: f"_{service}._tcp.{name}" for service in named}


def at_addresses(service: str, name: str, port: int, addresses: Iterable[str], scheme: str) -> list[Instance]:
    """Return an instance for each address of a name; the label `host` is the name, for a check of certificates."""
    found = sorted({HostPort(address, port) for address in addresses})
    return instances(service, found[:INSTANCES_MAX], scheme, {"host": name})


def merged(
    service: str, records: Sequence[SrvRecord], addresses: Mapping[str, Sequence[str]], scheme: str
) -> list[Instance]:
    """Return an instance for each address of the targets of SRV records.

    Of two records that lead to one address and port, the one with the lower priority number counts, then the one with
    the higher weight. A target that is the root says that there is no such service (RFC 2782), and has no address.
    """
    found: dict[HostPort, Instance] = {}
    for record in sorted(records, key=lambda each: (each.priority, -each.weight, each.target, each.port)):
        if not record.port:
            continue
        labels = {"host": record.target, "priority": str(record.priority), "weight": str(record.weight)}
        for address in sorted(addresses.get(record.target, ())):
            at = HostPort(address, record.port)
            if at not in found and len(found) < INSTANCES_MAX:
                found[at] = instances(service, [at], scheme, labels)[0]
    return list(found.values())


def period_ms(ttls_s: Iterable[int], least_ms: int, most_ms: int) -> int:
    """Return when records are read again: when the first of them expires, within bounds.

    Examples
    --------
    >>> period_ms([300, 30], 1_000, 60_000), period_ms([0], 1_000, 60_000), period_ms([], 1_000, 60_000)
    (30000, 1000, 60000)
    """
    return min(max(min((ttl * 1_000 for ttl in ttls_s), default=most_ms), least_ms), most_ms)


def retry_ms(failures: int, least_ms: int, most_ms: int) -> int:
    """Return when to try again after so many failures in a row: twice as long each time, within bounds.

    Examples
    --------
    >>> [retry_ms(failures, 1_000, 60_000) for failures in (1, 2, 3, 100)]
    [1000, 2000, 4000, 60000]
    """
    return min(least_ms << min(failures - 1, 20), most_ms)


def check_periods(least_ms: int, most_ms: int) -> None:
    """Raise `InvalidInput` if the bounds of the period are crossed."""
    if least_ms > most_ms:
        raise InvalidInput("period_ms_min", least_ms, f"at most period_ms_max, which is {most_ms}")
