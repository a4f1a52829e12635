"""Lost calls for tests."""

from __future__ import annotations

from typing import Any

from wherry.service.lost.lost_call import LostCall


def lost_call(id: str = "call-1", **changes: Any) -> LostCall:  # noqa: A002
    usual: dict[str, Any] = {
        "at_ms": 1_700_000_000_000,
        "side": "caller",
        "service": "billing",
        "method": "total",
        "outcome": "timed out",
        "body": b"order",
    }
    return LostCall(id=id, **usual | changes)
