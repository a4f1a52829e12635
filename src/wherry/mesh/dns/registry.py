"""The registry that reads DNS: address records for hosts, or SRV records for the instances of named services.

It reads again as records expire, within bounds. While DNS gives no answer, what was known last stays. It must never
take "no answer" for "no instances".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable

from wherry.mesh.catch_all import CatchAllRoster
from wherry.mesh.dns.lookup import TIMEOUT_MS, Addresses, Lookup
from wherry.mesh.dns.records import (
    at_addresses,
    check_periods,
    merged,
    period_ms,
    questions,
    retry_ms,
)
from wherry.mesh.fixed import not_announced
from wherry.mesh.instance import SCHEMES, Instance
from wherry.mesh.listed import EVERY
from wherry.mesh.registry import Roster
from wherry.mesh.starting import Starting
from wherry.mesh.urls import HostPort
from wherry.model import check
from wherry.model.errors import Unavailable

_log = logging.getLogger("wherry.mesh.dns")

PERIOD_MS_MIN = 1_000
PERIOD_MS_MAX = 60_000
"""Between two looks at the records, whatever they say of their own time."""

TARGETS_MAX = 1_000
"""Hosts of the SRV records of a service whose addresses are looked up."""


class DnsRegistry:
    """A registry of the instances that DNS knows.

    Parameters
    ----------
    name
        With a port, the name of hosts that provide every service, or those of `services`. Without, the domain of the
        SRV records of `services` (`_billing._tcp.<name>`), or such a name itself.
    nameserver
        The name server; those of the machine if it is None.
    scheme
        Of the URLs of instances: http or https.
    period_ms_min, period_ms_max
        How often the records are read, whatever they say of their own time.
    timeout_ms
        For one answer.
    """

    def __init__(
        self,
        name: str,
        port: int | None = None,
        *,
        services: Iterable[str] = (),
        nameserver: HostPort | None = None,
        scheme: str = "http",
        period_ms_min: int = PERIOD_MS_MIN,
        period_ms_max: int = PERIOD_MS_MAX,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        self._name, self._port = name.rstrip("."), port
        self._scheme = check.one_of("scheme", scheme, SCHEMES)
        self._least_ms = check.integer("period_ms_min", period_ms_min, 100, 3_600_000)
        self._most_ms = check.integer("period_ms_max", period_ms_max, 100, 3_600_000)
        check_periods(period_ms_min, period_ms_max)
        self._questions = questions(self._name, port, list(services))
        self._lookup = Lookup(nameserver, check.integer("timeout_ms", timeout_ms, 100, 60_000))
        self._roster = CatchAllRoster() if EVERY in self._questions else Roster()
        self._targets: dict[str, dict[str, Addresses]] = {}
        self._task: asyncio.Task[None] | None = None
        self._starting = Starting()
        self.failures = 0
        """Times in a row that DNS gave no answer."""
        self.kept = 0
        """How often addresses stayed because there was no answer for their name, or for IPv4 or IPv6 of it."""

    @property
    def roster(self) -> Roster:
        """Return the instances that DNS named last."""
        return self._roster

    @property
    def reachable(self) -> bool:
        """Return whether DNS answered all questions the last time."""
        return self._task is not None and not self.failures

    async def start(self) -> None:
        """Read the records, and go on to do so; raise `Unavailable`, and close, if DNS has no answer."""
        self._starting.check_open()
        if not self._starting.begun:
            await self._starting.run(self._begin, self._stop)

    async def _begin(self) -> None:
        period = await self._read()
        self._task = asyncio.create_task(self._follow(period), name="registry in DNS")

    async def announce(self, instance: Instance) -> None:
        """Raise `InvalidInput`: records are written by those who run the name server."""
        self._starting.check_open()
        raise not_announced("dns://", "add a record of its host")

    async def withdraw(self, service: str, instance_id: str) -> None:
        """Return: nothing of this process was announced."""

    async def close(self) -> None:
        """Stop to read; what was known last stays in the roster."""
        await self._starting.end()
        await self._stop()

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _follow(self, wait_ms: int) -> None:
        while True:
            await asyncio.sleep(wait_ms / 1_000)
            try:
                wait_ms = await self._read()
            except Exception as fault:  # whatever it is, the next look comes
                self.failures += 1
                wait_ms = retry_ms(self.failures, self._least_ms, self._most_ms)
                if self.failures == 1:
                    trace = None if isinstance(fault, Unavailable) else fault
                    _log.warning("%s; what was known last stays", fault, exc_info=trace)
                continue
            if self.failures:
                _log.info("DNS answers again, after %d failures", self.failures)
                self.failures = 0

    async def _read(self) -> int:
        """Read all records, and return when to do so again; then raise `Unavailable` if a question had no answer."""
        rounds = [self._read_one(service, question) for service, question in self._questions.items()]
        results = await asyncio.gather(*rounds, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return period_ms((result for result in results if isinstance(result, int)), self._least_ms, self._most_ms)

    async def _read_one(self, service: str, question: str) -> int:
        """Read the records of one question into the roster; return for how many seconds they hold."""
        if self._port is not None:
            hosts = await self._lookup.addresses(question, self._known(question, question))
            self.kept += len(hosts.kept)
            self._targets[question] = {question: hosts}
            found = at_addresses(service, self._name, self._port, hosts.found, self._scheme)
            ttl_s = hosts.ttl_s
        else:
            records = await self._lookup.services(question)
            targets = await self._addresses(question, sorted({record.target for record in records.found}))
            addresses = {target: each.found for target, each in targets.items()}
            found = merged(service, records.found, addresses, self._scheme)
            ttl_s = min([records.ttl_s, *(each.ttl_s for each in targets.values())])
        if isinstance(self._roster, CatchAllRoster):
            self._roster.replace_every(found)
        else:
            self._roster.replace(service, found)
        return ttl_s

    async def _addresses(self, question: str, targets: list[str]) -> dict[str, Addresses]:
        """Return the addresses of targets: those known last where DNS has no answer, none where it never had one."""
        taken = targets[:TARGETS_MAX]
        asked = (self._lookup.addresses(target, self._known(question, target)) for target in taken)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found = {}
        for target, answer in zip(taken, answers, strict=True):
            if isinstance(answer, Addresses):
                found[target] = answer
            elif not isinstance(answer, Unavailable):
                raise answer
            else:
                found[target] = Addresses(self._known(question, target), 0, (answer,))
        failed = [fault for each in found.values() for fault in each.kept]
        if failed and not any(each.found for each in found.values()):
            raise failed[0]
        self.kept += len(failed)
        self._targets[question] = found
        return found

    def _known(self, question: str, name: str) -> tuple[str, ...]:
        """Return the addresses of a name that were found last for a question."""
        known = self._targets.get(question, {}).get(name)
        return () if known is None else known.found
