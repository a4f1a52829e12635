"""Controls a service at run time: pause, resume, drain, change limits. Each answers with the service as it is then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from wherry.model import check
from wherry.model.errors import InvalidInput, NotFound
from wherry.service.method import CONCURRENT_MAX, WAITING_MAX
from wherry.service.providing.running import ProvidedMethod, ProvidedService
from wherry.service.providing.views import ServiceView, view_of
from wherry.wire.http.api.routing import Call, EndpointGroup
from wherry.wire.http.protocol.message import Answer, json_response

if TYPE_CHECKING:
    from wherry.service.providing.rest import RestApp

CONTROL: Final = EndpointGroup("control")


class MethodsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which methods; all of the service if none is named."""

    methods: list[str] = []


class LimitBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """New limits of a method, or of the service without `method`; what is not named stays."""

    method: str | None = None
    max_concurrent: int | None = None
    max_waiting: int | None = None


@CONTROL.add("POST", "/services/{service}/control/pause", "none", body=MethodsBody, answers={200: ServiceView})
async def pause(call: Call[Any]) -> Answer:
    """Pause methods: calls are refused, those under way and those that wait end as they do."""
    return await _set_paused(call, True)


@CONTROL.add("POST", "/services/{service}/control/resume", "none", body=MethodsBody, answers={200: ServiceView})
async def resume(call: Call[Any]) -> Answer:
    """Resume methods; a service that drained accepts calls again, and is announced again."""
    found = call.service.service(call["service"])
    await call.service.check(call.request, found.name)
    if found.is_draining and not call.body.methods:
        await call.service.resume(found.name)
    return await _set_paused(call, False)


@CONTROL.add("POST", "/services/{service}/control/drain", "none", answers={200: ServiceView})
async def drain(call: Call[Any]) -> Answer:
    """Drain a service at this instance: it is withdrawn, calls under way end, new ones go to other instances."""
    found = call.service.service(call["service"])
    await call.service.check(call.request, found.name)
    await call.service.drain(found.name)
    return json_response(view_of(found))


@CONTROL.add("POST", "/services/{service}/control/limit", "none", body=LimitBody, answers={200: ServiceView})
async def limit(call: Call[Any]) -> Answer:
    """Change limits; calls that run already end as they do, and those that wait run if there is room by now."""
    app: RestApp = call.service
    found = app.service(call["service"])
    await app.check(call.request, found.name)
    set_limits(found, call.body)
    app.host.runner.start_waiting(found)
    return json_response(view_of(found))


def set_limits(found: ProvidedService, body: LimitBody) -> None:
    """Change the limits of a service or of one of its methods."""
    if body.max_concurrent is None and body.max_waiting is None:
        raise InvalidInput("max_concurrent", None, "a new limit: max_concurrent, max_waiting or both")
    if body.max_concurrent is not None:
        check.integer("max_concurrent", body.max_concurrent, 1, CONCURRENT_MAX)
    if body.max_waiting is not None:
        check.integer("max_waiting", body.max_waiting, 0, WAITING_MAX)
    if body.method is None:
        if body.max_concurrent is None or body.max_waiting is not None:
            raise InvalidInput("max_waiting", body.max_waiting, "a limit of a method: name one")
        found.throttle.max_concurrent = body.max_concurrent
        return
    room = _method(found, body.method).room
    if body.max_concurrent is not None:
        room.max_concurrent = body.max_concurrent
    if body.max_waiting is not None:
        room.max_waiting = body.max_waiting


def _method(found: ProvidedService, name: str) -> ProvidedMethod:
    method = found.methods.get(name)
    if method is None:
        raise NotFound("method", f"{found.name}.{name}")
    return method


async def _set_paused(call: Call[Any], is_paused: bool) -> Answer:
    found = call.service.service(call["service"])
    await call.service.check(call.request, found.name)
    methods = [_method(found, name) for name in call.body.methods] or list(found.methods.values())
    for method in methods:
        method.is_paused = is_paused
    return json_response(view_of(found))
