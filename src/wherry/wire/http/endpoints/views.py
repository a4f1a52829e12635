"""Messages in JSON, as the OpenAPI document describes them; the formats write them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from wherry.model import limits
from wherry.wire.http.api.terms import (
    Base64,
    Priority,
    TimeMs,
    json_schema,
)

ID = "^(?![0-9]{1,5}-[0-9]{1,13}$)[^\\x00-\\x1f\\x7f]+$"
"""Ids that a producer may choose: not like `partition-offset`, which is the id of a message that was given none."""


class GivenMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message as a producer gives it: `payload`, text or any other JSON value, or `payload_base64`, never both."""

    payload: Any | msgspec.UnsetType = msgspec.UNSET
    payload_base64: Base64 | None = None
    id: Annotated[str, json_schema(minLength=1, maxLength=limits.MESSAGE_ID_BYTES_MAX, pattern=ID)] | None = None
    key: Annotated[str, json_schema(maxLength=limits.KEY_BYTES_MAX)] | None = None
    priority: Priority | None = None
    due_ms: TimeMs | None = None
    expires_ms: TimeMs | None = None
    headers: Annotated[dict[str, str], json_schema(maxProperties=limits.HEADERS_MAX)] | None = None


class MessageView(msgspec.Struct, omit_defaults=True):
    """A message. Fields that it does not have are left out; a payload that is no text is in `payload_base64`.

    A pull adds `receipt` and `attempt`; a listing adds `version`, which an amend names; a scheduled message has
    `at_ms`; a dead letter has its reason, error, attempts and times.
    """

    id: str
    partition: int
    offset: int
    priority: int
    published_ms: int
    payload: str | msgspec.UnsetType = msgspec.UNSET
    payload_base64: str | msgspec.UnsetType | None = msgspec.UNSET
    key: str | msgspec.UnsetType = msgspec.UNSET
    due_ms: int | msgspec.UnsetType = msgspec.UNSET
    expires_ms: int | msgspec.UnsetType = msgspec.UNSET
    headers: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    receipt: str | msgspec.UnsetType = msgspec.UNSET
    attempt: int | msgspec.UnsetType = msgspec.UNSET
    version: int | msgspec.UnsetType = msgspec.UNSET
    at_ms: int | msgspec.UnsetType = msgspec.UNSET
    subscription: str | msgspec.UnsetType = msgspec.UNSET
    reason: str | msgspec.UnsetType = msgspec.UNSET
    error: str | msgspec.UnsetType = msgspec.UNSET
    attempts: int | msgspec.UnsetType = msgspec.UNSET
    first_failed_ms: int | msgspec.UnsetType = msgspec.UNSET
    last_failed_ms: int | msgspec.UnsetType = msgspec.UNSET
    died_ms: int | msgspec.UnsetType = msgspec.UNSET


class MessageList(msgspec.Struct):
    """Messages, in the order that was asked for."""

    messages: list[MessageView]


class MessagePage(MessageList, omit_defaults=True):
    """A part of a listing. Repeat the call with `next` as `after` for the rest; without `next` this was all."""

    next: str | msgspec.UnsetType = msgspec.UNSET
