"""The balancers by name, as an option or a configuration names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wherry.model import check
from wherry.service.balancing.balancer import Balancer
from wherry.service.balancing.fastest import Fastest
from wherry.service.balancing.round_robin import RoundRobin
from wherry.service.balancing.set_aside import SetAside
from wherry.service.balancing.sticky import Sticky

KINDS: dict[str, Callable[[], Balancer]] = {"round-robin": RoundRobin, "fastest": Fastest, "sticky": Sticky}


def check_kinds(kinds: str | Mapping[str, str | Balancer]) -> None:
    """Raise `InvalidInput` for the name of a balancer that there is none of."""
    for kind in (kinds,) if isinstance(kinds, str) else kinds.values():
        if isinstance(kind, str):
            check.one_of("balancer", kind, KINDS)


def balancer_of(kind: str | Balancer) -> SetAside:
    """Return a balancer of its own that sets failing instances aside.

    Parameters
    ----------
    kind
        `round-robin`, `fastest`, `sticky`, or a balancer.

    Examples
    --------
    >>> balancer_of("sticky").sticky
    True
    """
    if isinstance(kind, str):
        return SetAside(KINDS[check.one_of("balancer", kind, KINDS)]())
    return kind if isinstance(kind, SetAside) else SetAside(kind)
