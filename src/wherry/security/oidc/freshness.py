"""When to ask a provider for its keys, and how long those that it gave may be used. Pure: instants are arguments.

asked ──ok──► due again after max-age, between a minute and an hour
  ▲    └─not──► due again after 1, 2, 4 … 30 s; the keys stay good until `kept_s` after they were fetched
  └── at once for a key that is not known, at most once in `refetch_s`
"""

from __future__ import annotations

from wherry.model.pauses import growing

REFRESH_S, REFRESH_S_MIN, REFRESH_S_MAX = 300.0, 60.0, 3_600.0
"""Between two fetches: where the provider states no max-age, and the bounds on what it states."""

RETRY_S, RETRY_S_MAX = 1.0, 30.0


class Freshness:
    """What is known of the keys' age. Instants in seconds of one monotonic clock."""

    def __init__(self, kept_s: float, refetch_s: float) -> None:
        self._kept_s, self._refetch_s = kept_s, refetch_s
        self._asked_at: float | None = None
        self.fetched_at: float | None = None
        """When the provider last gave its keys; None for never."""
        self.due_at = 0.0
        """When to ask again."""
        self.failures = 0
        """Fetches that failed, since the last that did not."""

    def ask(self, now: float) -> None:
        """Note that the provider is asked."""
        self._asked_at = now

    def succeed(self, now: float, max_age_s: float | None) -> None:
        """Note that the provider gave its keys."""
        wished = REFRESH_S if max_age_s is None else max_age_s
        self.fetched_at, self.failures = now, 0
        self.due_at = now + min(max(wished, REFRESH_S_MIN), REFRESH_S_MAX, self._kept_s / 2)

    def fail(self, now: float) -> None:
        """Note that the provider did not answer, or gave no keys."""
        self.due_at = now + growing(RETRY_S, RETRY_S_MAX, self.failures)
        self.failures += 1

    def is_good(self, now: float) -> bool:
        """Return whether the keys may be used."""
        return self.fetched_at is not None and now - self.fetched_at < self._kept_s

    def may_ask(self, now: float) -> bool:
        """Return whether the provider may be asked before it is due, since a token names a key that is not known."""
        return self._asked_at is None or now - self._asked_at >= self._refetch_s
