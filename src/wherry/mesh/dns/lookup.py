"""Questions to a name server and their answers, by dnspython.

An answer that a name does not exist, or has no such records, is an answer: it is empty. No answer is an error. Names
are taken as whole names: neither search lists nor /etc/hosts are read.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import dns.asyncresolver
import dns.exception
import dns.message
import dns.name
import dns.resolver

from wherry.mesh.dns.records import SrvRecord
from wherry.mesh.urls import HostPort
from wherry.model.errors import Unavailable

TIMEOUT_MS = 5_000
"""For an answer, over all name servers."""

UNDER_WAY_MAX = 16
"""Questions at a time."""


class Addresses(NamedTuple):
    """The addresses of a name, and for how long they hold."""

    found: tuple[str, ...]
    ttl_s: int


class Services(NamedTuple):
    """The SRV records of a name, and for how long they hold."""

    found: tuple[SrvRecord, ...]
    ttl_s: int


class Lookup:
    """Asks the name servers of this machine, or the one that is given."""

    def __init__(self, nameserver: HostPort | None = None, timeout_ms: int = TIMEOUT_MS) -> None:
        # Read here and not at import: the file of the system may be absent, which only matters if it is used.
        self._resolver = dns.asyncresolver.Resolver(configure=nameserver is None)
        if nameserver is not None:
            self._resolver.nameservers = [nameserver.host]
            self._resolver.port = nameserver.port
        self._timeout_s = timeout_ms / 1_000
        self._free = asyncio.Semaphore(UNDER_WAY_MAX)

    async def addresses(self, name: str) -> Addresses:
        """Return the IPv4 and IPv6 addresses of a name; raise `Unavailable` if neither question was answered.

        Name servers that fail for AAAA are common, so the answer to one of the questions is enough if it has addresses.
        """
        answers = await asyncio.gather(self._ask(name, "A"), self._ask(name, "AAAA"), return_exceptions=True)
        good = [answer for answer in answers if not isinstance(answer, BaseException)]
        found = tuple(record.address for records, _ in good for record in records)
        for answer in answers:
            if isinstance(answer, BaseException) and not (found and isinstance(answer, Unavailable)):
                raise answer
        with_some = [ttl for records, ttl in good if records] or [ttl for _, ttl in good]
        return Addresses(found, min(with_some))

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


def _negative_ttl_s(fault: dns.resolver.NXDOMAIN) -> int:
    """Return for how long a name does not exist, which the name server says in its SOA record (RFC 2308)."""
    responses = fault.responses().values()  # type: ignore[no-untyped-call]  # of dnspython, which has types elsewhere
    negative = [each for each in responses if isinstance(each, dns.message.QueryMessage)]
    return min((each.resolve_chaining().minimum_ttl for each in negative), default=0)
