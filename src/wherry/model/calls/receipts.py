"""Receipts: texts that name messages to settle. `77` is a whole lease, `77:12` one message, `77:12-20` a range."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from wherry.model.errors import InvalidInput, LimitReached, StaleLease
from wherry.model.limits import OFFSET_MAX
from wherry.model.ops import from_ranges
from wherry.model.schema import Int64

SETTLED_MAX = 1_000_000
"""Messages that one call may name; a whole lease counts as one here, and has its own bound."""

TOKEN_MAX = (1 << 63) - 1

_RECEIPT = re.compile(r"(?P<token>[0-9]{1,19})(?::(?P<first>[0-9]{1,13})(?:-(?P<last>[0-9]{1,13}))?)?")
_ALLOWED = "lease, lease:offset or lease:first-last, as a pull gave it"


def parse_receipts(texts: Sequence[str]) -> list[tuple[int, Int64 | None]]:
    """Return tokens in order of appearance, each with its sorted distinct offsets, or None for the whole lease."""
    if not texts:
        raise InvalidInput("receipts", list(texts), "at least one receipt")
    ranges: dict[int, list[int]] = {}
    whole: set[int] = set()
    named = 0
    for index, text in enumerate(texts):
        found = _RECEIPT.fullmatch(text)
        if found is None:
            raise InvalidInput(f"receipts[{index}]", text, _ALLOWED)
        token, first = int(found["token"]), int(found["first"] or 0)
        last = int(found["last"] or first)
        if token > TOKEN_MAX or not first <= last <= OFFSET_MAX or last - first >= SETTLED_MAX:
            raise StaleLease(token, f"holds no such messages: {text}")  # no lease can have had these
        named += last - first + 1
        if named > SETTLED_MAX:
            raise LimitReached("what one call may settle", SETTLED_MAX, named)
        spans = ranges.setdefault(token, [])
        if found["first"] is None:
            whole.add(token)
        else:
            spans += (first, last + 1)
    return [(token, None if token in whole else _offsets(spans)) for token, spans in ranges.items()]


def _offsets(spans: list[int]) -> Int64:
    offsets = from_ranges(np.array(spans, np.int64))
    if len(spans) == 2:
        return offsets
    ordered = np.sort(offsets)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])]


def format_receipts(leases: Int64, offsets: Int64) -> list[str]:
    """Return the fewest receipts that name these messages, by lease and offset."""
    if not len(leases):
        return []
    order = np.lexsort((offsets, leases))
    token, offset = leases[order], offsets[order]
    begins = np.concatenate(([True], (np.diff(token) != 0) | (np.diff(offset) > 1)))
    first = np.flatnonzero(begins)
    last = np.concatenate((first[1:], [len(token)])) - 1
    rows = zip(token[first].tolist(), offset[first].tolist(), offset[last].tolist(), strict=True)
    return [f"{lease}:{low}" if low == high else f"{lease}:{low}-{high}" for lease, low, high in rows]
