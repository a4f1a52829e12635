"""One call that came over REST: a request as a call, and its outcome as an answer of HTTP."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final

import msgspec

from wherry.model import check
from wherry.service.outcomes import CallOutcome, RefusalCode
from wherry.service.providing.host import Host
from wherry.service.providing.running import ProvidedCall, ProvidedMethod
from wherry.wire.http.api.problem import HttpError, Problem
from wherry.wire.http.protocol.message import JSON, OCTETS, PROBLEM, Header, Request, Response
from wherry.wire.native.codec.frames import Flag
from wherry.wire.native.codec.invokes import CALL_ID_CHARS_MAX, CallContext, Invoke, Trouble, encode_context

TIMEOUT_MS: Final = 30_000
"""Of a call that names no other."""

TIMEOUT_MS_MAX: Final = 86_400_000

STATUS_OF: Final = {
    RefusalCode.FULL: HTTPStatus.TOO_MANY_REQUESTS,
    RefusalCode.PAUSED: HTTPStatus.SERVICE_UNAVAILABLE,
    RefusalCode.DRAINING: HTTPStatus.SERVICE_UNAVAILABLE,
    RefusalCode.NO_METHOD: HTTPStatus.NOT_FOUND,
    RefusalCode.NO_INSTANCE: HTTPStatus.SERVICE_UNAVAILABLE,
    RefusalCode.UNAUTHORIZED: HTTPStatus.UNAUTHORIZED,
    RefusalCode.FORBIDDEN: HTTPStatus.FORBIDDEN,
    RefusalCode.INVALID_INPUT: HTTPStatus.BAD_REQUEST,
}

NO_RESULT_IN_TIME: Final = HTTPStatus(504)
"""Its name in Python has a word that means something else here."""

RETRY_AFTER: Final[tuple[Header, ...]] = (("Retry-After", "1"),)


IDEMPOTENCY_KEY: Final = "Idempotency-Key"
"""The header with the id of a call: a repeat is answered with the result of the first."""


class CallQuery(msgspec.Struct, frozen=True):
    """The arguments of a call over REST."""

    timeout_ms: int = TIMEOUT_MS
    session: str | None = None


class RestSink:
    """Where the result of a call goes that came over REST."""

    wants_json = True

    def __init__(self, token: str) -> None:
        self.token = token
        self.answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def answer(self, call: ProvidedCall, result: bytes, flags: int) -> None:
        """Answer with the result."""
        self._set(Response(HTTPStatus.OK, [result], JSON if flags & Flag.JSON else OCTETS))

    def trouble(self, call: ProvidedCall, outcome: int, trouble: Trouble) -> None:
        """Answer with a problem document."""
        if outcome & Flag.FAILED:
            text = f"{trouble.kind}: {trouble.text}" if trouble.text else trouble.kind
            self._set(problem_of("failed", HTTPStatus.INTERNAL_SERVER_ERROR, text, trouble))
            return
        status = STATUS_OF[RefusalCode(trouble.code)]
        if trouble.field == "call_id":
            trouble = msgspec.structs.replace(trouble, field=IDEMPOTENCY_KEY)
        self._set(problem_of(trouble.code, status, trouble.text, trouble))

    def drop(self, call: ProvidedCall) -> None:
        """Answer a call that is given up, because its deadline has passed or its client has disconnected."""
        text = f"{call.name} gave no result within {call.asked.timeout_ms} ms, and was cancelled"
        self._set(problem_of("timed-out", NO_RESULT_IN_TIME, text))

    def _set(self, response: Response) -> None:
        if not self.answered.done():
            self.answered.set_result(response)


def problem_of(code: str, status: HTTPStatus, text: str, trouble: Trouble | None = None) -> Response:
    """Return a problem document."""
    document = Problem(f"urn:wherry:{code}", code.replace("-", " ").capitalize(), int(status), code, text)
    if trouble is not None:
        document.field, document.given, document.allowed = trouble.field, trouble.given, trouble.allowed
    headers: list[Header] = []
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        headers += RETRY_AFTER
    if status is HTTPStatus.UNAUTHORIZED:
        headers.append(("WWW-Authenticate", "Bearer"))
    return Response(status, [msgspec.json.encode(document)], PROBLEM, headers)


def rest_call(request: Request, query: CallQuery, method: ProvidedMethod, token: str) -> tuple[ProvidedCall, RestSink]:
    """Return a request as a call, and where its result goes."""
    timeout_ms = check.integer("timeout_ms", query.timeout_ms, 1, TIMEOUT_MS_MAX)
    session = query.session
    call_id = request.headers.get(IDEMPOTENCY_KEY.lower())
    context = CallContext(
        session=check.name("session", session, 256) if session is not None else None,
        call_id=check.graphic(IDEMPOTENCY_KEY, call_id, CALL_ID_CHARS_MAX) if call_id is not None else None,
        traceparent=request.headers.get("traceparent"),
        tracestate=request.headers.get("tracestate"),
    )
    body = bytes(memoryview(request.body))
    asked = Invoke(timeout_ms, method.full_name.encode(), encode_context(context), body)
    sink = RestSink(token)
    return ProvidedCall(sink, 0, _flags(request, method), asked), sink


def _flags(request: Request, method: ProvidedMethod) -> int:
    """Return what the body is; the type of the method decides what it has to be."""
    given = request.content_type()
    wanted = OCTETS if method.method.argument.is_bytes else JSON
    if given != wanted and (given or request.body) and method.method.has_argument:
        text = f"{method.full_name} takes {wanted}, not {given or 'a body without a type'}"
        raise HttpError("unsupported-media-type", text)
    return 0 if method.method.argument.is_bytes else int(Flag.JSON)


async def answered(host: Host, call: ProvidedCall, sink: RestSink) -> Response:
    """Run a call, and return its outcome; a client that disconnects cancels it."""
    host.begin(call)
    try:
        return await sink.answered
    except asyncio.CancelledError:
        host.cancel(call, CallOutcome.LOST)
        raise
