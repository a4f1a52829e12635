"""The figures of the broker: once, or as a stream that all viewers share."""

from __future__ import annotations

from collections.abc import AsyncIterator

from wherry.model.errors import WherryError
from wherry.wire.http.api.problem import HttpError, problem
from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.api.sampling import FiguresSample, FiguresView, cut
from wherry.wire.http.api.service import ApiCall
from wherry.wire.http.endpoints.consume import media_type
from wherry.wire.http.protocol.message import (
    EVENTS,
    JSON,
    Answer,
    Response,
    Stream,
)

TABLE = EndpointGroup("system")
GIVES = (JSON, EVENTS)

ASKED_S = 15.0
"""How often the topics that a viewer may see are checked again. Its key is checked at every sample."""

WAIT_MS = 60_000


@TABLE.add("GET", "/v1/figures", "consume", asks=True, gives=GIVES, answers={200: {JSON: FiguresView, EVENTS: None}})
async def figures(call: ApiCall) -> Answer:
    """Show figures of the topics that the caller may consume, and of the broker if the caller may consume all topics.

    As server-sent events about once a second: each is an event `figures`, the last one of a stream that the broker ends
    a `problem`. One sample serves all viewers, and there may be 64 viewers at a time.
    """
    scope, kind = _Scope(call), media_type(call, GIVES)
    if kind == JSON:
        return Response(200, [scope.cut(await call.service.sampler.latest())], JSON, [("Cache-Control", "no-store")])
    call.service.server.begin_wait(call.request)
    chunks = _events(call, scope)
    await anext(chunks)  # refuses one viewer too many; from here on, the end of the stream removes the viewer
    return Stream(chunks, EVENTS, [("Cache-Control", "no-store")])


async def _events(call: ApiCall, scope: _Scope) -> AsyncIterator[bytes]:
    server, sampler = call.service.server, call.service.sampler
    async with sampler.watched():
        yield b""
        try:
            yield b"event: figures\ndata: %b\n\n" % scope.cut(await sampler.latest())
            while not server.closing:
                sample = await server.patiently(sampler.next, WAIT_MS)
                yield b"event: figures\ndata: %b\n\n" % scope.cut(sample)
            raise HttpError("closed", "the broker is closing")
        except WherryError as fault:  # the key was deleted, or the broker closes
            (document,) = problem(fault).body
            yield b"event: problem\ndata: %b\n\n" % bytes(document)


class _Scope:
    """The figures that a caller may see."""

    def __init__(self, call: ApiCall) -> None:
        self._call, self._clock = call, call.service.server.clock
        self._seen: dict[str, bool] = {}
        self._asked_s = self._clock()

    def cut(self, sample: FiguresSample) -> bytes:
        """Return the part of a sample that the caller may see; `Unauthorized` when its key was deleted."""
        service, request = self._call.service, self._call.request
        if service.may(request, "consume", "*"):
            return sample.whole
        if self._clock() - self._asked_s > ASKED_S:
            self._seen, self._asked_s = {}, self._clock()
        for topic in sample.figures.topics:
            if topic.name not in self._seen:
                self._seen[topic.name] = service.may(request, "consume", topic.name)
        return cut(sample.figures, (name for name, may in self._seen.items() if may))
