"""The console, and the page of services: they work offline, and use the same calls as every client.

A node serves the console. A process that provides services serves the other page, of the same files.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.api.routing import Call, EndpointGroup
from wherry.wire.http.pages.sign_in import SignInAnswer, connectable
from wherry.wire.http.protocol.message import (
    HTML,
    Answer,
    Header,
    Response,
)

if TYPE_CHECKING:  # what provides services has no broker, and imports none
    from wherry.wire.http.api.service import ApiCall

TABLE = EndpointGroup("system")
FILES: Final = EndpointGroup("system")
"""The files that pages load, for whatever serves one."""

FOLDER = Path(__file__).parents[3] / "console"
PAGE = "index.html"
SERVICES_PAGE: Final = "services/index.html"
TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Allow scripts and styles of this folder only, nothing from other sites, and no frame around the page."""

HEADERS: list[Header] = [
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-cache"),
]


@TABLE.add("GET", "/console", "none", query=SignInAnswer, gives=(HTML,), answers={200: (HTML,)})
async def console(call: ApiCall) -> Answer:
    """Show the web console. Its policy allows it to call the node, and the token endpoint of the identity provider.

    The arguments are those with which a provider may send the browser back. The page reads them, and the node does not.
    """
    provider = call.service.provider()
    more = [("Cache-Control", "no-store")] if call.request.query else []
    return page(PAGE, *more, connect=connectable(provider.token_url or "") if provider is not None else "")


@FILES.add("GET", "/console/{file}", "none", gives=tuple(TYPES.values()), answers={200: tuple(TYPES.values())})
async def console_file(call: Call[Any]) -> Answer:
    """Get a file of the web console."""
    return _file(call["file"])


@FILES.add("GET", "/console/{folder}/{file}", "none", gives=(TYPES[".js"],), answers={200: (TYPES[".js"],)})
async def console_page(call: Call[Any]) -> Answer:
    """Get the module of a page of the web console."""
    return _file(f"{call['folder']}/{call['file']}")


def page(name: str, *more: Header, connect: str = "") -> Response:
    """Return a page, with its policy and more headers; it may call the server that it comes from, and `connect`."""
    return Response(200, [_files()[name]], HTML, [_policy(connect), *HEADERS, *more])


def _policy(connect: str = "") -> Header:
    allowed = POLICY.replace("connect-src 'self'", f"connect-src 'self' {connect}") if connect else POLICY
    return "Content-Security-Policy", allowed


def _file(name: str) -> Response:
    kind = TYPES.get(Path(name).suffix)
    if kind is None or name not in _files():
        raise HttpError("not-found", f"no file {name} is here")
    return Response(200, [_files()[name]], kind, [_policy(), *HEADERS])


@cache
def _files() -> dict[str, bytes]:
    """Read the files once, by their paths in the folder: a name that is not there cannot be requested."""
    found = sorted(path for path in FOLDER.rglob("*") if path.is_file())
    return {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in found}
