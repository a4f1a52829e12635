"""What all methods have in common.

Each is a value whose annotations are its layout on the wire: the order of the fields is their order in the frame, and
each annotation names the wire type. Every field has a default, so that a caller names only the fields it needs;
reserved fields are kept, so that a decoded method is encoded to the same bytes.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from wherry.wire.amqp.codec.faults import NO_METHOD


class Method(msgspec.Struct, frozen=True, gc=False):
    """One method: subclasses name their class id and method id."""

    ids: ClassVar[tuple[int, int]] = NO_METHOD


def _none() -> dict[str, Any]:
    return {}


def no_entries() -> Any:
    """Return the default of a table: a new empty one for each method."""
    return msgspec.field(default_factory=_none)
