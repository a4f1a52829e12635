"""Metrics for Prometheus."""

from __future__ import annotations

from wherry.wire.http.api.problem import HttpError
from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.api.service import ApiCall
from wherry.wire.http.protocol.message import Answer, Response, accepted

TABLE = EndpointGroup("system")

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
GIVES = (TEXT, OPENMETRICS)


@TABLE.add("GET", "/metrics", "consume", gives=GIVES, answers={200: GIVES})
async def metrics(call: ApiCall) -> Answer:
    """Get the metrics of this broker in the format of Prometheus.

    They name topics and subscriptions, so where there are keys the caller's key must be allowed to consume all of them.
    """
    known = call.service.broker.metrics
    if known is None:
        raise HttpError("not-found", "this broker keeps no figures; one that `wherry serve` starts does")
    kind = accepted(call.request.headers.get("accept", ""), GIVES) or TEXT
    return Response(200, [await known.text(openmetrics=kind == OPENMETRICS)], kind)
