"""What a balancer is: it chooses the instance of the next call; the client reports to it when calls begin and end.

It never reads a clock, draws a number or waits: `now` in seconds and `chance` come from the caller, so that a run can
be replayed. One balancer serves one service of one client.
"""

from __future__ import annotations

from typing import Protocol

from wherry.mesh.instance import Instance
from wherry.model.errors import InvalidInput


class Balancer(Protocol):
    """Chooses instances.

    The caller reports each call that it makes: `began` before it is sent and `ended` once, however it ended.
    """

    @property
    def sticky(self) -> bool:
        """Return whether each session has an instance of its own: its calls must not be sent elsewhere as a probe."""

    def choose(self, instances: tuple[Instance, ...], *, session: str | None, chance: float, now: float) -> Instance:
        """Return the instance for the next call.

        Parameters
        ----------
        instances
            At least one, sorted by id; the same object until they change, as `Roster.of` gives them.
        session
            The session that the call belongs to, for balancers that keep sessions together.
        chance
            Drawn evenly from 0 up to and without 1.
        now
            Seconds of a clock that never goes back.
        """

    def began(self, instance_id: str, now: float) -> None:
        """Note that a call is sent to this instance."""

    def ended(self, instance_id: str, now: float, seconds: float, ok: bool | None) -> None:
        """Note that a call ended.

        Parameters
        ----------
        instance_id
            The instance that got the call.
        now
            The same clock as in `choose`.
        seconds
            How long the call took: `now` less the `now` of its `began`.
        ok
            False if the instance is to blame: it could not be reached, gave no answer in time, or refused. An error
            that the method itself answered is an answer. None if the call says nothing of the instance: its caller
            gave it up, or it was refused for its method alone; then `seconds` is a lower bound.
        """


def check_instances(instances: tuple[Instance, ...]) -> None:
    """Raise `InvalidInput` if there is nothing to choose from."""
    if not instances:
        raise InvalidInput("instances", instances, "at least one instance")
