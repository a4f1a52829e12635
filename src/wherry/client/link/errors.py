"""Errors of the broker, made again from problem documents, so that callers get what the broker raised."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from wherry.client.link.transport import ClientResponse
from wherry.model import errors
from wherry.model.errors import InvalidInput, Unavailable, WherryError

BUSY = ("busy", "timeout", "unavailable")
"""Codes of a broker that could not take the request now."""

JOURNAL = ("storage", "writer-failed", "fenced")
"""Codes of a broker whose journal failed: it takes nothing until it is started again."""

RETRY_AFTER_S_MAX = 30.0
"""No call waits longer than this at a time, whatever an answer asks for."""


class RequestRefused(WherryError):
    """A request that the broker's HTTP port refused before the broker saw it; `code` is the reason."""

    code = "refused"

    def __init__(self, code: str, status: int, detail: str) -> None:
        self.code = code  # type: ignore[misc]
        self.status = status
        super().__init__(detail)


class _Problem(msgspec.Struct):
    code: str = ""
    detail: str = ""
    field: str = ""
    given: str = ""
    allowed: str = ""


def _kinds(base: type[WherryError] = WherryError) -> Iterator[tuple[str, type[WherryError]]]:
    for kind in base.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield kind.code, kind
        yield from _kinds(kind)


KINDS = dict(_kinds())
"""Every error of the model by its code."""


def error_of(answer: ClientResponse) -> WherryError:
    """Return the error that an answer stands for. It has the fields of its document; the others are in its text."""
    fault = _error_of(answer)
    vars(fault).update(_retry_after_s=answer.retry_after_s, _restarts=answer.restarts)
    return fault


def _error_of(answer: ClientResponse) -> WherryError:
    try:
        problem = msgspec.json.decode(memoryview(answer.body), type=_Problem)
    except msgspec.MsgspecError:
        problem = _Problem("", bytes(answer.body[:200]).decode("utf-8", "replace"))
    if problem.code in BUSY or not problem.code:
        return Unavailable(f"{answer.status}: {problem.detail}")
    kind = KINDS.get(problem.code)
    if kind is None:
        return RequestRefused(problem.code, answer.status, problem.detail)
    fault = kind.__new__(kind)
    fault.args = (problem.detail,)
    if isinstance(fault, InvalidInput):
        fault.field, fault.given, fault.allowed = problem.field, problem.given, problem.allowed
    return fault


def returns(fault: BaseException) -> bool:
    """Return whether the same call may succeed a little later, unchanged."""
    if isinstance(fault, Unavailable):
        return True
    failed = isinstance(fault, errors.Closed) or (isinstance(fault, WherryError) and fault.code in JOURNAL)
    return failed and bool(vars(fault).get("_restarts", True))


def retry_after_s(fault: BaseException) -> float:
    """Return how long the broker asked to wait, in the answer that an error came from."""
    return min(vars(fault).get("_retry_after_s") or 0.0, RETRY_AFTER_S_MAX)
