"""Callbacks: posts the outcomes of messages to the URLs that their producers gave.

Outcomes are in the state of the broker until they were posted, so a restart loses none; an outcome is posted twice if
an answer was lost. Notices that a message was delivered are in memory only. A URL that does not answer is tried again
after growing pauses, `ATTEMPTS` times over about nine minutes; then its outcomes are given up.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from weakref import WeakValueDictionary

import msgspec

from wherry.broker.port.port import BrokerPort
from wherry.model.calls.fate import Outcome
from wherry.model.errors import WherryError
from wherry.model.pauses import growing
from wherry.node.webhooks.lanes import BrokenOff, Lane
from wherry.node.webhooks.lookups import NotTried
from wherry.node.webhooks.sender import Unreached, WebhookSender, is_taken
from wherry.node.webhooks.targets import Target
from wherry.security import signing
from wherry.wire.http.protocol.message import JSON

ATTEMPTS = 10
ATTEMPTS_HURRIED = 3
"""The same while more than half of `URLS_MAX` URLs fail."""
FIRST_S, CAP_S = 1.0, 300.0
TIMEOUT_S = 10.0
BATCH = 1_000
"""Outcomes in one call."""
OUTCOMES_MAX = 10_000
URLS_MAX = 4_096
"""URLs with a call under way or planned; outcomes for further URLs stay in the broker meanwhile."""
CALLS_A_HOST = 4
HOSTS_MAX = 4_096
SLOW_S = 1.0
GONE = 410

_log = logging.getLogger("wherry.webhooks")


@dataclass(slots=True)
class CallbackUrl:
    """A URL with outcomes to post, from the first attempt to success or the last."""

    url: str
    host_limit: asyncio.Semaphore
    notices: deque[Outcome] = field(default_factory=lambda: deque(maxlen=OUTCOMES_MAX))
    outcomes: deque[Outcome] = field(default_factory=deque)
    failures: int = 0
    resume_at: float = 0.0
    task: asyncio.Task[None] | None = None

    @property
    def has_outcomes(self) -> bool:
        """Return whether there are outcomes or notices to post."""
        return bool(self.notices or self.outcomes)


class Callbacks:
    """All callbacks of a broker."""

    def __init__(self, broker: BrokerPort, sender: WebhookSender, secret: str | None = None) -> None:
        self._broker, self._sender, self._secret = broker, sender, secret
        self._urls: dict[str, CallbackUrl] = {}
        self._host_limits: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._hosts: OrderedDict[str, bool] = OrderedDict()
        """Hosts that were called: whether they answered 2xx, and quickly."""
        self._task: asyncio.Task[None] | None = None
        self.given_up = 0
        """Outcomes that could not be posted."""

    def __len__(self) -> int:
        return len(self._urls)

    def start(self) -> None:
        """Post all outcomes, present and future."""
        self._task = asyncio.create_task(self._run(), name="wherry callbacks")

    async def close(self, patience_s: float) -> None:
        """Begin no more calls; those under way have so long to end. Unreported outcomes stay in the broker."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        under_way = [target_url.task for target_url in self._urls.values() if target_url.task is not None]
        if under_way:
            await asyncio.wait(under_way, timeout=patience_s)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def _run(self) -> None:
        event = self._broker.on_outcome
        while True:
            event.clear()
            now = _now()
            try:
                self._collect(now)
            except Exception:
                _log.exception("outcomes cannot be fetched")
            wake_at = self._begin(now)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(wake_at):
                    await event.wait()

    def _collect(self, now: float) -> None:
        """Collect notices, then outcomes, so that no URL gets the end of a message before its delivery."""
        for notice in self._broker.delivered_notices():
            target_url = self._url(notice.url)
            if target_url is not None:
                target_url.notices.append(notice)
        barred = [
            target_url.url
            for target_url in self._urls.values()
            if target_url.task is not None or target_url.resume_at > now or target_url.outcomes
        ]
        for outcome in self._broker.unreported(OUTCOMES_MAX, without=barred):
            target_url = self._url(outcome.url)
            if target_url is not None:
                target_url.outcomes.append(outcome)

    def _url(self, url: str) -> CallbackUrl | None:
        target_url = self._urls.get(url)
        if target_url is None and len(self._urls) < URLS_MAX:
            host = Target.of(url).authority
            host_limit = self._host_limits.get(host)
            if host_limit is None:
                host_limit = self._host_limits[host] = asyncio.Semaphore(CALLS_A_HOST)
            target_url = self._urls[url] = CallbackUrl(url, host_limit)
        return target_url

    def _begin(self, now: float) -> float | None:
        """Begin the calls that are due; return when to check again, if nothing happens until then."""
        wake_at: list[float] = []
        for target_url in list(self._urls.values()):
            if target_url.task is not None:
                continue
            if target_url.resume_at > now:
                wake_at.append(target_url.resume_at)
            elif target_url.has_outcomes:
                target_url.task = asyncio.create_task(self._report(target_url), name="wherry callback")
            elif target_url.resume_at + CAP_S > now:  # keep its count of failures, in case more outcomes come
                wake_at.append(target_url.resume_at + CAP_S)
            else:
                del self._urls[target_url.url]
        return min(wake_at, default=None)

    async def _report(self, target_url: CallbackUrl) -> None:
        try:
            while target_url.has_outcomes:
                notices, outcomes = list(islice(target_url.notices, BATCH)), list(islice(target_url.outcomes, BATCH))
                error, is_gone = await self._posted(target_url, notices + outcomes)
                if error:
                    target_url.failures += 1
                    target_url.outcomes.clear()  # they stay in the broker, and are fetched again for the next attempt
                    if is_gone or target_url.failures >= self._attempts():
                        await self._give_up(target_url, notices, outcomes, error)
                    pause_s = growing(FIRST_S, CAP_S, target_url.failures - 1)
                    target_url.resume_at = _now() + pause_s * random.uniform(0.9, 1.1)
                    return
                target_url.failures = 0
                await self._broker.reported(outcomes)
                _drop(target_url, notices, outcomes)
            del self._urls[target_url.url]
        except (BrokenOff, NotTried):
            target_url.outcomes.clear()
            target_url.resume_at = _now() + FIRST_S
        except WherryError as fault:
            _log.warning("outcomes were posted, and will be posted again: %s", fault, extra=_names(target_url))
            target_url.outcomes.clear()
            target_url.resume_at = _now() + FIRST_S
        except Exception:
            _log.exception("a callback failed with an unexpected error", extra=_names(target_url))
            target_url.outcomes.clear()
            target_url.resume_at = _now() + CAP_S
        finally:
            target_url.task = None
            self._broker.on_outcome.set()

    async def _posted(self, target_url: CallbackUrl, outcomes: Sequence[Outcome]) -> tuple[str, bool]:
        """Post outcomes; return the error, empty for success, and whether the answer was 410 (gone)."""
        target = Target.of(target_url.url)
        host = target.authority
        body = msgspec.json.encode({"outcomes": [_shown(outcome) for outcome in outcomes]})
        try:
            async with target_url.host_limit, self._lane(target_url, host).place(host):
                headers = {"Content-Type": JSON}
                if self._secret is not None:
                    headers[signing.HEADER] = signing.sign(self._secret, body, int(time.time()))
                began = _now()
                status = (await self._sender.post(target, headers, body, TIMEOUT_S, kind="callback")).status
        except Unreached as fault:
            self._learn(host, is_good=False)
            return str(fault), False
        except BrokenOff:
            self._learn(host, is_good=False)
            raise
        self._learn(host, is_good=is_taken(status) and _now() - began < SLOW_S)
        return ("" if is_taken(status) else f"{status} from {host}"), status == GONE

    def _lane(self, target_url: CallbackUrl, host: str) -> Lane:
        is_good = self._hosts.get(host)
        if target_url.failures or is_good is False:
            return self._sender.slow
        return self._sender.quick if is_good else self._sender.new

    def _learn(self, host: str, *, is_good: bool) -> None:
        self._hosts.pop(host, None)
        self._hosts[host] = is_good
        if len(self._hosts) > HOSTS_MAX:
            self._hosts.popitem(last=False)

    def _attempts(self) -> int:
        failing = sum(target_url.failures > 0 for target_url in self._urls.values())
        return ATTEMPTS if failing <= URLS_MAX // 2 else ATTEMPTS_HURRIED

    async def _give_up(
        self, target_url: CallbackUrl, notices: list[Outcome], outcomes: list[Outcome], error: str
    ) -> None:
        self.given_up += len(outcomes)
        extra = {"outcomes": len(outcomes), "attempts": target_url.failures, **_names(target_url)}
        _log.warning("outcomes cannot be reported to a producer: %s", error, extra=extra)
        _drop(target_url, notices, [])
        await self._broker.reported(outcomes)


def _drop(target_url: CallbackUrl, notices: list[Outcome], outcomes: list[Outcome]) -> None:
    """Remove outcomes that are done; more may have been added behind them meanwhile."""
    for waiting, done in ((target_url.notices, notices), (target_url.outcomes, outcomes)):
        for each in done:
            if waiting and waiting[0] is each:  # a full queue may have dropped its first ones already
                waiting.popleft()


def _shown(outcome: Outcome) -> dict[str, object]:
    return {name: value for name, value in outcome._asdict().items() if name != "url"}


def _names(target_url: CallbackUrl) -> dict[str, str]:
    return {"host": Target.of(target_url.url).authority}


def _now() -> float:
    return asyncio.get_running_loop().time()
