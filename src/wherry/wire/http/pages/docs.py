"""The interactive reference: Swagger UI, served offline from the package that contains it."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.api.service import ApiCall
from wherry.wire.http.protocol.message import HTML, Answer, Response

TABLE = EndpointGroup("system")

PACKAGE = "flask_swagger_ui"
"""Contains a current Swagger UI as files; nothing of it is imported, so its dependencies are never loaded."""

INSTALL = "pip install 'wherry[docs]'"
"""The command that installs it."""

TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".png": "image/png"}

PAGE = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Wherry: the HTTP interface</title>
<link rel="stylesheet" href="/docs/swagger-ui.css">
<div id="ui"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</html>
"""

START = b"""SwaggerUIBundle({url: "/openapi.json", dom_id: "#ui", deepLinking: true, validatorUrl: null});
"""

HEADERS = [("Content-Security-Policy", "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:")]


@TABLE.add("GET", "/docs", "none", gives=(HTML,), answers={200: (HTML,)})
async def docs(call: ApiCall) -> Answer:
    """Show this interface as pages, to read and try out."""
    _folder()
    return Response(200, [PAGE], HTML, HEADERS)


@TABLE.add("GET", "/docs/{file}", "none", gives=tuple(TYPES.values()), answers={200: tuple(TYPES.values())})
async def docs_file(call: ApiCall) -> Answer:
    """Get a file of the interactive reference."""
    name = call["file"]
    if name == "start.js":
        return Response(200, [START], TYPES[".js"])
    suffix = Path(name).suffix
    if suffix not in TYPES or not name.replace("-", "").replace(".", "").isalnum():
        raise HttpError("not-found", f"no file {name} is here")
    return Response(200, [_read(name)], TYPES[suffix], [("Cache-Control", "max-age=3600")])


@lru_cache(maxsize=16)
def _read(name: str) -> bytes:
    path = _folder() / name
    if not path.is_file():
        raise HttpError("not-found", f"no file {name} is here")
    return path.read_bytes()


def is_there() -> bool:
    """Return whether this installation can show the page."""
    spec = find_spec(PACKAGE)
    return spec is not None and bool(spec.submodule_search_locations)


def _folder() -> Path:
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise HttpError("not-found", f"this page needs Swagger UI: {INSTALL}")
    return Path(next(iter(spec.submodule_search_locations))) / "dist"
