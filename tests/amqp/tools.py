"""Calls of `/api` as tools of RabbitMQ make them, on a node in process."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

from wherry.node.config import AmqpSection, Config, SecuritySection, ServerSection, StorageSection
from wherry.node.node import Node

GUEST = "guest:guest"


def config(tmp_path: Path, **security: Any) -> Config:
    return Config(
        server=ServerSection(port=0),
        storage=StorageSection(path=str(tmp_path / "data")),
        security=SecuritySection(**security),
        amqp=AmqpSection(hosts=("/", "staging")),
    )


async def ask(node: Node, call: str, body: Any = None, user: str = GUEST, **headers: str) -> tuple[int, Any]:
    """Send a call such as `PUT queues/%2F/jobs`; return its status, and what came as JSON."""
    method, _, path = call.partition(" ")
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    basic = base64.b64encode(user.encode()).decode()
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} /api/{path} HTTP/1.1", "Host: localhost", "Connection: close", f"Authorization: Basic {basic}"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + content)
    head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), json.loads(answer or b"null")


def admin_of(node: Node) -> str:
    """Return name and password of the administrator of a node with keys."""
    assert node.first_key is not None
    return f"admin:{node.first_key.read_text().strip()}"
