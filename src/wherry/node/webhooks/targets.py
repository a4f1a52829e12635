"""Which addresses the node may call: clients choose the URLs, and must not use them to reach the node's own network.

The connection is made to the very address that was checked, so a name that resolves to another address a moment later
(DNS rebinding) has no effect. Addresses of a name may be reused for some seconds; they are checked at each call.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

from wherry.model.catalog.webhook import check_url
from wherry.model.errors import InvalidInput, WherryError
from wherry.node.webhooks.lookups import Lookups

Ip: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolver: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
"""The addresses of a name."""

NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
NAT64_LOCAL = ipaddress.IPv6Network("64:ff9b:1::/48")


class TargetRefused(WherryError):
    """An address that must not be called."""

    code = "target-refused"


@dataclass(frozen=True, slots=True)
class Target:
    """Host, port and path of a URL."""

    host: str
    port: int
    secure: bool
    path: str
    """With the query."""

    @classmethod
    def of(cls, url: str) -> Target:
        """Return the target of a URL that was checked."""
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.hostname or "", parts.port or (443 if secure else 80), secure, path)

    @property
    def authority(self) -> str:
        """Return host and port for the `Host` header and for logs, since paths and queries may hold secrets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


class Targets:
    """The addresses that may be called: the public internet, and the networks that the configuration adds."""

    def __init__(
        self, allow: Sequence[str] = (), *, allow_private: bool = False, resolver: Resolver | None = None
    ) -> None:
        self._allow = [network_of("webhooks.allow", text) for text in allow]
        self._allow_private = allow_private
        self._resolver = resolver
        self._lookups = Lookups()

    async def begin(self, target: Target) -> Awaitable[list[str]]:
        """Begin to look a target up; return an awaitable of its addresses, or raise `NotTried`."""
        if self._resolver is not None:
            return self._resolver(target.host, target.port)
        return await self._lookups.begin(target.host)

    async def addresses(self, target: Target, begun: Awaitable[list[str]] | None = None) -> list[str]:
        """Return the addresses of a target that may be called; raise `TargetRefused` if there is none."""
        found = await asyncio.shield(begun if begun is not None else await self.begin(target))
        allowed = [text for text in found if self._why_not(_ip(text)) is None]
        if not allowed:
            why = f"{target.host} is {self._why_not(_ip(found[0]))}" if found else f"{target.host} has no address"
            raise TargetRefused(f"{why}; webhooks.allow lists what may be called")
        return allowed

    def close(self) -> None:
        """Stop all lookups."""
        self._lookups.close()

    def check(self, field: str, url: str) -> None:
        """Raise `InvalidInput` for a URL that no lookup could make acceptable; addresses are checked at each call."""
        host = Target.of(check_url(field, url)).host
        try:
            ips = [_ip(host)]
        except ValueError:
            is_local = host == "localhost" or host.endswith(".localhost")
            ips = [_ip("127.0.0.1"), _ip("::1")] if is_local else []
        refusals = [self._why_not(ip) for ip in ips]
        if refusals and all(refusals):
            raise InvalidInput(field, url, f"an address that may be called: {host} is {refusals[0]} (webhooks.allow)")

    def _why_not(self, ip: Ip) -> str | None:
        """Return why an address must not be called; None if it may be."""
        plain = _inner(ip)
        if any(each in network for network in self._allow for each in (ip, plain)):
            return None
        if plain.is_unspecified or plain.is_multicast:
            return "no address of one machine"
        return None if self._allow_private or is_public(plain) else _kind(plain)


def is_public(ip: Ip) -> bool:
    """Return whether an address is one of the public internet."""
    special = ip.is_multicast or ip.is_reserved or ip.is_unspecified or ip.is_link_local or ip.is_loopback
    local = isinstance(ip, ipaddress.IPv6Address) and (ip.is_site_local or ip in NAT64_LOCAL)
    return ip.is_global and not special and not local


def network_of(field: str, text: str) -> Network:
    """Parse a network, or one address, of the configuration."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as fault:
        raise InvalidInput(field, text, f"networks such as 10.0.0.0/8 or ::1 ({fault})") from None


def _ip(text: str) -> Ip:
    return ipaddress.ip_address(text.partition("%")[0])


def _inner(ip: Ip) -> Ip:
    """Return the IPv4 address that an IPv6 address wraps, to which packets are routed in the end."""
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    if ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    if ip.sixtofour is not None:
        return ip.sixtofour
    if ip.teredo is not None:
        return ip.teredo[1]
    if ip in NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip


def _kind(ip: Ip) -> str:
    if ip.is_loopback:
        return "a loopback address"
    if ip.is_link_local:
        return "a link-local address"
    return "a reserved address" if ip.is_reserved else "a private address"
