"""The console: a page that works offline, and uses the same calls as every client."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.api.service import ApiCall
from wherry.wire.http.protocol.message import (
    HTML,
    Answer,
    Header,
    Response,
)

TABLE = EndpointGroup("system")

FOLDER = Path(__file__).parents[3] / "console"
PAGE = "index.html"
TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Allow scripts and styles of this folder only, nothing from other sites, and no frame around the page."""

HEADERS: list[Header] = [
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-cache"),
]


@TABLE.add("GET", "/console", "none", gives=(HTML,), answers={200: (HTML,)})
async def console(call: ApiCall) -> Answer:
    """Show the web console."""
    return Response(200, [_files()[PAGE]], HTML, HEADERS)


@TABLE.add("GET", "/console/{file}", "none", gives=tuple(TYPES.values()), answers={200: tuple(TYPES.values())})
async def console_file(call: ApiCall) -> Answer:
    """Get a file of the web console."""
    name = call["file"]
    kind = TYPES.get(Path(name).suffix)
    if kind is None or name not in _files():
        raise HttpError("not-found", f"no file {name} is here")
    return Response(200, [_files()[name]], kind, HEADERS)


@cache
def _files() -> dict[str, bytes]:
    """Read the files once: a name that is not in the folder cannot be requested."""
    return {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.is_file()}
