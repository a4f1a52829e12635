"""Which topics of this node flow: each link asks each second, so they are looked up when the catalog changes."""

from __future__ import annotations

from wherry.broker.port.port import BrokerPort


class FlowTopics:
    """The names of the `flow` topics of a broker, sorted."""

    def __init__(self, broker: BrokerPort) -> None:
        self._broker = broker
        self._changes = -1
        self._names: list[str] = []

    def names(self) -> list[str]:
        """Return the names of now."""
        changes = self._broker.catalog.changes
        if changes != self._changes:
            self._names = [topic.name for topic in self._broker.topics() if topic.flows]
            self._changes = changes
        return self._names
