"""When a failed message is delivered again. Random numbers are an argument, so that the result is reproducible."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wherry.model.catalog.subscription import Retry
from wherry.model.limits import TIME_MS_MAX

Int64: TypeAlias = npt.NDArray[np.int64]
Float: TypeAlias = npt.NDArray[np.float64]


def delays_ms(policy: Retry, attempts: Int64, entropy: Float) -> Int64:
    """Return the delay after each failed attempt (1 for the first): exponential, capped, spread by jitter.

    `entropy` holds one number in 0..1 for each message.
    """
    with np.errstate(over="ignore"):
        # Bounded before the product is formed: infinity times a first delay of zero is not a number.
        growth = np.minimum(np.power(float(policy.factor), np.maximum(attempts - 1, 0)), float(TIME_MS_MAX))
    plain = np.minimum(policy.first_ms * growth, policy.cap_ms)
    spread = 1.0 + policy.jitter * (2.0 * entropy - 1.0)
    return np.maximum(np.rint(plain * spread), 0).astype(np.int64)


def used_up(policy: Retry, attempts: Int64) -> npt.NDArray[np.bool_]:
    """Return which messages have failed so often that they become dead letters."""
    if policy.attempts is None:
        return np.zeros(len(attempts), np.bool_)
    exhausted: npt.NDArray[np.bool_] = attempts >= policy.attempts
    return exhausted
