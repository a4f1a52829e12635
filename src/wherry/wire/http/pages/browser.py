"""The client for pages and its types, from the folder that is also published as a package of npm.

In that folder the client is modules by subject, which `wherry.js` exports: Node.js, a page and a file import it as it
is. Here it is served as one module, joined from the unchanged modules, so that a page loads one file.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from importlib.resources.abc import Traversable

from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.api.service import ApiCall
from wherry.wire.http.protocol.message import Answer, Response

TABLE = EndpointGroup("browser")

JAVASCRIPT = "text/javascript; charset=utf-8"
TYPESCRIPT = "application/typescript; charset=utf-8"
KEPT = "max-age=300"
"""Pages ask again after five minutes; the tag shows whether the file changed."""

IMPORT = re.compile(r'^(?:import|export) \{([^}]*)\} from "\./(?:modules/)?(\w+)\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:class|function|const) (\w+))", re.MULTILINE)


@TABLE.add("GET", "/wherry.js", "none", answers={200: (JAVASCRIPT,), 304: None})
async def client_module(call: ApiCall) -> Answer:
    """Get the client for pages, an ES module without dependencies."""
    return _answer(call, "wherry.js", JAVASCRIPT)


@TABLE.add("GET", "/wherry.d.ts", "none", answers={200: (TYPESCRIPT,), 304: None})
async def client_types(call: ApiCall) -> Answer:
    """Get the types of the client for pages."""
    return _answer(call, "wherry.d.ts", TYPESCRIPT)


def _answer(call: ApiCall, name: str, kind: str) -> Answer:
    text, tag = _file(name)
    headers = [("ETag", tag), ("Cache-Control", KEPT), ("X-Content-Type-Options", "nosniff")]
    if name.endswith(".js"):
        headers.append(("X-TypeScript-Types", "/wherry.d.ts"))
    if tag in call.request.headers.get("if-none-match", ""):
        return Response(304, headers=headers)
    return Response(200, [text], kind, headers)


@cache
def _file(name: str) -> tuple[bytes, str]:
    text = bundle() if name == "wherry.js" else (_folder() / name).read_bytes()
    return text, f'"{blake2b(text, digest_size=12).hexdigest()}"'


def bundle() -> bytes:
    """Join `wherry.js` and its modules to one module, each after the modules that it imports.

    No name is used by two modules, which an engine of JavaScript checks: a name that is declared twice is an error.
    """
    entry = (_folder() / "wherry.js").read_text()
    public = {name.strip() for names, _ in IMPORT.findall(entry) for name in names.split(",")}
    joined: dict[str, str] = {}

    def add(module: str) -> None:
        if module in joined:
            return
        text = (_folder() / "modules" / f"{module}.js").read_text()
        for _, needed in IMPORT.findall(text):
            add(needed)
        own = IMPORT.sub("", text).strip()
        joined[module] = EXPORT.sub(lambda found: found[0] if found[1] in public else "", own)

    for _, module in IMPORT.findall(entry):
        add(module)
    return "\n\n".join([IMPORT.sub("", entry).strip(), *joined.values(), ""]).encode()


def _folder() -> Traversable:
    return files("wherry") / "browser"
