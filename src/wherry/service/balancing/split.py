"""An equal split of keys over instances, which depends on nothing but the two sets.

1. Each key ranks the instances by a hash of both (rendezvous hashing) and goes to the first: where an instance is added
   or removed, only the keys that it gains or loses move. The parts are equal only by chance, to some percent.
2. An instance with more than its part keeps the keys that rank it highest, and each of the others goes to the instance
   with room that it ranks highest. Now the parts differ by one at most, and these few keys are all that moves beyond
   what has to.

Which instances get the odd keys is decided by the first step as well: those that have the most. The hashes are fixed:
BLAKE2b for texts, and a finaliser of 64 bits (splitmix64) for pairs, the same in each process, on each machine and in
each version of Python.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

UInt64 = npt.NDArray[np.uint64]
Owners = npt.NDArray[np.intp]


def key_of(text: str) -> int:
    """Return the 64-bit hash of a session or an instance id."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def keys_of(texts: Sequence[str]) -> UInt64:
    """Return the hashes of several texts."""
    return np.array([key_of(each) for each in texts], np.uint64)


def mixed(values: UInt64) -> UInt64:
    """Return each value with all its bits mixed; different values stay different."""
    found = values ^ (values >> np.uint64(30))
    found *= np.uint64(0xBF58476D1CE4E5B9)
    found ^= found >> np.uint64(27)
    found *= np.uint64(0x94D049BB133111EB)
    found ^= found >> np.uint64(31)
    return found


def split(keys: UInt64, instance_ids: Sequence[str]) -> Owners:
    """Return for each key the index of its instance; the numbers of keys of any two instances differ by one at most.

    Parameters
    ----------
    keys
        Hashes, all different, in an order that is the same for all clients.
    instance_ids
        At least one, sorted, all different.

    Examples
    --------
    >>> [int(each) for each in np.bincount(split(keys_of(["s", "t", "u", "v"]), ["a", "b"]))]
    [2, 2]
    """
    seeds = keys_of(instance_ids)
    owners = np.zeros(len(keys), np.intp)
    rank = mixed(keys ^ seeds[0])
    for at in range(1, len(seeds)):
        other = mixed(keys ^ seeds[at])
        better = other > rank
        rank[better] = other[better]
        owners[better] = at
    held = np.bincount(owners, minlength=len(seeds))
    parts = _parts(len(keys), held)
    return _levelled(keys, seeds, owners, _above(owners, rank, held, parts), parts)


def _parts(keys: int, held: Owners) -> Owners:
    """Return how many keys each instance gets; the odd ones go where the most are."""
    parts = np.full(len(held), keys // len(held), np.intp)
    most = np.argsort(-held, kind="stable")
    parts[most[: keys % len(held)]] += 1
    return parts


def _above(owners: Owners, rank: UInt64, held: Owners, parts: Owners) -> Owners:
    """Return the keys beyond the part of their instance: those that rank it lowest, the highest of them first."""
    by_owner = np.lexsort((~rank, owners))
    first = np.cumsum(held) - held
    place = np.empty(len(owners), np.intp)
    place[by_owner] = np.arange(len(owners)) - first[owners[by_owner]]
    above = np.flatnonzero(place >= parts[owners])
    return above[np.argsort(~rank[above], kind="stable")]


def _levelled(keys: UInt64, seeds: UInt64, owners: Owners, above: Owners, parts: Owners) -> Owners:
    kept = np.ones(len(owners), bool)
    kept[above] = False
    room = parts - np.bincount(owners[kept], minlength=len(seeds))
    open_to = np.flatnonzero(room)
    for key in above:
        chosen = open_to[np.argmax(mixed(keys[key] ^ seeds[open_to]))]
        owners[key] = chosen
        room[chosen] -= 1
        if not room[chosen]:
            open_to = open_to[open_to != chosen]
    return owners
