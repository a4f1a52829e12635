"""What a registry knows of one instance of a service, and its bytes."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import msgspec

from wherry.model import check
from wherry.model.errors import InvalidInput

NAME_CHARS_MAX = 128
"""Of a service, of an instance and of a method."""

URL_CHARS_MAX = 512

METHODS_MAX = 256
"""Methods that one instance may announce."""

INSTANCE_BYTES_MAX = 16 << 10
"""Of the bytes of one instance, so that a registry cannot be filled by one of them."""

SCHEMES = ("http", "https")

_VISIBLE = re.compile(r"[!-~]*")
"""Without line breaks, which `urlsplit` removes from what it looks at."""


class Instance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process that provides a service.

    `id` names the instance among those of its service. `version` counts the changes that the instance made to what it
    announces: of two records of one instance, the higher version is the newer.
    """

    service: str
    id: str
    url: str
    version: int = 0
    methods: tuple[str, ...] = ()
    labels: dict[str, str] = {}

    def checked(self) -> Instance:
        """Return this instance, or raise `InvalidInput` for the first field that breaks a rule."""
        check.graphic("service", self.service, NAME_CHARS_MAX)
        check.graphic("id", self.id, NAME_CHARS_MAX)
        check_url(self.url)
        check.integer("version", self.version, 0, (1 << 63) - 1)
        if len(self.methods) > METHODS_MAX:
            raise InvalidInput("methods", f"{len(self.methods)} methods", f"at most {METHODS_MAX}")
        for method in self.methods:
            check.graphic("methods", method, NAME_CHARS_MAX)
        check.labels("labels", self.labels)
        return self


_DECODER = msgspec.json.Decoder(Instance)


def check_url(url: object) -> str:
    """Return the URL of an instance, or raise `InvalidInput`."""
    allowed = f"an http or https URL of a host and a port alone, at most {URL_CHARS_MAX} visible ASCII characters"
    if not isinstance(url, str) or len(url) > URL_CHARS_MAX or not _VISIBLE.fullmatch(url):
        raise InvalidInput("url", url, allowed)
    try:
        parts = urlsplit(url)
        reachable = parts.scheme in SCHEMES and parts.hostname and parts.port
    except ValueError:
        reachable = False
    # User names and passwords would be known to all members.
    if not reachable or "@" in parts.netloc or parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise InvalidInput("url", url, allowed)
    return url


def encode(instance: Instance) -> bytes:
    """Return the bytes of an instance; raise `InvalidInput` if they are too many.

    Examples
    --------
    >>> decode(encode(Instance(service="billing", id="a", url="http://10.0.0.7:7080"))).url
    'http://10.0.0.7:7080'
    """
    found = msgspec.json.encode(instance)
    if len(found) > INSTANCE_BYTES_MAX:
        raise InvalidInput("instance", f"{len(found)} bytes", f"at most {INSTANCE_BYTES_MAX} bytes")
    return found


def decode(content: bytes) -> Instance:
    """Return an instance that another process announced; raise `InvalidInput` for bytes that are none."""
    if len(content) > INSTANCE_BYTES_MAX:
        raise InvalidInput("instance", f"{len(content)} bytes", f"at most {INSTANCE_BYTES_MAX} bytes")
    try:
        return _DECODER.decode(content).checked()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise InvalidInput("instance", content, f"the JSON of an instance ({fault})") from None
