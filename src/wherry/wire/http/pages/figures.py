"""The counts of the broker for whoever looks: once, or as a stream that all viewers share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from time import monotonic

from wherry.model.errors import WherryError
from wherry.wire.http.api.problem import HttpError, problem
from wherry.wire.http.api.routing import Table
from wherry.wire.http.api.sampling import Figures, Sample, cut
from wherry.wire.http.api.service import ApiCall
from wherry.wire.http.endpoints.consume import media_type
from wherry.wire.http.protocol.message import (
    EVENTS,
    JSON,
    Answer,
    Response,
    Stream,
)

TABLE = Table("system")
GIVES = (JSON, EVENTS)

ASKED_S = 15.0
"""After so long it is asked again which topics a viewer may see. That its key is good, at every look."""

WAIT_MS = 60_000


@TABLE.add("GET", "/v1/figures", "consume", asks=True, gives=GIVES, answers={200: {JSON: Figures, EVENTS: None}})
async def figures(call: ApiCall) -> Answer:
    """What the broker counts: of the topics that the caller may consume, and of the broker for who may consume all.

    As server-sent events about once a second: each is an event `figures`, the last one of a stream that the broker ends
    a `problem`. One look serves all viewers, and 64 may watch at a time.
    """
    scope, kind = _Scope(call), media_type(call, GIVES)
    if kind == JSON:
        return Response(200, [scope.cut(await call.service.sampler.look())], JSON, [("Cache-Control", "no-store")])
    call.service.server.begin_wait(call.request)
    chunks = _events(call, scope)
    await anext(chunks)  # too many viewers are refused here; from now on the end of the stream is the end of the viewer
    return Stream(chunks, EVENTS, [("Cache-Control", "no-store")])


async def _events(call: ApiCall, scope: _Scope) -> AsyncIterator[bytes]:
    server, sampler = call.service.server, call.service.sampler
    async with sampler.watched():
        yield b""
        try:
            yield b"event: figures\ndata: %b\n\n" % scope.cut(await sampler.look())
            while not server.closing:
                sample = await server.patiently(sampler.next, WAIT_MS)
                yield b"event: figures\ndata: %b\n\n" % scope.cut(sample)
            raise HttpError("closed", "the broker is closing")
        except WherryError as fault:  # its key is gone, or the broker closes
            (document,) = problem(fault).body
            yield b"event: problem\ndata: %b\n\n" % bytes(document)


class _Scope:
    """What a caller may see."""

    def __init__(self, call: ApiCall) -> None:
        self._call = call
        self._seen: dict[str, bool] = {}
        self._asked_s = monotonic()

    def cut(self, sample: Sample) -> bytes:
        """The part of a look that is theirs; `Unauthorized` when nobody knows them any more."""
        service, request = self._call.service, self._call.request
        if service.may(request, "consume", "*"):
            return sample.whole
        if monotonic() - self._asked_s > ASKED_S:
            self._seen, self._asked_s = {}, monotonic()
        for topic in sample.figures.topics:
            if topic.name not in self._seen:
                self._seen[topic.name] = service.may(request, "consume", topic.name)
        return cut(sample.figures, (name for name, may in self._seen.items() if may))
