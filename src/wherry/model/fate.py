"""What can become of a message, in words and as numbers. The numbers are in checkpoints: none ever changes."""

from __future__ import annotations

from typing import Final

FATES: Final = ("waiting", "scheduled", "delivered", "settled", "dead", "cancelled", "expired", "dropped", "gone")
"""By number. From `settled` on it is over, though people may send a dead letter back."""

WAITING, SCHEDULED, DELIVERED, SETTLED, DEAD, CANCELLED, EXPIRED, DROPPED, GONE = range(len(FATES))
