"""API keys: who may do what to which topics. The secret of a key is never here, only its hash."""

from __future__ import annotations

from typing import Literal

import msgspec

from wherry.model import check, limits
from wherry.model.errors import InvalidInput

Verb = Literal["publish", "consume", "admin"]
VERBS: tuple[Verb, ...] = ("publish", "consume", "admin")

ID_CHARS = 8
DIGEST_BYTES = 32
RIGHTS_MAX = 64


class Right(msgspec.Struct, frozen=True):
    """A verb on the topics that fit a pattern, in which `*` is any run of characters, none included."""

    verb: Verb
    topics: str

    def check(self) -> None:
        """`InvalidInput` for the first field that breaks a rule."""
        check.one_of("right.verb", self.verb, VERBS)
        check.name("right.topics", self.topics, limits.TOPIC_NAME_BYTES_MAX)

    def allows(self, verb: Verb, topic: str) -> bool:
        """Whether it covers a call. Who may administer a topic may publish to it and consume from it."""
        return self.verb in (verb, "admin") and fits(self.topics, topic)


class Key(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key as the broker keeps it.

    Parameters
    ----------
    id
        The public part: 8 letters and digits, by which the key is found, listed and deleted.
    digest
        SHA-256 of the secret.
    name
        Whose it is, for people and for the record of who did what.
    rights
        What it allows, 1 to 64 of them.
    expires_ms
        From when on it is refused; None for never.
    """

    id: str
    digest: bytes
    name: str
    rights: tuple[Right, ...]
    created_ms: int
    expires_ms: int | None = None

    def checked(self) -> Key:
        """This key, or `InvalidInput` for the first field that breaks a rule."""
        if not isinstance(self.id, str) or len(self.id) != ID_CHARS or not (self.id.isascii() and self.id.isalnum()):
            raise InvalidInput("key", self.id, f"{ID_CHARS} letters and digits")
        if not isinstance(self.digest, bytes) or len(self.digest) != DIGEST_BYTES:
            raise InvalidInput("digest", type(self.digest).__name__, f"{DIGEST_BYTES} bytes of SHA-256")
        check.name("name", self.name, limits.KEY_NAME_BYTES_MAX)
        if not isinstance(self.rights, tuple):
            raise InvalidInput("rights", self.rights, "a tuple of Right")
        check.integer("rights", len(self.rights), 1, RIGHTS_MAX)
        for right in self.rights:
            if not isinstance(right, Right):
                raise InvalidInput("rights", right, "a Right each")
            right.check()
        check.integer("created_ms", self.created_ms, 0, limits.TIME_MS_MAX)
        check.optional_integer("expires_ms", self.expires_ms, 0, limits.TIME_MS_MAX)
        return self

    def allows(self, verb: Verb, topic: str) -> bool:
        """Whether one of its rights covers a call."""
        return any(right.allows(verb, topic) for right in self.rights)


def fits(pattern: str, name: str) -> bool:
    """Whether a name fits a pattern with `*`. Each part is taken where it first fits, and never again."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    *middle, last = rest
    at, end = len(first), len(name) - len(last)
    if end < at or not name.startswith(first) or not name.endswith(last):
        return False
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
