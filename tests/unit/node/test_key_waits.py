"""Calls of Flight that wait for the key of a token: in their own threads, a bounded number, never in the event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import pytest

from tests.oidc.forged import Forger
from wherry.model.errors import Unauthorized
from wherry.node.identity import wait_in_threads
from wherry.security.access import Access
from wherry.security.oidc.access_tokens import AccessTokens
from wherry.security.oidc.fetch import Fetched, FetchFailed
from wherry.security.oidc.provider import IdentityProvider
from wherry.security.oidc.rules import Rules
from wherry.security.oidc.verifying import Expectations
from wherry.wire.flight.gate import Gate

ISSUER = "https://id.example/realms/shop"
WITHIN_S = 60


class Slow:
    """A provider that answers when it is told to, and what waits for it."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        provider = IdentityProvider(ISSUER, get=self._get)
        tokens = AccessTokens(provider, Expectations(issuer=ISSUER, audiences=("wherry",)), Rules())
        self.access = Access(True, None, tokens=tokens)  # type: ignore[arg-type]  # no keys are looked up
        self.headers = {"authorization": f"Bearer {Forger(ISSUER).good()}"}

    async def _get(self, url: str) -> Fetched:
        self.asked += 1
        self.is_asked.set()
        await self.may_answer.wait()
        raise FetchFailed("down")


def test_nothing_waits_in_the_thread_of_the_loop():
    async def main() -> None:
        slow = Slow()
        wait_in_threads(slow.access)(slow.headers)
        for _ in range(10):
            await asyncio.sleep(0)
        assert slow.asked == 0, "it did not even begin to wait"

    asyncio.run(main())


def test_a_bounded_number_of_threads_waits_and_the_others_go_on_at_once():
    async def main() -> None:
        slow, threads = Slow(), ThreadPoolExecutor(8)
        waits = wait_in_threads(slow.access, waiters_max=2)
        calls = [threads.submit(waits, slow.headers) for _ in range(8)]
        while sum(each.done() for each in calls) < 6:
            await asyncio.to_thread(wait, [each for each in calls if not each.done()], WITHIN_S, FIRST_COMPLETED)
        await asyncio.wait_for(slow.is_asked.wait(), WITHIN_S)
        assert sum(each.done() for each in calls) == 6
        slow.may_answer.set()
        await asyncio.to_thread(wait, calls, WITHIN_S)
        assert all(each.done() for each in calls)
        threads.shutdown()

    asyncio.run(main())


def test_a_call_waits_once_where_it_begins_and_before_it_is_checked():
    steps: list[tuple[str, int]] = []

    def guard(headers, verb, topic):
        steps.append(("check", threading.get_ident()))
        raise Unauthorized("no")

    gate = Gate(guard, lambda headers: steps.append(("wait", threading.get_ident())))
    with pytest.raises(Exception, match="no"):
        gate.start_call(None, {"authorization": ["Bearer x"]})
    assert [name for name, _ in steps] == ["wait", "check"]
