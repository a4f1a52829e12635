"""Planted bugs in HTTP and in the native wire, in the broker and in the session of the Python client: see `plants`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wherry.broker.calls.consumer import Consumer
from wherry.broker.commit.commit import Committer
from wherry.broker.commit.gathering import Submission
from wherry.client.native import session as client_session
from wherry.client.native import stream as client_stream
from wherry.client.native.upgrade import UpgradeAnswer
from wherry.sim.patch import patched
from wherry.wire.http.protocol import connection as http
from wherry.wire.native import intake, outgoing, publishing
from wherry.wire.native import session as native
from wherry.wire.native.codec.settles import Verb
from wherry.wire.native.settling import Settles
from wherry.wire.native.streams import PushStream
from wherry.wire.partial_body import PartialBody


def confirm_before_the_sync() -> Any:
    """Confirm a PUBLISH when it is submitted, before it is synced."""

    def make(_: Any) -> Any:
        def at_once(self: intake.PublishIntake, submission: Submission) -> None:
            for part in submission.parts:
                self._answer(part, None)

        return at_once

    return patched(intake.PublishIntake, "_submitted", make)


def confirm_the_lone_before_the_sync() -> Any:
    """Confirm a PUBLISH that is alone in its turn when it is in its topic, before it is synced."""

    def make(placed: Any) -> Any:
        def at_once(self: intake.LoneRequest, position: int, offset: int) -> Submission:
            placed(self, position, offset).report(None)
            return Submission()

        return at_once

    return patched(intake.LoneRequest, "placed", make)


def confirm_one_too_far() -> Any:
    """Count on from a publish of many by one message too few: the publish behind it is confirmed in the wrong place."""

    def make(placed: Any) -> Any:
        def behind(answer: Any, start: int, count: int) -> Any:
            found = placed(answer, start, count)
            return found._replace(offset=found.offset - 1) if start else found

        return behind

    return patched(intake, "placed", make)


def confirm_the_next_too() -> Any:
    """Let a range of CONFIRM cover one request too many."""

    def make(confirm: Any) -> Any:
        def wider(self: outgoing.Outgoing, *args: Any, **more: Any) -> None:
            confirm(self, *args, **more)
            last = self._entries[-1]
            if last.requests == 2:
                self._entries[-1] = last._replace(requests=3)

        return wider

    return patched(outgoing.Outgoing, "confirm", make)


def push_beyond_the_credit() -> Any:
    """Count one message more than each CREDIT grants."""

    def make(grant: Any) -> Any:
        return lambda self, messages: grant(self, messages + 1)

    return patched(Consumer, "grant", make)


def push_before_the_sync() -> Any:
    """Hand messages to a stream that waits before they are durable."""

    def make(hand: Any) -> Any:
        def at_once(self: Consumer, *args: Any) -> bool:
            committer = self._shard.committer
            durable, committer.durable = committer.durable, committer.submitted
            try:
                return bool(hand(self, *args))
            finally:
                committer.durable = durable

        return at_once

    return patched(Consumer, "_hand_at_once", make)


def ignore_the_buffer() -> Any:
    """Join a stream without the bounds that its client asked for."""

    def make(join: Any) -> Any:
        async def unbounded(self: PushStream) -> None:
            terms = self.terms
            self.terms = type(terms)(topic=terms.topic, subscription=terms.subscription, credit=terms.credit)
            await join(self)

        return unbounded

    return patched(PushStream, "_join", make)


def settle_for_any_stream() -> Any:
    """Take a lease of any subscription in a SETTLE, not only those of its stream."""

    def make(settle: Any) -> Any:
        return lambda self, group: settle(self, [each._replace(within=None) for each in group])

    return patched(Settles, "_settle", make)


def answer_settles_before_the_sync() -> Any:
    """Send SETTLED when a settle is applied, before it is durable."""

    def make(settle: Any) -> Any:
        def at_once(self: Settles, group: Any) -> None:
            answer, self._answer = self._answer, lambda *_: None  # type: ignore[method-assign]
            settle(self, group)
            self._answer = answer  # type: ignore[method-assign]
            answer(group, None)

        return at_once

    return patched(Settles, "_settle", make)


def nack_behind_others() -> Any:
    """Let a nacked message wait for a moment, so that later ones overtake it."""

    def make(settle: Any) -> Any:
        def delayed(self: Settles, group: Any) -> None:
            first, *others = group
            if first.verb == Verb.NACK:
                first = first._replace(terms=type(first.terms)(delay_ms=700, error="it failed"))
            settle(self, [first, *others])

        return delayed

    return patched(Settles, "_settle", make)


def keep_what_the_lost_held() -> Any:
    """Forget the streams of a connection that is lost, without the end of their leases."""

    def make(lost: Any) -> Any:
        def forgetful(self: native.Session) -> None:
            self.streams.clear()
            lost(self)

        return forgetful

    return patched(native.Session, "lost", make)


def overtake_an_arrow_stream() -> Any:
    """Publish frames that come behind a large Arrow stream before it."""

    def make(begin: Any) -> Any:
        def at_once(self: publishing.Publishing, request: Any, *args: Any) -> None:
            begin(self, request, *args)
            self._behind.pop(request.topic, None)

        return at_once

    return patched(publishing.Publishing, "_begin", make)


def count_on_wrongly() -> Any:
    """Let the client take all publishes of a range for single messages, when it counts on to the next offset."""

    def make(published_by: Any) -> Any:
        def first_of(entry: Any, offset: int, messages: int, dead_from: int | None) -> Any:
            return published_by(entry, entry.offset, messages, dead_from)

        return first_of

    return patched(client_session, "published_by", make)


def ack_the_neighbour() -> Any:
    """Let the client ack the offset behind the message that its reader acks."""

    def make(settle: Any) -> Any:
        def shifted(number: int, stream: int, verb: int, parts: Any, options: bytes = b"") -> bytes:
            moved = [(token, [(first + 1, count) for first, count in ranges]) for token, ranges in parts]
            return settle(number, stream, verb, moved, options)

        return shifted

    return patched(client_stream, "encode_settle", make)


def forget_the_beginning_of_a_body() -> Any:
    """Enlarge the memory of a body that is arriving without the bytes that came before."""

    def make(grow: Any) -> Any:
        def forgetful(self: PartialBody, room: int) -> None:
            got, self.got = self.got, 0
            grow(self, room)
            self.got = got

        return forgetful

    return patched(PartialBody, "grow", make)


def lose_frames_behind_the_answer() -> Any:
    """Let the client drop what arrives between the answer to the upgrade and the start of the session."""
    return patched(UpgradeAnswer, "_add", lambda _: lambda self, data: None)


def lose_the_beginning_of_a_head() -> Any:
    """Drop the part of a head of HTTP that came without the rest."""

    def make(parse: Any) -> Any:
        def forgetful(self: http.Connection) -> None:
            parse(self)
            if self._head_begun and http.HEAD_END not in self._inbox:
                self._filled = 0

        return forgetful

    return patched(http.Connection, "_parse_head", make)


def serve_the_body_before() -> Any:
    """Publish the body of the request of HTTP that came before on the same connection, if there was one."""
    before: dict[http.Connection, Any] = {}

    def make(start: Any) -> Any:
        def stale(self: http.Connection) -> None:
            body = self._body
            self._body = before.get(self, body)
            before[self] = body
            start(self)

        return stale

    return patched(http.Connection, "_start_call", make)


def delay_without_end() -> Any:
    """Never write an ack that waits for company, unless company comes."""
    return patched(Committer, "_delay_is_over", lambda _: lambda self: None)


NATIVE_PLANTS: dict[str, tuple[Callable[[], Any], int, tuple[str, ...]]] = {
    "confirm a native publish before the sync": (confirm_before_the_sync, 0, ("nobody_loses",)),
    "confirm a lone native publish before the sync": (confirm_the_lone_before_the_sync, 0, ("nobody_loses",)),
    "confirm one too far": (confirm_one_too_far, 1, ("confirmed_in_place",)),
    "confirm the next too": (confirm_the_next_too, 1, ("rules_kept",)),
    "push beyond the credit": (push_beyond_the_credit, 0, ("credit_kept",)),
    "push before the sync": (push_before_the_sync, 1, ("nobody_loses", "all_or_nothing")),
    "ignore the buffer": (ignore_the_buffer, 1, ("buffer_kept",)),
    "settle for any stream": (settle_for_any_stream, 1, ("own_leases",)),
    "answer settles before the sync": (answer_settles_before_the_sync, 1, ("acked_stays_acked",)),
    "nack behind others": (nack_behind_others, 1, ("requeued_in_place",)),
    "keep what the lost held": (keep_what_the_lost_held, 0, ("nothing_kept",)),
    "overtake an Arrow stream": (overtake_an_arrow_stream, 5, ("order_kept",)),
    "count on wrongly": (count_on_wrongly, 1, ("confirmed_in_place",)),
    "lose frames behind the answer": (lose_frames_behind_the_answer, 272, ("rules_kept", "answers_come")),
    "forget the beginning of a body": (forget_the_beginning_of_a_body, 1, ("rules_kept",)),
    "lose the beginning of a head": (lose_the_beginning_of_a_head, 1, ("rules_kept",)),
    "serve the body before": (serve_the_body_before, 1, ("confirmed_in_place", "nobody_loses")),
    "delay without end": (delay_without_end, 0, ("Runaway",)),
    "ack the neighbour": (ack_the_neighbour, 2, ("nobody_loses", "acked_stays_acked")),
}
"""Each bug, the first seed that shows it in the run with HTTP and the native wire, and the checkers that find it."""
