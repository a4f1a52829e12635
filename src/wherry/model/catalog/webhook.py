"""Where a node pushes messages to: a URL, and how to call it. Which addresses may be called is not decided here."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec

from wherry.model import check
from wherry.model.errors import InvalidInput

URL_CHARS_MAX = 2_048
HOST_CHARS_MAX = 253
SECRET_CHARS_MIN = 16
SECRET_CHARS_MAX = 256
BATCH_MAX = 1_000
TIMEOUT_MS = (100, 60_000)
REMOVE_AFTER_MAX = 1_000

MASK = "…"
"""Shown instead of a secret. Too short to be a secret, so that it cannot be sent back by mistake."""
IN_FLIGHT_MAX = 16

_URL = f"an http or https URL of at most {URL_CHARS_MAX} visible ASCII characters, without a user and a fragment"
_HOST = (
    f"a host of at most {HOST_CHARS_MAX} characters, the parts between its dots 1 to 63 letters, digits, '-' and '_'"
)
_LABELS = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*\.?", re.IGNORECASE)


class Webhook(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client that is called when there are messages.

    Parameters
    ----------
    url
        Where the messages are posted to.
    secret
        Signs each call; 16 to 256 characters. It is stored as it is, and never shown again.
    batch
        The maximum number of messages in one call.
    timeout_ms
        For a whole call: name lookup, connection, answer.
    remove_after
        The client is removed after so many calls in a row without an answer.
    in_flight
        Calls at a time; with one, messages are sent in order as long as none of them fails.
    """

    url: str
    secret: str
    batch: int = 1
    timeout_ms: int = 10_000
    remove_after: int = 10
    in_flight: int = 1

    def checked(self) -> Webhook:
        """Return this webhook, or raise `InvalidInput` for the first field that breaks a rule."""
        check_url("webhook.url", self.url)
        check_secret("webhook.secret", self.secret)
        check.integer("webhook.batch", self.batch, 1, BATCH_MAX)
        check.integer("webhook.timeout_ms", self.timeout_ms, *TIMEOUT_MS)
        check.integer("webhook.remove_after", self.remove_after, 1, REMOVE_AFTER_MAX)
        check.integer("webhook.in_flight", self.in_flight, 1, IN_FLIGHT_MAX)
        return self

    def masked(self) -> Webhook:
        """Return this webhook as it may be shown, without the secret."""
        return msgspec.structs.replace(self, secret=MASK)

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Return every field but the secret, because errors and logs print values."""
        return [(name, getattr(self.masked(), name)) for name in self.__struct_fields__]

    def __repr__(self) -> str:
        return f"Webhook({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


def check_url(field: str, value: object) -> str:
    """Return a URL that can be posted to, or raise `InvalidInput`. It is parsed once, however often it is checked."""
    if not isinstance(value, str):
        raise InvalidInput(field, value, _URL)
    if (allowed := _allowed_instead(value)) is not None:
        raise InvalidInput(field, value, allowed)
    return value


@lru_cache(maxsize=1024)
def _allowed_instead(url: str) -> str | None:
    """Return what is allowed instead of this text, None if it is a valid URL."""
    if not url.isascii() or not url.isprintable() or " " in url or len(url) > URL_CHARS_MAX:
        return _URL
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return _URL
    extra = parts.username is not None or parts.password is not None or parts.fragment
    if parts.scheme not in ("http", "https") or not host or port == 0 or extra:
        return _URL
    return None if _is_host(host) else _HOST


def _is_host(host: str) -> bool:
    """Return whether a host is an address, or a name that can be looked up."""
    try:
        ip_address(host)
    except ValueError:
        return len(host) <= HOST_CHARS_MAX and _LABELS.fullmatch(host) is not None
    return True


def check_secret(field: str, value: object) -> str:
    """Return a secret to sign with. An error does not repeat it."""
    allowed = f"{SECRET_CHARS_MIN} to {SECRET_CHARS_MAX} characters"
    if not isinstance(value, str):
        raise InvalidInput(field, type(value).__name__, allowed)
    if not SECRET_CHARS_MIN <= len(value) <= SECRET_CHARS_MAX:
        raise InvalidInput(field, f"{len(value)} characters", allowed)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(field, "…", "valid Unicode") from None
    return value
