"""Who is at the other end: the mechanisms of this protocol over the API keys of the broker.

The password is an API key; the name beside it is for people. Users that were made over the management interface have a
name and a password of their own. A broker without keys knows `guest`, whose password is `guest`, as every client of
RabbitMQ does, and who may do everything; it can be told to let in any other name too.
"""

from __future__ import annotations

from wherry.model.catalog.key import ADMINISTRATOR, Key, Verb
from wherry.model.errors import Forbidden, Unauthorized
from wherry.queueing.names import reaches
from wherry.security.access import Access
from wherry.security.keys import public_id

MECHANISMS = ("PLAIN", "AMQPLAIN", "EXTERNAL")
GUEST = "guest"


class Login:
    """One client's rights."""

    def __init__(self, access: Access | None, certified: str | None, *, any_user: bool = False, peer: str = "") -> None:
        self._any_user = any_user
        self._peer = peer
        """The address that it comes from."""
        self._access = access if access is not None and access.keys_on else None
        self._users = access
        self._user: Key | None = None
        """The user that it is, if it is none of those with a key, and not `guest`."""
        self._certified = certified
        """The name in the certificate that the client has shown, if it has."""
        self._token = ""
        self.user = ""
        """The name of the key; on a broker without keys that of the login. What `user_id` of a message must be."""

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Those that can succeed: a client takes the last one that it knows."""
        return MECHANISMS if self._certified is not None and self._access is None else MECHANISMS[:-1]

    @property
    def is_open(self) -> bool:
        """Whether everybody may do everything."""
        return self._access is None and self._user is None

    @property
    def knows_guest(self) -> bool:
        """Whether the broker asks for no keys, so that `guest` may do everything."""
        return self._access is None

    @property
    def tags(self) -> tuple[str, ...]:
        """What it is to tools: `administrator` if it may do everything that is no single topic's."""
        if self._user is not None:
            known = self._current().user
            return known.tags if known is not None else ()
        try:
            self.check("admin", "*")
        except Forbidden:
            return ("management",)
        return (ADMINISTRATOR,)

    def enter(self, mechanism: str, name: str, secret: str) -> None:
        """Let the client in as `user`, or `Unauthorized`, which is to be told after its `pause_s`."""
        try:
            self._enter(mechanism, name, secret)
        except Unauthorized as fault:
            if self._users is not None and secret:  # without one nothing was guessed
                fault.pause_s = self._users.attempts.failed(self._peer)
            raise

    def _enter(self, mechanism: str, name: str, secret: str) -> None:
        if mechanism == "EXTERNAL":
            if self._certified is None:
                raise Unauthorized("EXTERNAL is the name in a client's certificate, and there is none")
            if self._access is not None:
                raise Unauthorized("this broker asks for keys, and a certificate has none")
            self.user = self._certified
        elif (user := self._found(name, secret)) is not None:
            self._user, self.user = user, user.name
        elif self._access is not None:
            if public_id(secret) is None:  # in the same words for a name that is not known and a wrong password
                raise Unauthorized(
                    "no user has this name and password, and it is no key: wk_, 8 characters, _, 43 more"
                )
            self._show(self._access, secret)
        elif self._is_taken(name) or ((name, secret) != (GUEST, GUEST) and (name == GUEST or not self._any_user)):
            raise Unauthorized(
                "no user has this name and password; a broker without keys knows guest, with the password guest, "
                "and other names with amqp.any_user"
            )
        else:
            self.user = name

    def _found(self, name: str, secret: str) -> Key | None:
        """The user of a name and a password; a token is of nobody's choosing, and is none."""
        if self._users is None or (self._access is not None and public_id(secret) is not None):
            return None
        return self._users.user(name, secret)

    def _is_taken(self, name: str) -> bool:
        """Whether there is a user of this name, so that nobody else has it."""
        return self._users is not None and self._users.has_user(name)

    def _current(self) -> Key:
        assert self._users is not None
        assert self._user is not None
        return self._users.as_it_is(self._user)

    def renew(self, secret: str) -> None:
        """Another key from now on; of a user, its password as it is by now."""
        if self._user is not None:
            self.enter("PLAIN", self.user, secret)
        elif self._access is not None:
            self._show(self._access, secret)

    def still_holds(self) -> bool:
        """Whether the key is still good."""
        try:
            if self._user is not None:
                self._current()
            elif self._access is not None and self._token:
                self._show(self._access, self._token)
        except Unauthorized:
            return False
        return True

    def _show(self, access: Access, token: str) -> None:
        """The name is looked up each time: keys can be given another one."""
        self.user = access.authenticate(token).name
        self._token = token

    def check(self, verb: Verb, topic: str) -> None:
        """`Forbidden` or `Unauthorized` without the right."""
        if self._user is not None:
            if not self._current().allows(verb, topic):
                raise Forbidden(self.user, verb, topic)
        elif self._access is not None:
            self._access.check_token(self._token, verb, topic)

    def has_some(self, verbs: tuple[Verb, ...], host: str) -> bool:
        """Whether it has one of these rights on something that may be in a virtual host."""
        if self.is_open:
            return True
        key = self._current() if self._user is not None else self._key()
        return any(
            (right.verb in verbs or right.verb == "admin") and reaches(right.topics, host) for right in key.rights
        )

    def _key(self) -> Key:
        assert self._access is not None
        return self._access.authenticate(self._token)

    def check_host(self, host: str, *, is_shut: bool) -> None:
        """`Forbidden` for a user who was granted nothing in a virtual host; keys have rights on topics, wherever.

        One that is shut is not for those who may do everything for want of keys.
        """
        user = None if self._user is None else self._current().user
        granted = user is not None and any(grant.host == host for grant in user.grants)
        if not granted and (self._user is not None or (is_shut and self.is_open)):
            raise Forbidden(self.user, "consume", f"vhost {host}")
