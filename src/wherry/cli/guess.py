"""Completes names for the Tab key, without the client, which takes too long to load."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import typer

from wherry.cli.options import URL, TlsOptions
from wherry.model.errors import WherryError

PATIENCE_S = 0.5
ANSWER_BYTES_MAX = 1 << 20


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return topics that begin with `incomplete`; none if the broker does not answer at once."""
    views = _asked(ctx, "/v1/topics").get("topics", ())
    return [view["config"]["name"] for view in views if view["config"]["name"].startswith(incomplete)]


def subscriptions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return subscriptions of the topic that was given before."""
    topic = quote(str(ctx.params.get("topic") or ""), safe="")
    views = _asked(ctx, f"/v1/topics/{topic}/subscriptions").get("subscriptions", ())
    return [view["config"]["name"] for view in views if view["config"]["name"].startswith(incomplete)]


def _asked(ctx: typer.Context, target: str) -> dict[str, Any]:
    import json
    from http.client import HTTPException
    from urllib.request import Request, urlopen

    given = ctx.find_root().params
    key, tls = given.get("api_key"), TlsOptions(given.get("ca"), given.get("cert"), given.get("cert_key"))
    try:
        request = Request(
            f"{given.get('url') or URL}{target}", headers={"Authorization": f"Bearer {key}"} if key else {}
        )
        with urlopen(request, timeout=PATIENCE_S, context=tls.context()) as answer:
            found: dict[str, Any] = json.loads(answer.read(ANSWER_BYTES_MAX))
            return found
    except (OSError, ValueError, HTTPException, WherryError):
        return {}
