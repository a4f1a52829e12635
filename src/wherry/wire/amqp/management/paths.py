"""The paths below `/api/`, and the function that answers each: a read, or a change."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from wherry.model.errors import NotFound
from wherry.wire.amqp.management import changing, definitions, messages, paging, people, reads
from wherry.wire.amqp.management.asking import BODY_BYTES_MAX, ManagementAnswer, ManagementCall

Change = Callable[[ManagementCall], Coroutine[Any, Any, ManagementAnswer]]
Read = Callable[[ManagementCall], Any]

_CHANGES: dict[tuple[str, str], Change] = {
    ("PUT", "queues/*/*"): changing.put_queue,
    ("DELETE", "queues/*/*"): changing.delete_queue,
    ("DELETE", "queues/*/*/contents"): changing.purge_queue,
    ("POST", "queues/*/*/get"): messages.get,
    ("PUT", "exchanges/*/*"): changing.put_exchange,
    ("DELETE", "exchanges/*/*"): changing.delete_exchange,
    ("POST", "exchanges/*/*/publish"): messages.publish,
    ("POST", "bindings/*/e/*/*/*"): changing.bind,
    ("DELETE", "bindings/*/e/*/*/*/*"): changing.unbind,
    ("PUT", "vhosts/*"): changing.put_host,
    ("DELETE", "vhosts/*"): changing.delete_host,
    ("PUT", "users/*"): people.put_user,
    ("DELETE", "users/*"): people.delete_user,
    ("POST", "users/bulk-delete"): people.delete_users,
    ("PUT", "permissions/*/*"): people.put_permission,
    ("DELETE", "permissions/*/*"): people.delete_permission,
    ("DELETE", "connections/*"): changing.close_connection,
    ("POST", "definitions"): definitions.take_in,
}

_LARGE: dict[Change, int] = {
    messages.publish: messages.PUBLISH_BYTES_MAX,
    definitions.take_in: definitions.DEFINITIONS_BYTES_MAX,
}


def body_max(call: Change) -> int:
    """Return how many bytes the body of a call may have."""
    return _LARGE.get(call, BODY_BYTES_MAX)


_READS: dict[str, Read] = {
    "users": people.users,
    "users/*": people.user,
    "users/*/permissions": people.permissions_of_user,
    "vhosts/*/permissions": people.permissions_of_host,
    "permissions": people.permissions,
    "permissions/*/*": people.permission,
    "definitions": definitions.written,
}
"""Reads beside those of `reads`."""


def change(method: str, parts: list[str]) -> Change | None:
    """Return the function of a call that changes something; None if there is no such call."""
    for (its_method, template), call in _CHANGES.items():
        if method == its_method and _fits(template, parts):
            return call
    return None


def read(ask: ManagementCall) -> Any:
    """Return what is at a path, in the form asked for; `NotFound` if there is nothing."""
    for template, call in _READS.items():
        if _fits(template, ask.parts):
            return paging.shown(call(ask), ask.query)
    found = reads.answer(ask)
    if found is None:
        raise NotFound("path", "/".join(ask.parts)[:200])
    return paging.shown(found, ask.query)


def _fits(template: str, parts: list[str]) -> bool:
    wanted = template.split("/")
    return len(wanted) == len(parts) and all(each in ("*", part) for each, part in zip(wanted, parts, strict=True))
