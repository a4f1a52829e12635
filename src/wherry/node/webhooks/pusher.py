"""Pushes the messages of one subscription to its webhook: pull, post, settle.

    2xx                               acked
    5xx                               failed; the client may be in trouble: one call at a time, after growing pauses
    429, or 503 with `Retry-After`    released without an attempt counted, and a pause
    410                               subscription removed: the client answers that it is gone
    any other answer                  failed: this message is the problem, the next one is sent at once
    no answer to what was sent        failed, and the client counts as down: pauses as after a 5xx
    no connection, no TLS             released without an attempt counted, and the client counts as down
    `remove_after` of the last two    subscription removed

An answer is about the message, a missing answer is about the client: a message that the client cannot handle ends as a
dead letter, and does not remove the subscription. A call that this node could not make, or broke off for other hosts,
is made again and counts for neither. Pauses and retries both follow the retry policy of the subscription.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote

import numpy as np

from wherry.broker.port.consume import ConsumerPort, DeliveryPort
from wherry.broker.port.port import BrokerPort
from wherry.model.catalog.retry import delays_ms
from wherry.model.catalog.subscription import Subscription
from wherry.model.catalog.webhook import Webhook
from wherry.model.errors import CutOff, NotFound, StaleLease, WherryError
from wherry.node.webhooks.lanes import BrokenOff, Lane
from wherry.node.webhooks.lookups import WAIT_S, NotTried
from wherry.node.webhooks.sender import PostResult, Unreached, WebhookSender, is_taken
from wherry.node.webhooks.targets import Target
from wherry.security import signing
from wherry.wire.http.formats import write_messages
from wherry.wire.http.protocol.message import JSON

PUSH_BYTES = 1 << 20
"""Most payload bytes of one call; a single larger message is still sent."""
GRACE_MS = 5_000 + int(WAIT_S * 1000)
"""How much longer a lease lasts than the timeout of its call."""
SLOW_S = 1.0
TROUBLE_S = 1.0
REJOIN_S = (0.1, 30.0)
"""The first and the longest pause before a pusher that was removed as a consumer joins again."""

_log = logging.getLogger("wherry.webhooks")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a call; without an `error` it succeeded."""

    error: str = ""
    is_down: bool = False
    """There was no answer."""
    is_gone: bool = False
    is_troubled: bool = False
    """The client answered that it cannot handle any message now."""
    is_untouched: bool = False
    """The client did not process the message: it never got it, or asked for a pause."""
    pause_s: float = 0.0
    """The shortest pause that the client asked for."""


