"""How far a reader of the log may go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from wherry.core.decide import span
from wherry.core.index.offsets import OffsetSet


class Counted(OffsetSet):
    """A set that knows how often it was asked."""

    __slots__ = ("asked",)

    def missing(self, start: int, stop: int) -> Any:
        self.asked = getattr(self, "asked", 0) + 1
        return super().missing(start, stop)


class Dead:
    """One dead letter, the first message."""

    def __len__(self) -> int:
        return 1

    def has(self, offsets: Any) -> Any:
        return offsets == 0


@pytest.mark.parametrize("count", [1, 100, span.ADVANCE_STEP])
def test_a_search_for_few_messages_skips_settled_ones_in_large_steps(count: int):
    settled = Counted()
    settled.above.add_range(1, 300_000)
    reader: Any = SimpleNamespace(settled=settled, dead=Dead())
    found = span._unsettled(reader, 400_000, count)
    assert settled.asked <= 5
    first_step = min(count, 5 * span.ADVANCE_STEP - 300_000)
    assert found.tolist() == np.arange(300_000, 300_000 + first_step).tolist()
