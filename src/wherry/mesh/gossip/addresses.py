"""Where members listen and where seeds are: checks of what was given, and addresses of host names.

A name may have several addresses (a round robin in DNS, a headless service), and other ones later: all of them count.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from ipaddress import ip_address

from wherry.mesh.gossip.values import MemberAddress
from wherry.model import check
from wherry.model.errors import InvalidInput, Unavailable

ADDRESSES_MAX = 256
"""Of all seeds together; of more, those that the resolver named first are taken."""


def checked_address(field: str, address: object, *, least_port: int) -> MemberAddress:
    """Return a host and a port, or raise `InvalidInput`."""
    if not isinstance(address, tuple | list) or len(address) != 2:
        raise InvalidInput(field, address, "a host and a port")
    host, port = address
    if not isinstance(host, str) or not 1 <= len(host) <= 253 or not host.isprintable():
        raise InvalidInput(field, host, "a host name or an address of IP")
    try:
        host.encode("idna")  # as the resolver does
    except UnicodeError as fault:
        raise InvalidInput(field, host, f"a host name or an address of IP ({fault})") from None
    return MemberAddress(host, check.integer(field, port, least_port, 65_535))


async def resolved(host: str) -> tuple[str, ...]:
    """Return all addresses of a host; raise `Unavailable` if it has none now."""
    with suppress(ValueError):
        return (str(ip_address(host)),)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except OSError as fault:
        raise Unavailable(f"the host {host!r} has no address: {fault}") from None
    return tuple(dict.fromkeys(str(each[4][0]) for each in found))


class SeedAddresses:
    """The addresses that the seeds have now, but for those that this member cannot reach from where it listens."""

    def __init__(self, seeds: Sequence[MemberAddress], listen: str, own: MemberAddress) -> None:
        self.given, self._listen, self._own = seeds, listen, own
        self._known: dict[str, tuple[str, ...]] = {}
        """By name of a host, what it resolved to last."""
        self.faults: list[Unavailable] = []
        """Of the last look at names."""
        self.own_is_one = False
        """Whether the own address was among those of the last look."""

    @property
    def has_names(self) -> bool:
        """Return whether the addresses may change."""
        return not all(_is_address(seed.host) for seed in self.given)

    async def look(self) -> tuple[MemberAddress, ...]:
        """Return the addresses of others; a name that has no answer keeps those that it had."""
        self.faults = []
        for host in dict.fromkeys(seed.host for seed in self.given):
            try:
                self._known[host] = await resolved(host)
            except Unavailable as fault:
                self.faults.append(fault)
        found = dict.fromkeys(
            MemberAddress(host, seed.port) for seed in self.given for host in self._known.get(seed.host, ())
        )
        fitting = self._fitting(found)
        self.own_is_one = self._own in fitting
        return tuple(each for each in fitting if each != self._own)[:ADDRESSES_MAX]

    def _fitting(self, found: Iterable[MemberAddress]) -> list[MemberAddress]:
        """Return the addresses that packets can be sent to; raise `InvalidInput` if there are some, and none fits."""
        every = list(found)
        own = ip_address(self._listen)
        family = [each for each in every if ip_address(each.host).version == own.version]
        if every and not family:
            raise InvalidInput("seeds", every[0].host, f"addresses of IPv{own.version}, as host={self._listen} is one")
        near = [each for each in family if not own.is_loopback or ip_address(each.host).is_loopback]
        if family and not near:
            raise InvalidInput(
                "host", self._listen, f"an address that other machines reach, since the seed {family[0].host} is on one"
            )
        return near


def check_reach(listen: str, advertise: str, key: bytes) -> None:
    """Raise `InvalidInput` for a listener that others cannot reach, or that anyone can."""
    if ip_address(advertise).is_unspecified:
        raise InvalidInput("advertise", advertise, f"an address that others reach, since {listen} is none")
    if ip_address(advertise).version != ip_address(listen).version:
        raise InvalidInput("advertise", advertise, f"an address of IPv{ip_address(listen).version}, as {listen} is one")
    if not key and not ip_address(listen).is_loopback:
        raise InvalidInput("key", "none", f"a key, since other machines may reach {listen}")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