class Pusher:
    """Pushes one subscription to its webhook; a changed webhook gets another pusher."""

    def __init__(
        self,
        broker: BrokerPort,
        sender: WebhookSender,
        number: int,
        subscription: Subscription,
        webhook: Webhook,
        removals: Counter[str],
    ) -> None:
        self._broker, self._sender = broker, sender
        self._number, self._subscription, self._webhook = number, subscription, webhook
        self._removals = removals
        self._target = Target.of(webhook.url)
        self._calls: set[asyncio.Task[None]] = set()
        self._is_proven = self._is_slow = False
        self._failures = 0
        """Calls in a row that found the client down or in trouble; they set the pauses."""
        self._silences = 0
        """Calls in a row without an answer; too many remove the subscription."""
        self._failed_at = self._resume_at = 0.0

    async def run(self, join: Callable[[], ConsumerPort]) -> None:
        """Push until the subscription is gone. When cancelled, wait for calls under way; cancelled again, do not."""
        pause_s, pause_max_s = REJOIN_S
        while self._is_wanted():
            began = _now()
            try:
                await self._run(join())
            except (CutOff, NotFound) as fault:
                if self._is_wanted():
                    _log.warning("a pusher is no consumer any more, and joins again: %s", fault, extra=self._names())
            except WherryError as fault:
                _log.warning("a pusher cannot push, and tries again: %s", fault, extra=self._names())
            except Exception:
                _log.exception("a pusher failed with an unexpected error, and tries again", extra=self._names())
            if self._is_wanted():
                pause_s = REJOIN_S[0] if _now() - began > pause_max_s else pause_s
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, pause_max_s)

    def _is_wanted(self) -> bool:
        is_there = self._broker.numbered_subscription(self._number) is not None
        return is_there and self._broker.failure is None

    async def _run(self, consumer: ConsumerPort) -> None:
        try:
            await self._push(consumer)
        finally:
            try:
                while self._calls:
                    await asyncio.wait(self._calls)
            finally:
                for call in self._calls:
                    call.cancel()
                await asyncio.gather(*self._calls, return_exceptions=True)
                await consumer.close()

    async def _push(self, consumer: ConsumerPort) -> None:
        while self._broker.failure is None:
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
        """Wait for the end of a pause, and for a call to end when enough are under way."""
        while True:
            enough = self._webhook.in_flight if self._is_proven and not self._failures else 1
            pause_s = self._resume_at - _now()
            if len(self._calls) >= enough:
                await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED)
            elif pause_s > 0:
                await asyncio.sleep(pause_s)
            else:
                return

    async def _call(self, delivery: DeliveryPort) -> None:
        began = _now()
        try:
            verdict = await self._posted(delivery)
            self._learn(verdict, began)
            try:
                await self._settle(delivery, verdict)  # before a removal, so that dead letters are made first
            finally:
                if verdict.is_gone or self._silences >= self._webhook.remove_after:
                    await self._remove(verdict)
        except StaleLease:
            _log.info("a call took longer than its lease: its messages come again", extra=self._names())
        except WherryError as fault:
            _log.warning("a call was made and cannot be settled: %s", fault, extra=self._names())
            self._resume_at = _now() + TROUBLE_S
        except Exception:
            _log.exception("a call failed with an unexpected error", extra=self._names())
            self._resume_at = _now() + TROUBLE_S

    async def _settle(self, delivery: DeliveryPort, verdict: Verdict) -> None:
        if not self._config().acks:
            return  # settled when it was pulled
        if not verdict.error:
            await delivery.ack()
        elif verdict.is_untouched:
            await delivery.release()
        else:
            await delivery.nack(error=verdict.error)

    async def _posted(self, delivery: DeliveryPort) -> Verdict:
        is_sent = False

        def sending() -> None:
            nonlocal is_sent
            is_sent = True

        while True:
            lane, beat_s = self._lane(), self._config().lease_ms / 3000
            try:
                async with lane.place(self._target.authority, beat_s=beat_s, beat=lambda: self._keep(delivery)):
                    return await self._post(delivery, sending)
            except Unreached as fault:
                return Verdict(str(fault), is_down=True, is_untouched=not is_sent)
            except BrokenOff as fault:
                self._is_slow = True
                if is_sent and not self._config().acks:
                    return Verdict(str(fault))
                await self._keep(delivery)
            except NotTried as fault:
                _log.warning("a call has to wait: %s", fault, extra=self._names())
                await self._keep(delivery)
                await asyncio.sleep(TROUBLE_S)

    async def _post(self, delivery: DeliveryPort, before_send: Callable[[], None]) -> Verdict:
        webhook, names = self._webhook, self._names()
        (body,) = write_messages(JSON, delivery.batch, leases=delivery.lease_column()).body
        content = bytes(memoryview(body))
        await self._keep(delivery)
        began = _now()
        headers = {
            "Content-Type": JSON,
            "Wherry-Topic": quote(names["topic"], safe=""),
            "Wherry-Subscription": quote(names["subscription"], safe=""),
            "Wherry-Delivery": str(delivery.tokens[0]),
            signing.HEADER: signing.sign(webhook.secret, content, int(time.time())),
        }
        timeout_s = webhook.timeout_ms / 1000
        answer = await self._sender.post(self._target, headers, content, timeout_s, before_send=before_send)
        self._is_slow = _now() - began > SLOW_S
        return verdict_of(answer, self._target.authority)

    def _lane(self) -> Lane:
        if self._failures or self._is_slow:
            return self._sender.slow
        return self._sender.quick if self._is_proven else self._sender.new

    async def _keep(self, delivery: DeliveryPort) -> None:
        """Renew the lease for one more call."""
        if self._config().acks:
            await delivery.renew(max(self._webhook.timeout_ms + GRACE_MS, self._config().lease_ms))

    def _learn(self, verdict: Verdict, began: float) -> None:
        """Update the counts of failures of the client. Of failed calls that were under way together, one counts."""
        hampered = verdict.is_down or verdict.is_troubled
        if not hampered:
            self._failures = 0
            self._is_proven = self._is_proven or not verdict.error
        if not verdict.is_down:
            self._silences = 0
        if hampered and began >= self._failed_at:
            self._failures += 1
            self._silences += verdict.is_down
            self._failed_at = _now()
        if hampered:
            policy, tries = self._config().retry, np.array([max(1, self._failures)])
            pause_s = int(delays_ms(policy, tries, np.array([random.random()]))[0]) / 1000
            self._resume_at = max(self._resume_at, _now() + max(pause_s, verdict.pause_s))

    async def _remove(self, verdict: Verdict) -> None:
        if self._broker.numbered_subscription(self._number) is None:
            return  # another call or a client has removed it
        often = "" if verdict.is_gone else f" ({self._silences} calls in a row had no answer)"
        why = f"its webhook cannot be reached: {verdict.error}{often}"
        _log.warning("a subscription is removed: %s", why, extra=self._names())
        await self._broker.cut_off(self._number, why)
        self._removals["gone" if verdict.is_gone else "down"] += 1

    def _config(self) -> Subscription:
        """Return the current subscription, or the last one known if it is deleted."""
        self._subscription = self._broker.numbered_subscription(self._number) or self._subscription
        return self._subscription

    def _names(self) -> dict[str, str]:
        config = self._subscription
        return {"topic": config.topic, "subscription": config.name, "host": self._target.authority}


def verdict_of(answer: PostResult, authority: str) -> Verdict:
    """Return the verdict on an answer. Its body is not kept: see `sender`."""
    status = answer.status
    if is_taken(status):
        return Verdict()
    error = f"{status} from {authority}"
    if status == HTTPStatus.TOO_MANY_REQUESTS or (status == HTTPStatus.SERVICE_UNAVAILABLE and answer.retry_after_s):
        return Verdict(error, is_troubled=True, is_untouched=True, pause_s=answer.retry_after_s)
    return Verdict(error, is_gone=status == HTTPStatus.GONE, is_troubled=status >= HTTPStatus.INTERNAL_SERVER_ERROR)


def _now() -> float:
    return asyncio.get_running_loop().time()
