"""API keys: which client may do what to which topics. A key is stored as the hash of its secret only.

A user, as AMQP and STOMP have them, is a key with a password instead of a token. People choose the password, so a user
is found by its name, and is accepted on those wires only.
"""

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
SALT_BYTES_MAX = 64
TAGS_MAX = 16
TEXT_BYTES_MAX = 1_024

ADMINISTRATOR = "administrator"
"""The tag of users who may make calls that concern no single topic, such as creating other users."""

ROOT_HOST = "@%2F/"
"""The prefix of a topic of the first virtual host in a pattern of a user's rights, which name the host too."""


class Right(msgspec.Struct, frozen=True):
    """A verb on the topics that match a pattern, in which `*` is any sequence of characters, also an empty one."""

    verb: Verb
    topics: str

    def check(self) -> None:
        """Raise `InvalidInput` for the first field that breaks a rule."""
        check.one_of("right.verb", self.verb, VERBS)
        check.name("right.topics", self.topics, limits.TOPIC_NAME_BYTES_MAX)

    def allows(self, verb: Verb, topic: str) -> bool:
        """Return whether this right covers a call. The right to administer a topic includes publish and consume."""
        return self.verb in (verb, "admin") and fits(self.topics, topic)


def parse_right(text: str) -> Right:
    """Parse a right: `publish:orders.*`, or a verb alone for every topic.

    Examples
    --------
    >>> parse_right("consume:jobs")
    Right(verb='consume', topics='jobs')
    """
    verb, _, topics = text.partition(":")
    known = {each: each for each in VERBS}
    if verb not in known:
        raise InvalidInput("right", text, "publish, consume or admin, and after a colon a topic pattern")
    right = Right(known[verb], topics or "*")
    right.check()
    return right


class Grant(msgspec.Struct, frozen=True):
    """The permissions of a user in a virtual host as they were given: regular expressions over names.

    Stored to be shown. What they allow is in the rights of the key.
    """

    host: str
    configure: str
    write: str
    read: str


class User(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What makes a key a user: the salt of its password, its tags, and its permissions."""

    salt: bytes = b""
    tags: tuple[str, ...] = ()
    grants: tuple[Grant, ...] = ()

    def check(self) -> None:
        """Raise `InvalidInput` for the first field that breaks a rule."""
        if not isinstance(self.salt, bytes) or len(self.salt) > SALT_BYTES_MAX:
            raise InvalidInput("salt", type(self.salt).__name__, f"at most {SALT_BYTES_MAX} bytes")
        check.integer("tags", len(self.tags), 0, TAGS_MAX)
        check.integer("grants", len(self.grants), 0, RIGHTS_MAX)
        texts = [*self.tags, *(text for grant in self.grants for text in msgspec.structs.astuple(grant))]
        for text in texts:
            if len(check.text("user", text).encode()) > TEXT_BYTES_MAX:
                raise InvalidInput("user", text, f"texts of at most {TEXT_BYTES_MAX} bytes")


class Key(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key as the broker stores it.

    Parameters
    ----------
    id
        The public part: 8 letters and digits, by which the key is found, listed and deleted.
    digest
        SHA-256 of the secret; of a user, of salt and password.
    name
        The owner, for people and for records of who did what.
    rights
        1 to 64 rights; a user may have none.
    expires_ms
        When it expires; None for never.
    user
        What makes it a user; None for a key with a token.
    made_by
        The name of the caller that made it; empty where no key was asked for, and for the first key of a node.
    """

    id: str
    digest: bytes
    name: str
    rights: tuple[Right, ...]
    created_ms: int
    expires_ms: int | None = None
    user: User | None = None
    made_by: str = ""

    def checked(self) -> Key:
        """Return this key, or raise `InvalidInput` for the first field that breaks a rule."""
        if not isinstance(self.id, str) or len(self.id) != ID_CHARS or not (self.id.isascii() and self.id.isalnum()):
            raise InvalidInput("key", self.id, f"{ID_CHARS} letters and digits")
        if not isinstance(self.digest, bytes) or len(self.digest) != DIGEST_BYTES:
            raise InvalidInput("digest", type(self.digest).__name__, f"{DIGEST_BYTES} bytes of SHA-256")
        check.name("name", self.name, limits.KEY_NAME_BYTES_MAX)
        if self.made_by != "":
            check.name("made_by", self.made_by, limits.KEY_NAME_BYTES_MAX)
        if not isinstance(self.rights, tuple):
            raise InvalidInput("rights", self.rights, "a tuple of Right")
        if self.user is not None:
            self.user.check()
        check.integer("rights", len(self.rights), 1 if self.user is None else 0, RIGHTS_MAX)
        for right in self.rights:
            if not isinstance(right, Right):
                raise InvalidInput("rights", right, "a Right each")
            right.check()
        check.integer("created_ms", self.created_ms, 0, limits.TIME_MS_MAX)
        check.optional_integer("expires_ms", self.expires_ms, 0, limits.TIME_MS_MAX)
        return self

    def allows(self, verb: Verb, topic: str) -> bool:
        """Return whether one of its rights covers a call."""
        if self.user is not None:
            if topic == "*":
                return ADMINISTRATOR in self.user.tags
            topic = topic if topic.startswith("@") else ROOT_HOST + topic
        return any(right.allows(verb, topic) for right in self.rights)


def fits(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern with `*`. Each part takes the first place where it matches."""
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
