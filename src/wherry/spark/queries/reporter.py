"""Sends reports of queries to a node, in a thread of its own. It never waits for the node in a thread of Spark."""

from __future__ import annotations

import http.client
import logging
import os
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from wherry.model.errors import InvalidInput
from wherry.spark.queries.tally import QueryTally

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("wherry.spark")

URL = "http://127.0.0.1:7070"
EVERY_S = 10.0
"""Seconds between two reports of a query without anything new, so that the node knows that the query lives."""
PAUSE_S = 0.5
"""Seconds between two rounds of reports, however short the micro-batches are."""
ANSWER_S = 5.0
QUERIES_MAX = 200
"""Queries that are reported at a time; later ones are not."""


class QueryReporter:
    """Keeps a tally of each query, and sends what is new."""

    def __init__(self, url: str, key: str | None, ca: str | None) -> None:
        self._url, self._key = url.rstrip("/"), key
        try:
            self._tls = ssl.create_default_context(cafile=ca) if url.startswith("https:") else None
        except (OSError, ssl.SSLError) as fault:
            raise InvalidInput("ca", ca, f"a file of PEM certificates ({fault})") from None
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._tallies: dict[str, QueryTally] = {}
        self._new: set[str] = set()
        self._end = threading.Event()
        self._warned: set[str] = set()
        """Queries whose last report was not taken: one warning for each, until a report is taken."""
        self.remove_listener: Callable[[], None] = lambda: None
        """Removes the listener from the session."""
        self.sent = 0
        """Reports that the node has taken."""
        self._thread = threading.Thread(target=self._run, name="wherry reports", daemon=True)
        self._thread.start()

    def started(self, query: str, name: str | None) -> None:
        """Note a query that begins."""
        with self._lock:
            self._tally(query, name)

    def note(self, query: str, what: str, *given: Any) -> None:
        """Call a method of the tally of a query, and have the report sent soon."""
        with self._lock:
            tally = self._tallies.get(query) or self._tally(query, None)  # it may have begun before the reports
            if tally is not None:
                getattr(tally, what)(*given)
                self._new.add(query)
        self._wake.set()

    def _tally(self, query: str, name: str | None) -> QueryTally | None:
        """Begin a tally, in place of one that is over where there are too many; None if all of these run."""
        if len(self._tallies) >= QUERIES_MAX:
            over = next((known for known, tally in self._tallies.items() if tally.is_over), None)
            if over is None:
                return None
            del self._tallies[over]
        self._tallies[query] = QueryTally(name or query)
        return self._tallies[query]

    def close(self, timeout_s: float = ANSWER_S) -> None:
        """Leave the session, send what is new a last time, and end the thread."""
        with suppress(Exception):  # of any kind: the session may have stopped before
            self.remove_listener()
        self._end.set()
        self._wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        all_at = time.monotonic()
        while not self._end.is_set():
            self._wake.wait(EVERY_S)
            self._wake.clear()
            is_time = time.monotonic() - all_at >= EVERY_S
            all_at = time.monotonic() if is_time else all_at
            self._send_all(everything=is_time)
            self._end.wait(PAUSE_S)
        self._send_all(everything=False)

    def _send_all(self, *, everything: bool) -> None:
        """Send the reports of queries about which there is something new, or of all; forget those that are over.

        A report that the node did not take is sent again in the next round.
        """
        with self._lock:
            chosen = list(self._tallies) if everything else [query for query in self._new if query in self._tallies]
            self._new.clear()
            found = [(query, self._tallies[query].report(), self._tallies[query].is_over) for query in chosen]
        for query, report, is_over in found:
            taken = report is None or self._send(query, report)
            with self._lock:
                if not taken:
                    self._new.add(query)
                elif is_over:
                    self._tallies.pop(query, None)

    def _send(self, query: str, report: dict[str, Any]) -> bool:
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        target = f"{self._url}/v1/queries/{urllib.parse.quote(query, safe='')}"
        try:
            request = urllib.request.Request(target, msgspec.json.encode(report), headers, method="PUT")
            with urllib.request.urlopen(request, timeout=ANSWER_S, context=self._tls):
                self.sent += 1
                self._warned.discard(query)
                return True
        except (OSError, ValueError, http.client.HTTPException) as fault:  # also each answer that is an error
            if query not in self._warned and len(self._warned) < QUERIES_MAX:
                self._warned.add(query)
                _log.warning("query %s is not reported to %s: %s", report["name"], self._url, fault)
            return False


def report_queries(
    spark: SparkSession, url: str | None = None, *, key: str | None = None, ca: str | None = None
) -> QueryReporter:
    """Report the streaming queries of a session to a node, for its metrics and the page Pipelines of its console.

    Parameters
    ----------
    url, key, ca
        The HTTP address of the node, the API key, and a file of the certificates to trust; by default `WHERRY_URL` or
        `http://127.0.0.1:7070`, `WHERRY_KEY` and `WHERRY_CA`.

    Returns
    -------
    QueryReporter
        Its `close` sends what is new and ends the thread that sends the reports.

    Examples
    --------
    >>> reporter = report_queries(spark)  # doctest: +SKIP
    """
    from wherry.spark.queries.listener import QueryListener  # noqa: PLC0415 - it imports pyspark, an extra

    environ = os.environ.get
    chosen = url or environ("WHERRY_URL") or URL
    if not chosen.startswith(("http://", "https://")):
        raise InvalidInput("url", chosen, f"the HTTP address of a node, such as {URL}")
    reporter = QueryReporter(chosen, key or environ("WHERRY_KEY") or None, ca or environ("WHERRY_CA") or None)
    listener = QueryListener(reporter)
    spark.streams.addListener(listener)
    reporter.remove_listener = lambda: spark.streams.removeListener(listener)
    return reporter
