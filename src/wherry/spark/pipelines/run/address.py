"""The broker of a command, as Spark and the command reach it."""

from __future__ import annotations

from typing import NamedTuple

from wherry.spark.link import FlightLink

RETRY_S = 5.0


class BrokerAddress(NamedTuple):
    """An address of Arrow Flight, and the key of the client."""

    url: str
    key: str | None = None
    ca: str | None = None

    def options(self, master: str) -> dict[str, str]:
        """Return the options for a load or a save.

        Key and CA are passed in environment variables, except to a Spark that runs with another environment.
        """
        given = {"apiKey": self.key, "ca": self.ca} if master.startswith("sc://") else {}
        return {"url": self.url, **{name: value for name, value in given.items() if value is not None}}

    def link(self) -> FlightLink:
        return FlightLink(self.url, self.key, self.ca, RETRY_S)
