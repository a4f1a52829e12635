"""The endpoints of the native wire on the HTTP port: the upgrade, and the view of its sessions."""

from __future__ import annotations

from typing import Annotated

import msgspec

from wherry.model.errors import InvalidInput
from wherry.node.native import views
from wherry.node.native.application import ClientApplication
from wherry.node.native.views import NativeView
from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.api.service import ApiCall
from wherry.wire.http.api.terms import json_schema
from wherry.wire.http.app import App
from wherry.wire.http.protocol.message import Answer, Request, Response, json_response
from wherry.wire.native.codec.frames import PATH, PROTOCOL
from wherry.wire.native.connection import Connection
from wherry.wire.native.sessions import Sessions


class NativeKey(msgspec.Struct, forbid_unknown_fields=True):
    """Another key for a connection."""

    key: Annotated[str, json_schema(maxLength=16_384, pattern="^[!-~]+$")]


class NativeEndpoints:
    """The endpoints, over the sessions of one node."""

    def __init__(self, app: App, sessions: Sessions) -> None:
        self._app, self._sessions = app, sessions
        self._applications: dict[int, ClientApplication] = {}
        """By the number of their connection, those of open connections."""

    def table(self) -> EndpointGroup:
        """Return all endpoints, for the server of the port."""
        table = EndpointGroup("wire")
        table.add("GET", PATH, "publish", asks=True, answers={101: None})(self.open_native_wire)
        table.add("GET", PATH + "/sessions", "admin", answers={200: NativeView})(self.list_native_sessions)
        table.add("PUT", PATH + "/key", "publish", asks=True, body=NativeKey, answers={204: None})(
            self.renew_native_key
        )
        return table

    async def open_native_wire(self, call: ApiCall) -> Answer:
        """Open the native wire, by `Connection: Upgrade` and `Upgrade: wherry/1`.

        The connection carries frames from then on. Any key may open it; each call needs its own rights.
        """
        check_upgrade(call.request)
        application = ClientApplication(self._app, call.request, lambda number: self._applications.pop(number, None))
        self._applications[application.number] = application
        return Connection(self._sessions, application)

    async def renew_native_key(self, call: ApiCall) -> Answer:
        """Use another key for this connection of the native wire: a newer access token of the same name.

        Sent on the connection itself, so that it outlives the token that it began with.
        """
        application = self._applications.get(call.request.connection)
        if application is None:
            raise InvalidInput("connection", "HTTP", "a call on the native wire")
        await application.renew(call.body.key)
        return Response(204)

    async def list_native_sessions(self, call: ApiCall) -> Answer:
        """Sessions of the native wire, what they hold, and the last that were cut off."""
        return json_response(views.seen(self._sessions), headers=[("Cache-Control", "no-store")])


def check_upgrade(request: Request) -> None:
    """Raise `InvalidInput` unless a request asks for the native wire."""
    offered = [each.strip().lower() for each in request.headers.get("upgrade", "").split(",")]
    wishes = [each.strip().lower() for each in request.headers.get("connection", "").split(",")]
    if PROTOCOL not in offered:
        raise InvalidInput("Upgrade", request.headers.get("upgrade"), PROTOCOL)
    if "upgrade" not in wishes:
        raise InvalidInput("Connection", request.headers.get("connection"), "Upgrade")
    if request.method != "GET":
        raise InvalidInput("method", request.method, "GET")
