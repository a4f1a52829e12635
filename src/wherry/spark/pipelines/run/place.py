"""The broker that a command works at, as Spark and we reach it."""

from __future__ import annotations

from typing import NamedTuple

from wherry.spark.link import Link

RETRY_S = 5.0


class Place(NamedTuple):
    """An address of Arrow Flight, and who asks."""

    url: str
    key: str | None = None
    ca: str | None = None

    def options(self, master: str) -> dict[str, str]:
        """For a load or a save. Key and CA go by the environment, except to a Spark that does not have ours."""
        given = {"apiKey": self.key, "ca": self.ca} if master.startswith("sc://") else {}
        return {"url": self.url, **{name: value for name, value in given.items() if value is not None}}

    def link(self) -> Link:
        return Link(self.url, self.key, self.ca, RETRY_S)
