"""`/api` on the HTTP port: RabbitMQ's management interface for its tools, with a user's name and password."""

from __future__ import annotations

import asyncio
import base64
import binascii

import msgspec

from wherry.model.errors import Forbidden, InvalidInput, NotFound, TooLarge, Unauthorized
from wherry.queueing.login import GUEST, Login
from wherry.queueing.queueing import Queueing
from wherry.queueing.refusals import Reason, Refused
from wherry.security.access import Access
from wherry.wire.amqp.management import paths
from wherry.wire.amqp.management.asking import ManagementAnswer, ManagementCall
from wherry.wire.http.api.problem import STATUS_OF, HttpError
from wherry.wire.http.api.sites import check_site
from wherry.wire.http.app import App
from wherry.wire.http.protocol.message import (
    JSON,
    Answer,
    Request,
    Response,
    json_response,
    segments,
)

PREFIX = "/api/"

TAGS = frozenset({"management", "policymaker", "monitoring", "administrator"})
"""Tags of a user; a user without one of them is refused, as on RabbitMQ."""

_WORDS = {400: "bad_request", 401: "not_authorized", 403: "not_authorized", 404: "Object Not Found"}
"""RabbitMQ's names of errors."""

_STATUS = {Reason.NOT_FOUND: 404, Reason.ACCESS_REFUSED: 403}


class Management:
    """Answers paths that begin with `/api/`."""

    def __init__(self, queueing: Queueing, access: Access, app: App, *, any_user: bool = False) -> None:
        self._queueing, self._access, self._any_user = queueing, access, any_user
        self._app = app

    def admit(self, request: Request) -> None:
        """Refuse a request before its body is read: no login, an unknown path, a GET with a body (see `Mounted`)."""
        self._find(request)
        if request.brings_body():
            self._login(request)

    def _find(self, request: Request) -> paths.Change | None:
        """Return the function for a call that changes something; None for one that reads."""
        self._app.check_page(request)
        check_site(request)
        if request.method in ("GET", "HEAD"):
            if request.brings_body():
                raise HttpError("too-large", f"{request.method} /api takes no body")
            return None
        call = paths.change(request.method, _parts(request))
        if call is None:
            raise HttpError("method-not-allowed", f"{request.method} is not for {request.path[:200]}")
        request.body_max = paths.body_max(call)
        return call

    async def answer(self, request: Request) -> Answer:
        """Answer a request: a table as JSON, or the result of a change (see `Mounted`)."""
        call = self._find(request)
        request.endpoint = f"{request.method} /api"
        try:
            ask = self._ask(request)
            return _response(ManagementAnswer(200, paths.read(ask)) if call is None else await call(ask))
        except Refused as fault:
            return _failed(_STATUS.get(fault.reason, 400), fault.detail)
        except Unauthorized as fault:
            return await self._refused_login(request, fault)
        except (Forbidden, NotFound, InvalidInput, TooLarge) as fault:
            return _failed(STATUS_OF[fault.code], str(fault))
        except RecursionError:
            return _failed(400, "what was sent is nested too deep")

    async def _refused_login(self, request: Request, fault: Unauthorized) -> Response:
        if fault.pause_s:
            self._app.server.begin_wait(request)  # wrong guesses must not use up the room for requests of others
            await asyncio.sleep(fault.pause_s)
        return _failed(401, str(fault))

    def _ask(self, request: Request) -> ManagementCall:
        login = self._login(request)
        request.caller = "" if login.is_open else login.user
        raw = bytes(memoryview(request.body))
        query = dict(request.arguments())
        return ManagementCall(self._queueing, login, _parts(request), query, raw, request.headers.get("x-reason", ""))

    def _login(self, request: Request) -> Login:
        """Return the user of a request, as over AMQP; without keys, a request without a name is `guest`."""
        login = Login(self._access, None, any_user=self._any_user, peer=request.peer)
        name, secret = _credentials(request)
        if not name and login.is_open:
            name = secret = GUEST
        login.enter("PLAIN", name, secret)
        if TAGS.isdisjoint(login.tags):
            raise Unauthorized(
                f"{login.user!r} is no management user: it has none of the tags {', '.join(sorted(TAGS))}"
            )
        return login


def _parts(request: Request) -> list[str]:
    return segments(request.path.removeprefix(PREFIX))


def _response(reply: ManagementAnswer) -> Response:
    headers = [("Location", reply.location)] if reply.location else []
    if reply.value is None:
        return Response(reply.status, headers=headers)
    return json_response(reply.value, reply.status, headers)


def _failed(status: int, why: str) -> Response:
    """Return an error as tools of RabbitMQ read it."""
    document = {"error": _WORDS.get(status, "error"), "reason": why.encode("utf-8", "replace").decode()}
    headers = [("WWW-Authenticate", 'Basic realm="RabbitMQ Management"')] if status == 401 else []
    return Response(status, [msgspec.json.encode(document)], JSON, headers)


def _credentials(request: Request) -> tuple[str, str]:
    """Return name and key, as tools of RabbitMQ send them, or the key alone."""
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
