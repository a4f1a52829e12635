"""How long to wait before the next try: twice as long after each failure, up to a bound.

Pure: chance, by which clients that failed together do not come back together, is for each place to add.
"""

from __future__ import annotations

DOUBLINGS_MAX = 64
"""Beyond it any pause is at its bound; the power stays a number that can be computed."""


def growing(first_s: float, most_s: float, failures: int) -> float:
    """Return the pause after so many failures in a row before this one.

    Examples
    --------
    >>> [growing(0.5, 30.0, failures) for failures in (0, 1, 2, 10_000)]
    [0.5, 1.0, 2.0, 30.0]
    """
    return min(most_s, first_s * 2.0 ** min(failures, DOUBLINGS_MAX))
