"""Errors as problem documents (RFC 9457) that name the field, the value given and what is allowed."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from wherry.model.errors import InvalidInput, WherryError
from wherry.wire.http.protocol.message import PROBLEM, Header, Response

STATUS_OF: dict[str, int] = {
    "invalid-input": HTTPStatus.BAD_REQUEST,
    "unauthorized": HTTPStatus.UNAUTHORIZED,
    "forbidden": HTTPStatus.FORBIDDEN,
    "not-found": HTTPStatus.NOT_FOUND,
    "method-not-allowed": HTTPStatus.METHOD_NOT_ALLOWED,
    "not-acceptable": HTTPStatus.NOT_ACCEPTABLE,
    "timeout": HTTPStatus.REQUEST_TIMEOUT,
    "already-exists": HTTPStatus.CONFLICT,
    "stale-lease": HTTPStatus.CONFLICT,
    "not-waiting": HTTPStatus.CONFLICT,
    "duplicate-id": HTTPStatus.CONFLICT,
    "out-of-sequence": HTTPStatus.CONFLICT,
    "cut-off": HTTPStatus.GONE,
    "stage-lost": HTTPStatus.GONE,
    "version-conflict": HTTPStatus.PRECONDITION_FAILED,
    "too-large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "unsupported-media-type": HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    "limit-reached": HTTPStatus.TOO_MANY_REQUESTS,
    "headers-too-large": HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    "internal": HTTPStatus.INTERNAL_SERVER_ERROR,
    "busy": HTTPStatus.SERVICE_UNAVAILABLE,
    "closed": HTTPStatus.SERVICE_UNAVAILABLE,
    "storage": HTTPStatus.SERVICE_UNAVAILABLE,
    "writer-failed": HTTPStatus.SERVICE_UNAVAILABLE,
    "corrupt": HTTPStatus.SERVICE_UNAVAILABLE,
    "in-use": HTTPStatus.SERVICE_UNAVAILABLE,
    "fenced": HTTPStatus.SERVICE_UNAVAILABLE,
    "disk-full": HTTPStatus.INSUFFICIENT_STORAGE,
}

RETRY_AFTER_S = {"busy": 1, "closed": 1, "limit-reached": 1, "disk-full": 10}

GIVEN_CHARS_MAX = 200


class Problem(msgspec.Struct, omit_defaults=True):
    """What went wrong, for people and for programs."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    field: str | None = None
    given: str | None = None
    allowed: str | None = None


class HttpError(WherryError):
    """A request that never reaches the broker, or is refused in terms of HTTP."""

    def __init__(
        self,
        code: str,
        detail: str,
        headers: list[Header] | None = None,
        *,
        field: str | None = None,
        close: bool = False,
    ) -> None:
        self.code = code  # type: ignore[misc]
        self.field = field
        """The part of the request that is wrong."""
        self.headers = headers or []
        self.close = close
        """Whether the connection must close, because what follows cannot be understood."""
        super().__init__(detail)


def problem(fault: WherryError) -> Response:
    """Return an error as an answer."""
    status = STATUS_OF.get(fault.code, HTTPStatus.INTERNAL_SERVER_ERROR)
    document = Problem(
        f"urn:wherry:{fault.code}", fault.code.replace("-", " ").capitalize(), int(status), fault.code, str(fault)
    )
    if isinstance(fault, InvalidInput):
        document.field, document.allowed = fault.field, fault.allowed
        document.given = repr(fault.given)[:GIVEN_CHARS_MAX]
    headers: list[Header] = []
    if isinstance(fault, HttpError):
        document.field, headers = fault.field, list(fault.headers)
    if fault.code in RETRY_AFTER_S:
        headers.append(("Retry-After", str(RETRY_AFTER_S[fault.code])))
    if status == HTTPStatus.UNAUTHORIZED:
        headers.append(("WWW-Authenticate", "Bearer"))
    close = isinstance(fault, HttpError) and fault.close
    return Response(status, [_encoded(document)], PROBLEM, headers, close)


def _encoded(document: Problem) -> bytes:
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:  # a lone surrogate that came in by a path or a value
        for name in ("detail", "given", "field"):
            text = getattr(document, name)
            if text is not None:
                setattr(document, name, text.encode("utf-8", "replace").decode())
        return msgspec.json.encode(document)
