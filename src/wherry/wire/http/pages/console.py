"""The console: a page that works offline. It talks to the broker by the calls that everyone has."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.api.routing import Table
from wherry.wire.http.api.service import ApiCall
from wherry.wire.http.protocol.message import (
    HTML,
    Answer,
    Header,
    Response,
)

TABLE = Table("system")

FOLDER = Path(__file__).parents[3] / "console"
PAGE = "index.html"
TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""No script and no style but those of this folder, nothing from elsewhere, in nobody's frame."""

HEADERS: list[Header] = [
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-cache"),
]


@TABLE.add("GET", "/console", "none", gives=(HTML,), answers={200: (HTML,)})
async def console(call: ApiCall) -> Answer:
    """The web console."""
    return Response(200, [_files()[PAGE]], HTML, HEADERS)


@TABLE.add("GET", "/console/{file}", "none", gives=tuple(TYPES.values()), answers={200: tuple(TYPES.values())})
async def console_file(call: ApiCall) -> Answer:
    """A file of that page."""
    name = call["file"]
    kind = TYPES.get(Path(name).suffix)
    if kind is None or name not in _files():
        raise HttpError("not-found", f"no file {name} is here")
    return Response(200, [_files()[name]], kind, HEADERS)


@cache
def _files() -> dict[str, bytes]:
    """Read once: what is not in the folder cannot be asked for, by whatever name."""
    return {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.is_file()}
