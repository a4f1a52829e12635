"""Pushes the messages of one subscription to its webhook: pull, post, settle.

    2xx                            acked
    no answer, 5xx                 failed, and the client counts as down: one call at a time, each after a longer pause
    `remove_after` of those        the subscription is removed
    410                            removed at once: the client says that it is gone
    429                            failed, and a pause
    anything else                  failed: this message is the problem, the next one goes out at once

Pauses and the return of what failed both follow the retry policy of the subscription.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass
from urllib.parse import quote

import numpy as np

from wherry.broker.broker import Broker
from wherry.broker.consumer import Consumer, Delivery
from wherry.core.retry import delays_ms
from wherry.core.state import SubscriptionState
from wherry.model.errors import CutOff, NotFound, StaleLease, WherryError
from wherry.model.webhook import Webhook
from wherry.node.webhooks.sender import Sender, Unreached, is_taken
from wherry.node.webhooks.targets import Target
from wherry.security import signing
from wherry.wire.http.formats import write_messages
from wherry.wire.http.message import JSON

PUSH_BYTES = 1 << 20
"""Content of one call at most; a single larger message still goes."""
GRACE_MS = 5_000
"""What a lease lasts beyond the time of its call."""
SLOW_S = 1.0
TROUBLE_S = 1.0

_log = logging.getLogger("wherry.webhooks")


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a call went; no `error` is success."""

    error: str = ""
    is_down: bool = False
    is_gone: bool = False
    is_busy: bool = False


class Pusher:
    """One subscription with its webhook as it is now; another webhook is another pusher."""

    def __init__(self, broker: Broker, sender: Sender, subscription: SubscriptionState, webhook: Webhook) -> None:
        self._broker, self._sender = broker, sender
        self._subscription, self._webhook = subscription, webhook
        self._target = Target.of(webhook.url)
        self._calls: set[asyncio.Task[None]] = set()
        self._is_proven = self._is_slow = False
        self._failures = 0
        """Calls in a row that found the client down."""
        self._failed_at = self._resume_at = 0.0

    async def run(self, consumer: Consumer) -> None:
        """Push until the subscription is gone. Cancelled, it lets calls under way end; cancelled again, it does not."""
        try:
            await self._push(consumer)
        except (CutOff, NotFound):
            pass
        finally:
            try:
                while self._calls:
                    await asyncio.wait(self._calls)
            finally:
                for call in self._calls:
                    call.cancel()
                await asyncio.gather(*self._calls, return_exceptions=True)
                await consumer.close()

    async def _push(self, consumer: Consumer) -> None:
        while self._broker.shard.committer.failure is None:
            await self._room()
            try:
                delivery = await consumer.pull(self._webhook.batch, bytes_max=PUSH_BYTES, wait_ms=None)
            except (CutOff, NotFound):
                raise
            except WherryError as fault:
                _log.warning("nothing can be pulled for a webhook: %s", fault, extra=self._names())
                await asyncio.sleep(TROUBLE_S)
                continue
            call = asyncio.create_task(self._call(delivery), name="wherry webhook call")
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _room(self) -> None:
        """Wait out a pause, and for one of the calls under way to end when there are enough of them."""
        while True:
            enough = self._webhook.in_flight if self._is_proven and not self._failures else 1
            pause_s = self._resume_at - _now()
            if len(self._calls) >= enough:
                await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED)
            elif pause_s > 0:
                await asyncio.sleep(pause_s)
            else:
                return

    async def _call(self, delivery: Delivery) -> None:
        began = _now()
        try:
            verdict = await self._posted(delivery)
            self._learn(verdict, began)
            if verdict.is_gone or self._failures >= self._webhook.remove_after:
                await self._remove(verdict)
            elif not self._subscription.config.acks:
                pass  # it was settled when it was handed over
            elif verdict.error:
                await delivery.nack(error=verdict.error)
            else:
                await delivery.ack()
        except StaleLease:
            _log.info("a call took longer than its lease: its messages come again", extra=self._names())
        except WherryError as fault:
            _log.warning("a call was made and cannot be settled: %s", fault, extra=self._names())
            self._resume_at = _now() + TROUBLE_S
        except Exception:
            _log.exception("a call failed in a way nobody thought of", extra=self._names())
            self._resume_at = _now() + TROUBLE_S

    async def _posted(self, delivery: Delivery) -> Verdict:
        webhook, names = self._webhook, self._names()
        lane = await self._slot(delivery)
        try:
            (body,) = write_messages(JSON, delivery.batch, leases=delivery.lease_column()).body
            content = bytes(memoryview(body))
            if self._subscription.config.acks:
                await delivery.renew(max(webhook.timeout_ms + GRACE_MS, self._subscription.config.lease_ms))
            began = _now()
            headers = {
                "Content-Type": JSON,
                "User-Agent": "wherry",
                "Wherry-Topic": quote(names["topic"], safe=""),
                "Wherry-Subscription": quote(names["subscription"], safe=""),
                "Wherry-Delivery": str(delivery.tokens[0]),
                signing.HEADER: signing.sign(webhook.secret, content, int(time.time())),
            }
            status = await self._sender.post(self._target, headers, content, webhook.timeout_ms / 1000)
        except Unreached as fault:
            return Verdict(str(fault), is_down=True)
        finally:
            lane.release()
        self._is_slow = _now() - began > SLOW_S
        if is_taken(status):
            return Verdict()
        text = f"{status} from {self._target.authority}"
        return Verdict(text, is_down=status >= 500, is_gone=status == 410, is_busy=status == 429)

    async def _slot(self, delivery: Delivery) -> asyncio.Semaphore:
        """A place in a lane; the lease lives on while it waits for one."""
        is_quick = self._is_proven and not self._failures and not self._is_slow
        lane = self._sender.quick if is_quick else self._sender.slow
        while True:
            try:
                async with asyncio.timeout(self._subscription.config.lease_ms / 3000):
                    await lane.acquire()
                    return lane
            except TimeoutError:
                if self._subscription.config.acks:
                    await delivery.renew()

    def _learn(self, verdict: Verdict, began: float) -> None:
        """What a call says about the client. Of calls that were under way together, one counts."""
        if not verdict.is_down:
            self._failures = 0
            self._is_proven = self._is_proven or not verdict.error
        elif began >= self._failed_at:
            self._failures += 1
            self._failed_at = _now()
        if verdict.is_down or verdict.is_busy:
            policy, tries = self._subscription.config.retry, np.array([max(1, self._failures)])
            self._resume_at = _now() + int(delays_ms(policy, tries, np.array([random.random()]))[0]) / 1000

    async def _remove(self, verdict: Verdict) -> None:
        if self._subscription.number not in self._broker.shard.state.subscriptions:
            return  # by another call, or by somebody
        often = "" if verdict.is_gone else f" ({self._failures} calls in a row failed)"
        why = f"its webhook cannot be reached: {verdict.error}{often}"
        _log.warning("a subscription is removed: %s", why, extra=self._names())
        await self._broker.cut_off(self._subscription, why)

    def _names(self) -> dict[str, str]:
        config = self._subscription.config
        return {"topic": config.topic, "subscription": config.name, "host": self._target.authority}


def _now() -> float:
    return asyncio.get_running_loop().time()
