"""Which registry a URL opens, and which options it takes. What needs an extra is imported when it is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from wherry.mesh.fixed import FixedRegistry
from wherry.mesh.registry import Registry
from wherry.mesh.urls import RegistryUrl, parse, place, places, shown
from wherry.model.errors import InvalidInput

SEEDS_MAX = 64

GOSSIP_PORT = 7073
ZOOKEEPER_PORT = 2181
ZOOKEEPER_TLS_PORT = 2281
DNS_PORT = 53
"""Where a URL names none."""


def open_registry(url: str, **options: Any) -> Registry:
    """Return the registry of a URL, not yet started.

    Parameters
    ----------
    url
        `gossip://seed:7073`, `zk://host:2181/path`, `zks://host:2281/path`, `dns://name:7080` or
        `static://a:7080,b:7080`; docs/mesh.md has all forms. Options may stand behind `?`.
    options
        The same options as arguments. An option is given once, here or in the URL.

    Examples
    --------
    >>> registry = open_registry("static://billing=10.0.0.1:7080;orders=10.0.0.2:7080")
    >>> [each.url for each in registry.roster.of("orders")]
    ['http://10.0.0.2:7080']
    """
    parts = parse(url)
    opened, known = _SCHEMES[parts.scheme]
    for name in [*parts.options, *options]:
        if name not in known:
            # Not shown if it is of the URL: it may be the rest of a secret that has an '&'.
            given = name if name in options else "a name that is not known"
            raise InvalidInput("option", given, f"for {parts.scheme}:// one of " + ", ".join(known))
        if name in parts.options and name in options:
            raise InvalidInput(name, "in the URL and as an argument", "one of the two")
    values = {**parts.options, **options}
    try:
        return opened(parts, {name: _read(known[name], name, value) for name, value in values.items()})
    except InvalidInput as fault:
        if fault.field not in parts.options:
            raise
        raise InvalidInput(fault.field, "a value that is not shown", fault.allowed) from None


def _read(reading: Callable[[str, str], Any], name: str, value: object) -> Any:
    return reading(name, value) if isinstance(value, str) else value


def _text(_name: str, value: str) -> str:
    return value


def _number(name: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 12:
        raise InvalidInput(name, value, "a whole number")
    return int(value)


def _names(_name: str, value: str) -> list[str]:
    return [each.strip() for each in value.split(",")]


def _static(parts: RegistryUrl, options: Mapping[str, Any]) -> Registry:
    _no_path(parts)
    return FixedRegistry(parts.places, **options)


def _dns(parts: RegistryUrl, options: Mapping[str, Any]) -> Registry:
    _no_path(parts)
    try:
        from wherry.mesh.dns.registry import DnsRegistry  # noqa: PLC0415  an extra
    except ImportError as fault:
        raise _missing("dns", fault) from None
    name, colon, _ = parts.places.partition(":")
    port = place("registry", parts.places).port if colon else None
    return DnsRegistry(name, port, **options)


def _zookeeper(parts: RegistryUrl, options: Mapping[str, Any]) -> Registry:
    try:
        from wherry.mesh.zookeeper.registry import ZooKeeperRegistry  # noqa: PLC0415  an extra
    except ImportError as fault:
        raise _missing("zookeeper", fault) from None
    hosts = places("registry", parts.places, ZOOKEEPER_PORT, most=SEEDS_MAX)
    return ZooKeeperRegistry(hosts, parts.path, **options)


def _zookeeper_over_tls(parts: RegistryUrl, options: Mapping[str, Any]) -> Registry:
    try:
        from wherry.mesh.zookeeper.registry import ZooKeeperRegistry  # noqa: PLC0415  an extra
        from wherry.mesh.zookeeper.tls import zookeeper_tls  # noqa: PLC0415  an extra
    except ImportError as fault:
        raise _missing("zookeeper", fault) from None
    hosts = places("registry", parts.places, ZOOKEEPER_TLS_PORT, most=SEEDS_MAX)
    files = {name: options[name] for name in ("ca", "certificate", "key") if name in options}
    rest = {name: value for name, value in options.items() if name not in files}
    if files and "tls" in rest:
        raise InvalidInput("tls", "a context beside " + ", ".join(files), "a context, or files")
    return ZooKeeperRegistry(hosts, parts.path, **{"tls": rest.get("tls") or zookeeper_tls(**files), **rest})


def _gossip(parts: RegistryUrl, options: Mapping[str, Any]) -> Registry:
    from wherry.mesh.gossip.registry import GossipRegistry  # noqa: PLC0415  heavier than the other registries

    _no_path(parts)
    return GossipRegistry(places("seeds", parts.places, GOSSIP_PORT, most=SEEDS_MAX), **options)


def _tls_is_an_argument(name: str, _value: str) -> Any:
    raise InvalidInput(name, "text", "an argument of open_registry: a context, not text")


def _no_path(parts: RegistryUrl) -> None:
    if parts.path not in {"", "/"}:
        raise InvalidInput(
            "registry", f"{parts.scheme}://…{shown(parts.path)}", "a URL without a path, but for zk:// and zks://"
        )


def _missing(extra: str, fault: ImportError) -> InvalidInput:
    return InvalidInput("registry", extra, f"what is installed ({fault}): pip install 'wherry[{extra}]'")


_ZOOKEEPER: dict[str, Callable[[str, str], Any]] = {"session_ms": _number, "start_ms": _number, "auth": _text}

_SCHEMES: dict[str, tuple[Callable[[RegistryUrl, Mapping[str, Any]], Registry], dict[str, Callable[[str, str], Any]]]]
_SCHEMES = {
    "gossip": (
        _gossip,
        {
            "host": _text,
            "port": _number,
            "advertise": lambda name, value: place(name, value, 0, 0),
            "name": _text,
            "key": lambda _, value: value.encode(),
            "cluster": _text,
            "period_ms": _number,
            "tls": _tls_is_an_argument,
        },
    ),
    "zk": (_zookeeper, _ZOOKEEPER),
    "zks": (
        _zookeeper_over_tls,
        {**_ZOOKEEPER, "ca": _text, "certificate": _text, "key": _text, "tls": _tls_is_an_argument},
    ),
    "dns": (
        _dns,
        {
            "services": _names,
            "nameserver": lambda name, value: place(name, value, DNS_PORT),
            "scheme": _text,
            "period_ms_min": _number,
            "period_ms_max": _number,
            "timeout_ms": _number,
        },
    ),
    "static": (_static, {"scheme": _text}),
}
