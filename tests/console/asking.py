"""Calls of a node over HTTP, for what a test prepares and what it finds afterwards."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen


def ask(url: str, line: str, body: Any = None, key: str = "") -> Any:
    """Send `PUT /v1/topics/jobs`; return the answer, or raise an error with the detail of its problem."""
    method, _, path = line.partition(" ")
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(url + path, data, headers, method=method), timeout=60) as answer:
            content = answer.read()
    except HTTPError as fault:
        with fault:
            raise AssertionError(f"{line}: {fault.code} {fault.read().decode()}") from None
    return json.loads(content) if content else None


def bury(url: str, topic: str, subscription: str, reasons: dict[str, int], error: str = "") -> None:
    """Make dead letters: so many of each reason."""
    base = f"/v1/topics/{topic}/subscriptions/{subscription}"
    for reason, count in reasons.items():
        messages = [{"payload": {"order": 1000 + n, "why": reason}, "key": f"customer-{n % 7}"} for n in range(count)]
        ask(url, f"POST /v1/topics/{topic}/messages", messages)
        pulled = ask(url, f"POST {base}/pull?messages={count}")["messages"]
        receipts = [each["receipt"] for each in pulled]
        ask(url, f"POST {base}/dead-letter", {"receipts": receipts, "reason": reason, "error": error})
