"""`/api` on the HTTP port: what tools of RabbitMQ look at, with the name and password that they have for it."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import unquote

import msgspec

from wherry.model.errors import Forbidden, NotFound, Unauthorized
from wherry.security.access import Access
from wherry.wire.amqp import management
from wherry.wire.amqp.house import House
from wherry.wire.http.app import check_site
from wherry.wire.http.message import JSON, Answer, Request, Response
from wherry.wire.http.problem import HttpError
from wherry.wire.http.server import Server

PREFIX = "/api/"
CONNECTION = PREFIX + "connections/"


class Management:
    """Answers what begins with `/api/`, and passes on the rest."""

    def __init__(self, house: House, access: Access, server: Server) -> None:
        assert server.app is not None
        self._house, self._access, self._server = house, access, server
        self._app, self._gate = server.app, server.gate

    def gate(self, request: Request) -> object:
        """Nobody brings a body here."""
        if not request.path.startswith(PREFIX):
            return self._gate(request)
        self._server.check_page(request)
        check_site(request)
        if request.method not in ("GET", "HEAD") and not self._closes(request):
            text = f"{request.method} is not for {request.path}: {PREFIX} is to look at, and to close connections"
            raise HttpError("method-not-allowed", text)
        if request.brings_body():
            raise HttpError("too-large", f"{PREFIX} takes no body")
        return None

    async def app(self, request: Request) -> Answer:
        """A table as JSON."""
        if not request.path.startswith(PREFIX):
            return await self._app(request)
        self.gate(request)
        request.endpoint = "DELETE /api" if self._closes(request) else "GET /api"
        user, token = _credentials(request)
        if self._closes(request):
            return await self._close(request, token)
        self._may(token, "*")  # who asks must be known, whatever there is to see
        found = management.answer(
            self._house, request.path.removeprefix(PREFIX), user, lambda topic: self._may(token, topic)
        )
        if found is None:
            raise NotFound("path", request.path)
        return Response(body=[msgspec.json.encode(found)], content_type=JSON)

    def _closes(self, request: Request) -> bool:
        return request.method == "DELETE" and request.path.startswith(CONNECTION)

    async def _close(self, request: Request, token: str) -> Answer:
        """For whoever may do everything."""
        self._access.check_token(token, "admin", "*")
        why = request.headers.get("x-reason") or "Closed via management plugin"
        if not await management.close_connection(self._house, unquote(request.path.removeprefix(CONNECTION)), why):
            raise NotFound("connection", request.path.removeprefix(CONNECTION))
        return Response(204)

    def _may(self, token: str, topic: str) -> bool:
        """Whoever may consume a topic sees it; who is not known is refused."""
        try:
            self._access.check_token(token, "consume", topic)
        except Forbidden:
            return topic == "*"  # what is no topic's everybody with a key may see
        return True


def _credentials(request: Request) -> tuple[str, str]:
    """Name and key, as tools of RabbitMQ send them, or the key alone."""
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return "", value.strip()
    if scheme.lower() != "basic":
        return "", ""
    try:
        name, _, secret = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise Unauthorized("the Authorization is no name and password in base64") from None
    return name, secret
