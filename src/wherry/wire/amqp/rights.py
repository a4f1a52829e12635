"""The rights of a client on queues: asked at each call, kept for publishes, and asked again for its consumers.

A right that was withdrawn counts within a tick, and at once where the client renewed its secret: nothing is delivered
to a consumer that could not begin now.
"""

from __future__ import annotations

from collections.abc import Iterable

from wherry.model.catalog.key import Verb
from wherry.model.errors import Forbidden, Unauthorized
from wherry.queueing.hosts.queue import Queue
from wherry.queueing.login import Login
from wherry.queueing.refusals import Reason, Refused, refused


class ClientRights:
    """What one client may do, by its login."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._may_publish: set[str] = set()

    def check(self, verb: Verb, topic: str) -> None:
        """Raise `ACCESS_REFUSED` if the client lacks the right."""
        try:
            self._login.check(verb, topic)
        except (Forbidden, Unauthorized) as fault:
            raise refused(Reason.ACCESS_REFUSED, str(fault)) from None

    def may_any(self, verbs: tuple[Verb, ...], topic: str) -> Verb:
        """Return the first of these rights that the client has; raise `ACCESS_REFUSED` if it has none."""
        for verb in verbs[:-1]:
            try:
                self.check(verb, topic)
            except Refused:
                continue
            return verb
        self.check(verbs[-1], topic)
        return verbs[-1]

    def check_publish(self, targets: Iterable[Queue]) -> None:
        """Raise `ACCESS_REFUSED` if the client may not publish to one of these queues."""
        if self._login.is_open:
            return
        for queue in targets:
            if queue.topic not in self._may_publish:
                self.check("publish", queue.topic)
                self._may_publish.add(queue.topic)

    def forget(self) -> None:
        """Drop what is kept: the rights may have changed."""
        self._may_publish.clear()

    def withdrawn(self, topics: set[str]) -> dict[str, Refused]:
        """Return the topics that the client may not consume any more, each with why."""
        found: dict[str, Refused] = {}
        for topic in () if self._login.is_open else topics:
            try:
                self.check("consume", topic)
            except Refused as fault:
                found[topic] = fault
        return found
