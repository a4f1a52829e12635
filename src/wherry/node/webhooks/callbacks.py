"""Tells producers what became of their messages: posts outcomes to the callback URLs that they gave.

Outcomes are in the state of the broker until somebody was told, so a restart loses none; what is posted twice, because
an answer got lost, says the same twice. Notices that a message was handed over are in memory only. A URL that cannot be
told is tried again after growing pauses, `ATTEMPTS` times over about nine minutes; then its outcomes are given up.
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

from wherry.broker.port import BrokerPort
from wherry.model.calls.fate import Outcome
from wherry.model.errors import WherryError
from wherry.node.webhooks.lanes import BrokenOff, Lane
from wherry.node.webhooks.lookups import NotTried
from wherry.node.webhooks.sender import Sender, Unreached, is_taken
from wherry.node.webhooks.targets import Target
from wherry.security import signing
from wherry.wire.http.protocol.message import JSON

ATTEMPTS = 10
ATTEMPTS_HURRIED = 3
"""When more than half of `EARS_MAX` URLs fail at a time."""
FIRST_S, CAP_S = 1.0, 300.0
TIMEOUT_S = 10.0
BATCH = 1_000
"""Outcomes in one call."""
FETCH = 10_000
EARS_MAX = 4_096
"""URLs that are being told or wait for another attempt; outcomes for more stay where they are until then."""
CALLS_A_HOST = 4
HOSTS_MAX = 4_096
SLOW_S = 1.0
GONE = 410

_log = logging.getLogger("wherry.webhooks")


@dataclass(slots=True)
class Ear:
    """A URL that there is something to tell, from the first attempt to success or the last."""

    url: str
    door: asyncio.Semaphore
    notices: deque[Outcome] = field(default_factory=lambda: deque(maxlen=FETCH))
    outcomes: deque[Outcome] = field(default_factory=deque)
    failures: int = 0
    resume_at: float = 0.0
    task: asyncio.Task[None] | None = None

    @property
    def has_news(self) -> bool:
        """Whether there is something to tell at hand."""
        return bool(self.notices or self.outcomes)


class Teller:
    """All callbacks of a broker."""

    def __init__(self, broker: BrokerPort, sender: Sender, secret: str | None = None) -> None:
        self._broker, self._sender, self._secret = broker, sender, secret
        self._ears: dict[str, Ear] = {}
        self._doors: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._hosts: OrderedDict[str, bool] = OrderedDict()
        """Hosts that were called: whether they answered well, and soon."""
        self._task: asyncio.Task[None] | None = None
        self.given_up = 0
        """Outcomes that nobody could be told."""

    def __len__(self) -> int:
        return len(self._ears)

    def start(self) -> None:
        """Tell what is there, and what comes."""
        self._task = asyncio.create_task(self._run(), name="wherry callbacks")

    async def close(self, patience_s: float) -> None:
        """Begin nothing more; calls under way have so long to end. What was not told stays with the broker."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        under_way = [ear.task for ear in self._ears.values() if ear.task is not None]
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
                self._fetch(now)
            except Exception:
                _log.exception("outcomes cannot be fetched")
            wake_at = self._begin(now)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(wake_at):
                    await event.wait()

    def _fetch(self, now: float) -> None:
        """Notices first: nobody hears of an end before the beginning."""
        for notice in self._broker.delivered_notices():
            ear = self._ear(notice.url)
            if ear is not None:
                ear.notices.append(notice)
        barred = [ear.url for ear in self._ears.values() if ear.task is not None or ear.resume_at > now or ear.outcomes]
        for outcome in self._broker.untold(FETCH, without=barred):
            ear = self._ear(outcome.url)
            if ear is not None:
                ear.outcomes.append(outcome)

    def _ear(self, url: str) -> Ear | None:
        ear = self._ears.get(url)
        if ear is None and len(self._ears) < EARS_MAX:
            host = Target.of(url).authority
            door = self._doors.get(host)
            if door is None:
                door = self._doors[host] = asyncio.Semaphore(CALLS_A_HOST)
            ear = self._ears[url] = Ear(url, door)
        return ear

    def _begin(self, now: float) -> float | None:
        """Tell whom it is time to tell; when to look again, if nothing happens until then."""
        wake_at: list[float] = []
        for ear in list(self._ears.values()):
            if ear.task is not None:
                continue
            if ear.resume_at > now:
                wake_at.append(ear.resume_at)
            elif ear.has_news:
                ear.task = asyncio.create_task(self._tell(ear), name="wherry callback")
            elif ear.resume_at + CAP_S > now:  # its failures count, should there be more to tell
                wake_at.append(ear.resume_at + CAP_S)
            else:
                del self._ears[ear.url]
        return min(wake_at, default=None)

    async def _tell(self, ear: Ear) -> None:
        try:
            while ear.has_news:
                notices, outcomes = list(islice(ear.notices, BATCH)), list(islice(ear.outcomes, BATCH))
                error, is_gone = await self._posted(ear, notices + outcomes)
                if error:
                    ear.failures += 1
                    ear.outcomes.clear()  # they stay with the broker, and may be others by the next attempt
                    if is_gone or ear.failures >= self._attempts():
                        await self._give_up(ear, notices, outcomes, error)
                    pause_s = min(CAP_S, FIRST_S * 2.0 ** (ear.failures - 1))
                    ear.resume_at = _now() + pause_s * random.uniform(0.9, 1.1)
                    return
                ear.failures = 0
                await self._broker.told(outcomes)
                _drop(ear, notices, outcomes)
            del self._ears[ear.url]
        except (BrokenOff, NotTried):
            ear.outcomes.clear()
            ear.resume_at = _now() + FIRST_S
        except WherryError as fault:
            _log.warning("outcomes were told, and come again: %s", fault, extra=_names(ear))
            ear.outcomes.clear()
            ear.resume_at = _now() + FIRST_S
        except Exception:
            _log.exception("a callback failed in a way nobody thought of", extra=_names(ear))
            ear.outcomes.clear()
            ear.resume_at = _now() + CAP_S
        finally:
            ear.task = None
            self._broker.on_outcome.set()

    async def _posted(self, ear: Ear, outcomes: Sequence[Outcome]) -> tuple[str, bool]:
        """Why it failed, empty if it did not; and whether the other side says that it is gone."""
        target = Target.of(ear.url)
        host = target.authority
        body = msgspec.json.encode({"outcomes": [_shown(outcome) for outcome in outcomes]})
        try:
            async with ear.door, self._lane(ear, host).place(host):
                headers = {"Content-Type": JSON, "User-Agent": "wherry"}
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

    def _lane(self, ear: Ear, host: str) -> Lane:
        is_good = self._hosts.get(host)
        if ear.failures or is_good is False:
            return self._sender.slow
        return self._sender.quick if is_good else self._sender.new

    def _learn(self, host: str, *, is_good: bool) -> None:
        self._hosts.pop(host, None)
        self._hosts[host] = is_good
        if len(self._hosts) > HOSTS_MAX:
            self._hosts.popitem(last=False)

    def _attempts(self) -> int:
        failing = sum(ear.failures > 0 for ear in self._ears.values())
        return ATTEMPTS if failing <= EARS_MAX // 2 else ATTEMPTS_HURRIED

    async def _give_up(self, ear: Ear, notices: list[Outcome], outcomes: list[Outcome], error: str) -> None:
        self.given_up += len(outcomes)
        extra = {"outcomes": len(outcomes), "attempts": ear.failures, **_names(ear)}
        _log.warning("a producer cannot be told what became of its messages: %s", error, extra=extra)
        _drop(ear, notices, [])
        await self._broker.told(outcomes)


def _drop(ear: Ear, notices: list[Outcome], outcomes: list[Outcome]) -> None:
    """These are done; others may have come behind them meanwhile."""
    for waiting, done in ((ear.notices, notices), (ear.outcomes, outcomes)):
        for each in done:
            if waiting and waiting[0] is each:  # a full queue has let its first ones go already
                waiting.popleft()


def _shown(outcome: Outcome) -> dict[str, object]:
    return {name: value for name, value in outcome._asdict().items() if name != "url"}


def _names(ear: Ear) -> dict[str, str]:
    return {"host": Target.of(ear.url).authority}


def _now() -> float:
    return asyncio.get_running_loop().time()
