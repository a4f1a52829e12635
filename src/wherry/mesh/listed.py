"""What a fixed list of instances says: `a:7080,b:7080` for every service, or `billing=a:7080,b:7080;orders=c:7080`.

Pure. A name of a service may have percent escapes, for the characters that the list uses itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from wherry.mesh.instance import NAME_CHARS_MAX, Instance
from wherry.mesh.urls import HostPort, places
from wherry.model import check
from wherry.model.errors import InvalidInput

EVERY = "*"
"""In place of the name of a service, while it is not known which service an instance is asked for."""

HOSTS_MAX = 1_000
"""Hosts of one service in a list."""

SERVICES_MAX = 100
"""Services in a list."""


def instances(
    service: str, found: Iterable[HostPort], scheme: str, labels: Mapping[str, str] | None = None
) -> list[Instance]:
    """Return an instance for each host, named by its host and port.

    Examples
    --------
    >>> [each.url for each in instances("billing", [HostPort("::1", 7080)], "http")]
    ['http://[::1]:7080']
    """
    return [
        Instance(service=service, id=str(each), url=f"{scheme}://{each}", labels=dict(labels or {})).checked()
        for each in found
    ]


def listed(text: str, scheme: str = "http") -> dict[str, list[Instance]]:
    """Return the instances of a list by service; those that provide every service are under `EVERY`.

    Examples
    --------
    >>> {name: len(found) for name, found in listed("billing=a:7080,b:7080;orders=c:7080").items()}
    {'billing': 2, 'orders': 1}
    """
    if "=" not in text and ";" not in text:
        return {EVERY: instances(EVERY, places("hosts", text, most=HOSTS_MAX), scheme)}
    parts = text.split(";")
    if len(parts) > SERVICES_MAX:
        raise InvalidInput("services", f"{len(parts)} services", f"at most {SERVICES_MAX}")
    found: dict[str, list[Instance]] = {}
    for part in parts:
        name, named, hosts = part.partition("=")
        if not named:
            raise InvalidInput("services", part, "service=host:port,host:port in each part between semicolons")
        service = service_name(unquote(name.strip()))
        if service in found:
            raise InvalidInput("services", service, "each service once")
        found[service] = instances(service, places("hosts", hosts, most=HOSTS_MAX), scheme)
    return found


def service_name(text: str) -> str:
    """Return the name of a service, or raise `InvalidInput`."""
    if text == EVERY:
        raise InvalidInput("services", text, "names of services; a list without names is for every service")
    return check.graphic("services", text, NAME_CHARS_MAX)
