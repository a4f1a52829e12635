"""What the URL of a registry says: its parts, and hosts with ports.

    scheme://places/path?option=value&option=value

Pure: nothing is looked up. A value of an option may be a secret, so no error and no log has one (`shown`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl

from wherry.mesh.instance import INSTANCE_BYTES_MAX
from wherry.model.errors import InvalidInput

SCHEMES = ("gossip", "zk", "zks", "dns", "static")

URL_CHARS_MAX = 4 * INSTANCE_BYTES_MAX
"""Of the URL of a registry: a long list of hosts is better kept in one of the other registries."""

OPTIONS_MAX = 16

PORT_MAX = 65_535

_SCHEME = re.compile(r"[A-Za-z][A-Za-z+.-]{0,15}")
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252})")
_PLACE = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]{2,45})\]|(?P<host>[^:\[\]]*))(?::(?P<port>[0-9]{1,5}))?")


class RegistryUrl(NamedTuple):
    """The parts of the URL of a registry; `places` and `path` are as written."""

    scheme: str
    places: str
    path: str
    options: dict[str, str]


class HostPort(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return `host:port`, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(url: object) -> RegistryUrl:
    """Return the parts of the URL of a registry, or raise `InvalidInput` without any value of its options.

    Examples
    --------
    >>> parse("zk://a:2181,b:2181/shop?session_ms=4000")
    RegistryUrl(scheme='zk', places='a:2181,b:2181', path='/shop', options={'session_ms': '4000'})
    """
    if not isinstance(url, str):
        raise InvalidInput("registry", url, "text: a URL of gossip://, zk://, dns:// or static://")
    if len(url) > URL_CHARS_MAX:
        raise InvalidInput("registry", f"{len(url)} characters", f"at most {URL_CHARS_MAX}")
    scheme, found, rest = url.partition("://")
    if not found or scheme not in SCHEMES:
        given = f"{scheme}://…" if found and _SCHEME.fullmatch(scheme) else "text that is no URL"
        raise InvalidInput("registry", given, "a URL of " + ", ".join(f"{each}://" for each in SCHEMES))
    before, _, query = rest.partition("?")
    places, slash, path = before.partition("/")
    if "@" in before or "#" in url:
        raise InvalidInput("registry", shown(url), "a URL without '@' and '#'; a secret is given as an option")
    if not places:
        raise InvalidInput("registry", shown(url), f"a host behind {scheme}://")
    return RegistryUrl(scheme, places, slash + path, _options(query))


def _options(query: str) -> dict[str, str]:
    if not query:
        return {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=OPTIONS_MAX)
    except ValueError:
        raise InvalidInput(
            "registry", "a query that cannot be read", f"at most {OPTIONS_MAX} of name=value, joined by &"
        ) from None
    options = dict(pairs)
    if len(options) < len(pairs):
        names = [name for name, _ in pairs]
        raise InvalidInput("registry", [name for name in options if names.count(name) > 1], "each option once")
    return options


def shown(url: str) -> str:
    """Return a URL as errors and logs may have it: without the values of its options and without a password.

    Examples
    --------
    >>> shown("gossip://a:7073?key=2f8a&cluster=shop")
    'gossip://a:7073?key=…&cluster=…'
    """
    before, asked, query = url.partition("?")
    scheme, found, rest = before.partition("://")
    if found and "@" in rest:
        before = f"{scheme}://…@{rest.rpartition('@')[2]}"
    names = [each.partition("=")[0] + "=…" for each in query.split("&")] if query else []
    return before + asked + "&".join(names)


def place(field: str, text: str, default_port: int | None = None, least_port: int = 1) -> HostPort:
    """Return the host and port of `host:port` or `[address]:port`; without a default, the port has to be given.

    Examples
    --------
    >>> place("seeds", "[::1]:7073")
    HostPort(host='::1', port=7073)
    """
    allowed = "host:port" if default_port is None else "host or host:port"
    found = _PLACE.fullmatch(text)
    host = found and (found["six"] or found["host"])
    if found is None or not host or not (found["six"] or _HOST.fullmatch(host)):
        # Not shown: with a wrong mark between the parts of a URL, a secret may stand here.
        raise InvalidInput(field, "a host that cannot be read", f"{allowed}, an IPv6 address in brackets")
    port = int(found["port"]) if found["port"] else default_port
    if port is None or not least_port <= port <= PORT_MAX:
        raise InvalidInput(field, text, f"{allowed}, with a port from {least_port} to {PORT_MAX}")
    return HostPort(host, port)


def places(field: str, text: str, default_port: int | None = None, *, most: int) -> Sequence[HostPort]:
    """Return the hosts and ports of a list joined by commas, each once; raise `InvalidInput` for more than `most`."""
    parts = text.split(",")
    if len(parts) > most:
        raise InvalidInput(field, f"{len(parts)} hosts", f"at most {most}")
    found = [place(field, part.strip(), default_port) for part in parts]
    for each in found:
        if found.count(each) > 1:
            raise InvalidInput(field, str(each), "each host and port once")
    return found
