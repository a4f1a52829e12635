"""A call that failed, as a record of the log: what was called, how it ended, and the bytes of its argument.

As a message of the log's topic: the body is the argument, the key is the service, the headers are all else; the id is
the side and the id of the call. So everything that reads a broker's folder reads a lost log as well. A record never
makes a failure worse: what is too long is cut, and marked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from wherry.mesh.instance import NAME_CHARS_MAX
from wherry.model import check
from wherry.model.limits import ATTEMPTS_MAX, ERROR_CHARS_MAX, TIME_MS_MAX
from wherry.model.schema import Message
from wherry.wire.native.codec.invokes import CALL_ID_CHARS_MAX

Side = Literal["caller", "provider"]

SIDES: Final[tuple[Side, ...]] = ("caller", "provider")

SESSION_CHARS_MAX: Final = 1_024
LABELS_MAX: Final = 16
LABEL_CHARS_MAX: Final = 512

_LABEL = "label-"


class LostCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that failed.

    Parameters
    ----------
    id
        Of the call: each attempt of it has the same, so that a provider can tell a repeat.
    at_ms
        When it failed, Unix milliseconds.
    side
        Who keeps it: the `caller`, or the `provider`, whose method failed or whose answer could not be sent.
    service, method, instance, session
        What was called; the instance is the last one that was tried, or "".
    outcome
        How the call ended: `refused`, `failed`, `timed out`, `lost`, …
    error, text
        Type and text of the last error.
    body
        The argument as it was sent, or the beginning of it.
    body_bytes
        How long the whole argument is; None if `body` is all of it.
    content
        What the body is: `bytes`, `msgpack`, `json`.
    attempts
        So far, resends included.
    resend
        Whether it is sent again when the service is back. Never of a body that was cut.
    labels
        What else belongs to the call, such as its trace context.
    """

    id: str
    at_ms: int
    side: Side
    service: str
    method: str
    outcome: str
    body: bytes
    body_bytes: int | None = None
    instance: str = ""
    session: str | None = None
    error: str = ""
    text: str = ""
    content: str = "bytes"
    attempts: int = 1
    resend: bool = False
    labels: dict[str, str] = {}

    @property
    def is_cut(self) -> bool:
        """Whether a part of the body is missing."""
        return self.body_bytes is not None and self.body_bytes > len(self.body)

    @property
    def name(self) -> str:
        """The id of its message: a peer that calls itself may keep a call at both sides."""
        return f"{self.side}:{self.id}"

    def checked(self, body_bytes_max: int) -> LostCall:
        """Return this record within all bounds; raise `InvalidInput` for a bad name or number, which cannot be cut."""
        check.graphic("id", self.id, CALL_ID_CHARS_MAX)
        check.integer("at_ms", self.at_ms, 0, TIME_MS_MAX)
        check.one_of("side", self.side, SIDES)
        for field in ("service", "method", "outcome"):
            check.name(field, getattr(self, field), NAME_CHARS_MAX)
        check.integer("attempts", self.attempts, 0, ATTEMPTS_MAX)
        body = bytes(self.body[:body_bytes_max])
        whole = len(self.body) if self.body_bytes is None else self.body_bytes
        is_cut = len(body) < whole
        labels = list(self.labels.items())[:LABELS_MAX]
        return msgspec.structs.replace(
            self,
            body=body,
            body_bytes=whole if is_cut else None,
            instance=_short(self.instance, NAME_CHARS_MAX),
            session=None if self.session is None else _short(self.session, SESSION_CHARS_MAX),
            error=_short(self.error, NAME_CHARS_MAX),
            text=_short(self.text, ERROR_CHARS_MAX),
            content=_short(self.content, NAME_CHARS_MAX),
            resend=self.resend and not is_cut,
            labels={_short(name, NAME_CHARS_MAX): _short(value, LABEL_CHARS_MAX) for name, value in labels},
        )

    def failed_again(self, error: str, text: str) -> LostCall:
        """Return the record after one more attempt."""
        attempts = min(ATTEMPTS_MAX, self.attempts + 1)
        return msgspec.structs.replace(
            self, attempts=attempts, error=_short(error, NAME_CHARS_MAX), text=_short(text, ERROR_CHARS_MAX)
        )

    def headers(self) -> dict[str, str]:
        """Return all but the body as headers of a message; what is empty is left out."""
        found = {
            "at-ms": str(self.at_ms),
            "method": self.method,
            "outcome": self.outcome,
            "attempts": str(self.attempts),
            "instance": self.instance,
            "error": self.error,
            "text": self.text,
            "content": self.content,
            "resend": "yes" if self.resend else "",
            "body-bytes": "" if self.body_bytes is None else str(self.body_bytes),
        }
        found = {name: value for name, value in found.items() if value}
        if self.session is not None:
            found["session"] = self.session
        return found | {f"{_LABEL}{name}": value for name, value in self.labels.items()}

    def message(self, expires_ms: int) -> Message:
        """Return the message that keeps this call until then."""
        return Message(payload=self.body, id=self.name, key=self.service, headers=self.headers(), expires_ms=expires_ms)


def of_row(row: Mapping[str, Any]) -> LostCall:
    """Return the call that a message of the log keeps."""
    headers = dict(row["headers"])
    side, _, call_id = row["id"].partition(":")
    whole = headers.get("body-bytes")
    return LostCall(
        id=call_id,
        at_ms=int(headers["at-ms"]),
        side=side,
        service=row["key"],
        method=headers["method"],
        outcome=headers["outcome"],
        body=row["payload"],
        body_bytes=None if whole is None else int(whole),
        instance=headers.get("instance", ""),
        session=headers.get("session"),
        error=headers.get("error", ""),
        text=headers.get("text", ""),
        content=headers.get("content", "bytes"),
        attempts=int(headers["attempts"]),
        resend="resend" in headers,
        labels={name.removeprefix(_LABEL): value for name, value in headers.items() if name.startswith(_LABEL)},
    )


def _short(text: str, chars_max: int) -> str:
    """Return text that can be stored: without lone surrogates, and cut where it is too long."""
    cut = text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"
    return cut.encode("utf-8", "replace").decode()
