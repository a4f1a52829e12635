"""All declarations as one document: exported, and imported again, here or on RabbitMQ."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from wherry.model.errors import InvalidInput
from wherry.queueing.hosts.exchanges import BUILT_IN
from wherry.queueing.introduction import PROPERTIES
from wherry.wire.amqp.management import changing, people, reads
from wherry.wire.amqp.management.asking import DEFAULT_EXCHANGE, ManagementAnswer, ManagementCall, Row

DEFINITIONS_BYTES_MAX = 16 << 20

_QUEUE = ("name", "vhost", "durable", "auto_delete", "arguments")
_EXCHANGE = ("name", "vhost", "type", "durable", "auto_delete", "internal", "arguments")
_BINDING = ("source", "vhost", "destination", "destination_type", "routing_key", "arguments")


def written(ask: ManagementCall) -> Row:
    """Answer `GET definitions`: with users and the hashes of their passwords, so only for administrators."""
    ask.check_admin()

    def rows(what: str, fields: tuple[str, ...]) -> list[Row]:
        found: list[Row] = reads.answer(ManagementCall(ask.queueing, ask.login, [what]))  # type: ignore[assignment]
        return [{name: row[name] for name in fields} for row in found if not row.get("exclusive")]

    return {
        "rabbit_version": PROPERTIES["version"],
        "rabbitmq_version": PROPERTIES["version"],
        "product_name": PROPERTIES["product"],
        "users": [row for row in people.users(ask) if row["password_hash"]],
        "vhosts": [{"name": name} for name in ask.queueing.hosts],
        "permissions": people.permissions(ask),
        "topic_permissions": [],
        "parameters": [],
        "global_parameters": [],
        "policies": [],
        "queues": rows("queues", _QUEUE),
        "exchanges": [row for row in rows("exchanges", _EXCHANGE) if row["name"] not in BUILT_IN],
        "bindings": [row for row in rows("bindings", _BINDING) if row["source"]],
    }


def _binding(row: Row) -> list[str]:
    kind = "q" if row.get("destination_type", "queue") == "queue" else "e"
    return ["bindings", row["vhost"], "e", row["source"] or DEFAULT_EXCHANGE, kind, row["destination"]]


_Change = Callable[[ManagementCall], Coroutine[Any, Any, ManagementAnswer]]

_STEPS: list[tuple[str, _Change, Callable[[Row], list[str]]]] = [
    ("vhosts", changing.put_host, lambda row: ["vhosts", row["name"]]),
    ("users", people.put_user, lambda row: ["users", row["name"]]),
    ("permissions", people.put_permission, lambda row: ["permissions", row["vhost"], row["user"]]),
    ("queues", changing.put_queue, lambda row: ["queues", row["vhost"], row["name"]]),
    ("exchanges", changing.put_exchange, lambda row: ["exchanges", row["vhost"], row["name"]]),
    ("bindings", changing.bind, _binding),
]
"""The parts of a document, each after the parts that it needs."""


async def take_in(ask: ManagementCall) -> ManagementAnswer:
    """Answer `POST definitions`: declare all that a document names. The first refusal ends it; earlier parts stay."""
    ask.check_admin()
    for what, change, path in _STEPS:
        rows = ask.body.get(what) or []
        for row in rows if isinstance(rows, list) else [rows]:
            try:
                parts = path(row)
            except (KeyError, TypeError, AttributeError):
                raise InvalidInput(what, row, "objects with the names that they go by") from None
            if not all(isinstance(part, str) for part in parts):
                raise InvalidInput(what, row, "names that are text")
            await change(ManagementCall(ask.queueing, ask.login, parts, known=row))
    return ManagementAnswer(204)
