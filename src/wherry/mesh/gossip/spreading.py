"""What is to be spread, and how often it was sent. Decides what goes into the next packet; an update ends by sending.

What was sent least goes first, so that a new update is not held up by old ones. Each update is sent a number of times
that grows with the logarithm of the members; a newer one about the same member takes the place of the older. Claims go
before listings, since a listing of a member that nobody knows is of no use.
"""

from __future__ import annotations


class Spreading:
    """The updates that one member still sends, as items of packets."""

    def __init__(self) -> None:
        self._by_count: tuple[list[dict[str, bytes]], ...] = ([{}], [{}])
        """For claims and listings: by how often they were sent, the items by name of the member."""

    def claim(self, name: str, item: bytes) -> None:
        """Spread a claim about a member, in place of an older one."""
        self._add(self._by_count[0], name, item)

    def listing(self, name: str, item: bytes) -> None:
        """Spread the listing of a member, in place of an older one."""
        self._add(self._by_count[1], name, item)

    def drop_listing(self, name: str) -> None:
        """Spread no listing of a member any more: a newer one is too large for packets."""
        for items in self._by_count[1]:
            items.pop(name, None)

    @property
    def is_empty(self) -> bool:
        """Return whether everything was sent often enough."""
        return not any(items for counts in self._by_count for items in counts)

    def __len__(self) -> int:
        return sum(len(items) for counts in self._by_count for items in counts)

    def take(self, room: int, transmissions: int) -> list[bytes]:
        """Return items of at most `room` bytes together, and count them as sent once more."""
        taken: list[bytes] = []
        for counts in self._by_count:
            room = _take(counts, room, transmissions, taken)
        return taken

    def _add(self, counts: list[dict[str, bytes]], name: str, item: bytes) -> None:
        for items in counts:
            items.pop(name, None)
        counts[0][name] = item


def _take(counts: list[dict[str, bytes]], room: int, transmissions: int, taken: list[bytes]) -> int:
    """Move items that fit up by one count; return the room that is left."""
    moved: list[tuple[int, str, bytes]] = []
    for count, items in enumerate(counts):
        chosen = []
        for name, item in items.items():
            if len(item) <= room:
                room -= len(item)
                chosen.append(name)
            elif room < 64:  # less than any item has
                break
        for name in chosen:
            item = items.pop(name)
            taken.append(item)
            if count + 1 < transmissions:
                moved.append((count + 1, name, item))
    for count, name, item in moved:
        while len(counts) <= count:
            counts.append({})
        counts[count][name] = item
    return room
