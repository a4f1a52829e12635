"""The connection to the broker: the Python client, and plain JSON for listings."""

from __future__ import annotations

from ssl import SSLContext
from types import TracebackType
from typing import Any

import msgspec

from wherry.client.client import Client
from wherry.client.link.address import Address
from wherry.client.link.transport import JSON, ClientRequest, ClientResponse
from wherry.client.native.transport import NativeTransport
from wherry.client.requests import Caller, encoded, parsed, path
from wherry.model.errors import NotFound

NDJSON = "application/x-ndjson"


_ROW: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


class BrokerLink:
    """One transport, used by the client and for plain JSON."""

    def __init__(self, url: str, key: str | None, tls: SSLContext | None = None) -> None:
        transport = NativeTransport(Address.parse(url), key, tls=tls)
        self.client = Client(transport)
        self._caller = Caller(transport)

    async def __aenter__(self) -> BrokerLink:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.close()

    async def send(self, method: str, target: str, body: object = None, wait_s: float = 0.0) -> ClientResponse:
        """Send a request to any target; the broker may hold it for `wait_s`."""
        content = () if body is None else [encoded(body)]
        return await self._caller.send(
            ClientRequest(method, target, content, "" if body is None else JSON, wait_s=wait_s)
        )

    async def call(self, method: str, *parts: str, body: object = None, wait_s: float = 0.0, **query: object) -> Any:
        """Send JSON to a path under `/v1`; return the JSON answer, None if it has no body."""
        answer = await self.send(method, path(*parts, **query), body, wait_s)
        return parsed(answer, Any) if len(answer.body) else None

    async def rows(self, *parts: str, limit: int | None = None, **query: object) -> list[dict[str, Any]]:
        """Return messages as rows with the fields of docs/http.md, from all pages."""
        pages = self._caller.pages(parts, query, NDJSON, limit, lambda page: len(_lines(page)))
        return [row async for page in pages for row in _lines(page)]

    async def alive(self) -> dict[str, Any]:
        """Return the broker's `/v1` answer about itself; raise `Unavailable` at once if nothing answers."""
        found = await self.send("GET", "/v1")
        return parsed(found, dict[str, Any])

    async def exists(self, *parts: str) -> Any:
        """Return the resource at a path, or None."""
        try:
            return await self.call("GET", *parts)
        except NotFound:
            return None


def _lines(page: ClientResponse) -> list[dict[str, Any]]:
    return _ROW.decode_lines(memoryview(page.body))
