"""Broken rules of the native wire: which side broke which rule."""

from __future__ import annotations

from typing import Literal, TypeAlias

from wherry.model.errors import InvalidInput

Side: TypeAlias = Literal["client", "server"]


class WireFault(InvalidInput):
    """A frame that breaks a rule: which side sent it, which field is wrong, what was given and what is allowed."""

    def __init__(self, side: Side, field: str, given: object, allowed: str) -> None:
        super().__init__(field, given, allowed)
        self.side: Side = side
        """The side that sent the frame."""
        self.args = (f"the {side} broke the protocol: {self}",)
