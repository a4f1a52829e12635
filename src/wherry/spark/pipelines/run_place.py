"""The broker that a command works at, as Spark and we reach it."""

from __future__ import annotations

import os
from typing import NamedTuple
from urllib.parse import urlsplit

from wherry.spark.link import Link

FLIGHT_PORT = 7072
RETRY_S = 5.0


class Place(NamedTuple):
    """An address of Arrow Flight, and who asks."""

    url: str
    key: str | None = None
    ca: str | None = None

    def options(self, master: str) -> dict[str, str]:
        """For a load or a save. The key goes by the environment, except to a Spark that does not have ours."""
        secret = {"apiKey": self.key} if self.key is not None and master.startswith("sc://") else {}
        return {"url": self.url, **secret}

    def link(self) -> Link:
        return Link(self.url, self.key, self.ca, RETRY_S)


def flight_url(url: str, given: str | None = None) -> str:
    """Where Arrow Flight is: as told, as the environment says, else beside the broker's HTTP.

    Examples
    --------
    >>> flight_url("https://queue.example:7070")
    'grpc+tls://queue.example:7072'
    """
    told = given or os.environ.get("WHERRY_FLIGHT_URL")
    if told:
        return told
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{'grpc+tls' if parts.scheme == 'https' else 'grpc'}://{host or '127.0.0.1'}:{FLIGHT_PORT}"
