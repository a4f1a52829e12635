"""Questions to a name server and their answers, by dnspython.

An answer that a name does not exist, or has no such records, is an answer: it is empty. No answer is an error. Names
are taken as whole names: neither search lists nor /etc/hosts are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, NamedTuple

import dns.asyncresolver
import dns.exception
import dns.message
import dns.name
import dns.resolver

from wherry.mesh.dns.records import SrvRecord
from wherry.mesh.urls import HostPort
from wherry.model import check
from wherry.model.errors import InvalidInput, Unavailable

TIMEOUT_MS = 5_000
"""For an answer, over all name servers."""

UNDER_WAY_MAX = 16
"""Questions at a time."""


class Addresses(NamedTuple):
    """The addresses of a name, and for how long they hold."""

    found: tuple[str, ...]
    ttl_s: int
    kept: tuple[Unavailable, ...] = ()
    """What went wrong with a family of addresses, of which `found` has those that were known before."""


class Services(NamedTuple):
    """The SRV records of a name, and for how long they hold."""

    found: tuple[SrvRecord, ...]
    ttl_s: int


class Lookup:
    """Asks the name servers of this machine, or the one that is given."""

    def __init__(self, nameserver: HostPort | None = None, timeout_ms: int = TIMEOUT_MS) -> None:
        # Read here and not at import: the file of the system may be absent, which only matters if it is used.
        try:
            self._resolver = dns.asyncresolver.Resolver(configure=nameserver is None)
        except dns.exception.DNSException as fault:
            raise Unavailable(f"nameserver: this machine names none ({fault})") from None
        if nameserver is not None:
            self._resolver.nameservers = [_address(nameserver)]
            self._resolver.port = check.integer("nameserver", nameserver[1], 1, 65_535)
        self._timeout_s = timeout_ms / 1_000
        self._free = asyncio.Semaphore(UNDER_WAY_MAX)

    async def addresses(self, name: str, known: Iterable[str] = ()) -> Addresses:
        """Return the IPv4 and IPv6 addresses of a name; raise `Unavailable` if neither question was answered.

        Name servers that fail for one family are common, so the answer to the other one is enough if there are
        addresses then: with those of `known` that are of the family without an answer.
        """
        answers = await asyncio.gather(self._ask(name, "A"), self._ask(name, "AAAA"), return_exceptions=True)
        found: list[str] = []
        ttls_s: dict[bool, list[int]] = {True: [], False: []}
        faults: list[Unavailable] = []
        stale: list[Unavailable] = []
        for version, answer in zip((4, 6), answers, strict=True):
            if isinstance(answer, Unavailable):
                faults.append(answer)
                kept = [each for each in known if ip_address(each).version == version]
                found += kept
                stale += [answer] if kept else []
            elif isinstance(answer, BaseException):
                raise answer
            else:
                records, ttl_s = answer
                found += (record.address for record in records)
                ttls_s[bool(records)].append(ttl_s)
        if faults and (len(faults) == len(answers) or not found):
            raise faults[0]
        return Addresses(tuple(found), 0 if stale else min(ttls_s[True] or ttls_s[False]), tuple(stale))

    async def services(self, name: str) -> Services:
        """Return the SRV records of a name, or raise `Unavailable`."""
        records, ttl_s = await self._ask(name, "SRV")
        found = (
            SrvRecord(each.priority, each.weight, each.port, each.target.to_text(omit_final_dot=True))
            for each in records
        )
        return Services(tuple(each for each in found if each.target != "."), ttl_s)

    async def _ask(self, name: str, kind: str) -> tuple[list[Any], int]:
        async with self._free:
            try:
                answer = await self._resolver.resolve(
                    dns.name.from_text(name), kind, raise_on_no_answer=False, lifetime=self._timeout_s, search=False
                )
            except dns.resolver.NXDOMAIN as fault:
                return [], _negative_ttl_s(fault)
            except (dns.exception.DNSException, OSError, EOFError) as fault:
                raise Unavailable(f"DNS has no answer for {kind} of {name}: {fault}") from None
        return list(answer), answer.chaining_result.minimum_ttl


def _address(nameserver: object) -> str:
    if isinstance(nameserver, tuple) and len(nameserver) == 2 and isinstance(nameserver[0], str):
        with suppress(ValueError):
            return str(ip_address(nameserver[0]))
    raise InvalidInput("nameserver", nameserver, "an address of IP, and a port")


def _negative_ttl_s(fault: dns.resolver.NXDOMAIN) -> int:
    """Return for how long a name does not exist, which the name server says in its SOA record (RFC 2308)."""
    responses = fault.responses().values()  # type: ignore[no-untyped-call]  # of dnspython, which has types elsewhere
    negative = [each for each in responses if isinstance(each, dns.message.QueryMessage)]
    return min((each.resolve_chaining().minimum_ttl for each in negative), default=0)
