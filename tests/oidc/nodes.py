"""Nodes that take access tokens of a provider."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.served import Served, served
from wherry.node.config import OidcSection

RULES = (
    "realm:clerk -> publish:orders.* call:billing.*",
    "client:wherry:reader -> consume:orders.*",
    "scope:bill -> call:stock.count",
    "realm:root -> admin",
)


@contextmanager
def taking_tokens(home: Path, issuer: str, sections: dict[str, Any] | None = None, **more: Any) -> Iterator[Served]:
    """Run a node that takes access tokens, and API keys beside them."""
    usual: dict[str, Any] = {
        "issuer": issuer,
        "audiences": ("wherry",),
        "rules": RULES,
        "leeway_s": 0.0,
        "refetch_s": 1.0,
    }
    with served(home, oidc=OidcSection(**(usual | more)), **(sections or {})) as node:
        yield node
