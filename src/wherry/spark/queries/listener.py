"""What Spark calls when a streaming query begins, progresses and ends: hands it to the reporter, returns at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from wherry.spark.queries.reporter import QueryReporter


class QueryListener(StreamingQueryListener):
    """Listens to all streaming queries of a session."""

    def __init__(self, reporter: QueryReporter) -> None:
        self._reporter = reporter

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - the names that Spark calls
        self._reporter.started(str(event.id), event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._reporter.note(str(event.progress.id), "progressed", msgspec.json.decode(event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        self._reporter.note(str(event.id), "idled")

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self._reporter.note(str(event.id), "terminated", event.exception)
