"""The streaming queries of Spark over HTTP: drivers put reports, viewers list them."""

from __future__ import annotations

import msgspec

from wherry.model import check, limits
from wherry.node.queries.reports import QueryReport, QueryReports, QueryView
from wherry.wire.http.api.routing import EndpointGroup
from wherry.wire.http.api.service import ApiCall
from wherry.wire.http.protocol.message import Answer, Response, json_response


class QueryList(msgspec.Struct):
    """The streaming queries that have reported in the last hour."""

    queries: list[QueryView]


class QueryEndpoints:
    """Where drivers of Spark report, and where the reports are read."""

    def __init__(self, reports: QueryReports) -> None:
        self._reports = reports

    def table(self) -> EndpointGroup:
        """Return the endpoints, for the server of the port."""
        table = EndpointGroup("system")
        table.add("PUT", "/v1/queries/{query}", "consume", body=QueryReport, asks=True, answers={204: None})(self.put)
        table.add("GET", "/v1/queries", "consume", asks=True, answers={200: QueryList})(self.list)
        return table

    async def put(self, call: ApiCall) -> Answer:
        """Report a streaming query of Spark. The query is shown for an hour after its last report."""
        query, report = check.graphic("query", call["query"], limits.QUERY_ID_CHARS_MAX), call.body.checked()
        for topic in report.positions:
            call.service.guard(call.request, "consume", topic)
        self._reports.take(query, report)
        return Response(204)

    async def list(self, call: ApiCall) -> Answer:
        """List the streaming queries of Spark that read topics which the caller may consume."""
        call.service.caller(call.request)
        found = [
            self._reports.view(query)
            for query, report in self._reports.all().items()
            if all(call.service.may(call.request, "consume", topic) for topic in report.positions)
        ]
        found.sort(key=lambda view: (view.name, view.id))
        return json_response(QueryList(found), headers=[("Cache-Control", "no-store")])
