"""A service as REST, the command line and the console show it."""

from __future__ import annotations

from typing import Any

import msgspec

from wherry.service.providing.running import ProvidedMethod, ProvidedService


class MethodView(msgspec.Struct, frozen=True, kw_only=True):
    """A method at one instance. `argument` and `result` are JSON schemas; null for bytes."""

    name: str
    summary: str
    paused: bool
    idempotent: bool
    max_concurrent: int
    max_waiting: int
    running: int
    running_most: int
    waiting: int
    calls: dict[str, int]
    """How many calls ended in which way."""
    hedges: int
    """How many calls came since another instance was slow."""
    p50_ms: float
    p99_ms: float
    argument: dict[str, Any] | None = None
    result: dict[str, Any] | None = None


class ServiceView(msgspec.Struct, frozen=True, kw_only=True):
    """A service at one instance."""

    service: str
    draining: bool
    max_concurrent: int
    running: int
    waiting: int
    methods: list[MethodView]


class ServiceListView(msgspec.Struct, frozen=True, kw_only=True):
    """What one process provides."""

    instance: str
    services: list[ServiceView]


def view_of(provided: ProvidedService, *, with_types: bool = False) -> ServiceView:
    """Return what is shown of a service."""
    return ServiceView(
        service=provided.name,
        draining=provided.is_draining,
        max_concurrent=provided.throttle.max_concurrent,
        running=provided.throttle.running,
        waiting=provided.throttle.waiting,
        methods=[_method(each, with_types) for each in provided.methods.values()],
    )


def _method(provided: ProvidedMethod, with_types: bool) -> MethodView:
    room, declared, statistics = provided.room, provided.method, provided.statistics
    return MethodView(
        name=declared.name,
        summary=declared.summary,
        paused=provided.is_paused,
        idempotent=declared.idempotent,
        max_concurrent=room.max_concurrent,
        max_waiting=room.max_waiting,
        running=room.running,
        running_most=room.running_most,
        waiting=len(room.waiting),
        calls=statistics.counts(),
        hedges=provided.hedges,
        p50_ms=round(statistics.quantile_s(0.5) * 1000, 4),
        p99_ms=round(statistics.quantile_s(0.99) * 1000, 4),
        argument=declared.argument.schema() if with_types and declared.has_argument else None,
        result=declared.result.schema() if with_types else None,
    )
