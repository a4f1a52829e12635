"""The client for pages: one module and its types, from the folder that is published as a package of npm too."""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from importlib.resources import files

from wherry.wire.http.api.routing import Table
from wherry.wire.http.api.service import Ask
from wherry.wire.http.protocol.message import Answer, Response

TABLE = Table("browser")

JAVASCRIPT = "text/javascript; charset=utf-8"
TYPESCRIPT = "application/typescript; charset=utf-8"
KEPT = "max-age=300"
"""Pages ask again after five minutes, and are told by the tag that nothing changed."""


@TABLE.add("GET", "/wherry.js", "none", answers={200: (JAVASCRIPT,), 304: None})
async def client_module(call: Ask) -> Answer:
    """The client for pages, an ES module without dependencies."""
    return _answer(call, "wherry.js", JAVASCRIPT)


@TABLE.add("GET", "/wherry.d.ts", "none", answers={200: (TYPESCRIPT,), 304: None})
async def client_types(call: Ask) -> Answer:
    """The types of the client for pages."""
    return _answer(call, "wherry.d.ts", TYPESCRIPT)


def _answer(call: Ask, name: str, kind: str) -> Answer:
    text, tag = _file(name)
    headers = [("ETag", tag), ("Cache-Control", KEPT), ("X-Content-Type-Options", "nosniff")]
    if name.endswith(".js"):
        headers.append(("X-TypeScript-Types", "/wherry.d.ts"))
    if tag in call.request.headers.get("if-none-match", ""):
        return Response(304, headers=headers)
    return Response(200, [text], kind, headers)


@cache
def _file(name: str) -> tuple[bytes, str]:
    text = (files("wherry") / "browser" / name).read_bytes()
    return text, f'"{blake2b(text, digest_size=12).hexdigest()}"'
