"""The login of a queue client: SASL mechanisms over the API keys and users of the broker.

The password is an API key, or an access token where the node takes these; the name beside it is for people. Users that
were made over the management interface have a name and a password of their own. A broker without keys accepts `guest`
with the password `guest`, as RabbitMQ does, and `guest` may do everything; by configuration it also accepts any other
name.
"""

from __future__ import annotations

from collections.abc import Awaitable

from wherry.model.catalog.key import ADMINISTRATOR, Key, Verb
from wherry.model.errors import Forbidden, Unauthorized
from wherry.queueing.names import reaches
from wherry.security.access import Access
from wherry.security.keys import public_id

MECHANISMS = ("PLAIN", "AMQPLAIN", "EXTERNAL")
GUEST = "guest"


class Login:
    """The identity and the rights of one client."""

    def __init__(self, access: Access | None, certified: str | None, *, any_user: bool = False, peer: str = "") -> None:
        self._any_user = any_user
        self._peer = peer
        """The address of the client."""
        self._access = access if access is not None and access.keys_on else None
        self._users = access
        self._user: Key | None = None
        """The user that logged in by name and password; None for API keys and for `guest`."""
        self._certified = certified
        """The name in the certificate that the client presented, if it did."""
        self._token = ""
        self.user = ""
        """The name of the key, or without keys the name at login. The `user_id` of a message must be equal to it."""

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms that can succeed; a client takes the last one that it supports."""
        return MECHANISMS if self._certified is not None and self._access is None else MECHANISMS[:-1]

    @property
    def is_open(self) -> bool:
        """Whether every client may do everything."""
        return self._access is None and self._user is None

    @property
    def knows_guest(self) -> bool:
        """Whether the broker requires no keys, so that `guest` may do everything."""
        return self._access is None

    @property
    def tags(self) -> tuple[str, ...]:
        """The client's tags as tools know them: `administrator` if it may do everything that is not about one topic."""
        if self._user is not None:
            known = self._current().user
            return known.tags if known is not None else ()
        try:
            self.check("admin", "*")
        except Forbidden:
            return ("management",)
        return (ADMINISTRATOR,)

    def enter(self, mechanism: str, name: str, secret: str) -> None:
        """Log the client in as `user`, or raise `Unauthorized`, which is to be sent only after its `pause_s`."""
        try:
            self._enter(mechanism, name, secret)
        except Unauthorized as fault:
            if self._users is not None and secret:  # an empty password is no guess
                fault.pause_s = self._users.attempts.failed(self._peer)
            raise

    def awaited(self, secret: str) -> Awaitable[None] | None:
        """Return what to wait for before `enter` or `renew`, see `Access.awaited`."""
        return None if self._access is None else self._access.awaited(secret)

    def _enter(self, mechanism: str, name: str, secret: str) -> None:
        if mechanism == "EXTERNAL":
            if self._certified is None:
                raise Unauthorized("EXTERNAL needs a client certificate")
            if self._access is not None:
                raise Unauthorized("this broker requires an API key, which a certificate does not contain")
            self.user = self._certified
        elif (user := self._found(name, secret)) is not None:
            self._user, self.user = user, user.name
        elif self._access is not None:
            if (
                public_id(secret) is None and not self._access.takes_tokens
            ):  # one text for both, so that names cannot be found out
                raise Unauthorized(
                    "no user has this name and password, and the password is no API key: wk_, 8 characters, _, 43 more"
                )
            self._show(self._access, secret)
        elif self._is_taken(name) or ((name, secret) != (GUEST, GUEST) and (name == GUEST or not self._any_user)):
            raise Unauthorized(
                "no user has this name and password; a broker without keys accepts guest with the password guest, "
                "and other names with amqp.any_user"
            )
        else:
            self.user = name

    def _found(self, name: str, secret: str) -> Key | None:
        """Return the user with this name and password; None for the token of an API key, which is not a password."""
        if self._users is None or (self._access is not None and public_id(secret) is not None):
            return None
        return self._users.user(name, secret)

    def _is_taken(self, name: str) -> bool:
        """Return whether a user has this name, so that no other client may use it."""
        return self._users is not None and self._users.has_user(name)

    def _current(self) -> Key:
        assert self._users is not None
        assert self._user is not None
        return self._users.as_it_is(self._user)

    def renew(self, secret: str) -> None:
        """Use another secret of the same name from now on; a user gives the password as it is now.

        The kind of login stays: a user stays this user; a key or an access token is followed by one of the same name.
        """
        if self._user is not None:
            user = self._found(self.user, secret)
            if user is None or user.id != self._user.id:
                raise Unauthorized(f"this is not the password of {self.user!r}")
            self._user = user
        elif self._access is not None:
            if self._access.authenticate(secret).name != self.user:
                raise Unauthorized(f"the new key or token is not one of {self.user!r}")
            self._show(self._access, secret)

    def still_holds(self) -> bool:
        """Return whether the key still exists and has not expired."""
        try:
            if self._user is not None:
                self._current()
            elif self._access is not None and self._token:
                self._show(self._access, self._token)
        except Unauthorized:
            return False
        return True

    def _show(self, access: Access, token: str) -> None:
        """Authenticate by token, and read the name again each time, since a key can be renamed."""
        self.user = access.authenticate(token).name
        self._token = token

    def check(self, verb: Verb, topic: str) -> None:
        """Raise `Forbidden` or `Unauthorized` if the client lacks the right."""
        if self._user is not None:
            if not self._current().allows(verb, topic):
                raise Forbidden(self.user, verb, topic)
        elif self._access is not None:
            self._access.check_token(self._token, verb, topic)

    def has_some(self, verbs: tuple[Verb, ...], host: str) -> bool:
        """Return whether the client has one of these rights on any name that may be in a virtual host."""
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
        """Raise `Forbidden` for a user that has no grant in a virtual host; the rights of keys are for topics anywhere.

        A virtual host that is shut is also closed to clients that may do everything because there are no keys.
        """
        user = None if self._user is None else self._current().user
        granted = user is not None and any(grant.host == host for grant in user.grants)
        if not granted and (self._user is not None or (is_shut and self.is_open)):
            raise Forbidden(self.user, "consume", f"vhost {host}")
