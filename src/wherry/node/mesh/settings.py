"""What the mesh is told: the configuration, as values of its own kind."""

from __future__ import annotations

import msgspec

from wherry.model.catalog.subscription import Role
from wherry.node.mesh.at_peer import Backlog


class MeshSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The name and role of this node, the addresses that it knows, and how often it announces itself and looks."""

    node: str
    role: Role = "hub"
    addresses: tuple[str, ...] = ()
    discover: bool = False
    trusted: tuple[str, ...] | None = None
    """Patterns of addresses that may be connected to because a record says so; None for all."""
    announce_s: float = 5.0
    look_s: float = 0.5
    backlog: Backlog = Backlog()
