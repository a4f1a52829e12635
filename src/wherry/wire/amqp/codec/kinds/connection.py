"""Class 10: the connection, from its start to its end."""

from __future__ import annotations

from typing import ClassVar

from wherry.wire.amqp.codec.fields import Bit, Long, LongStr, Octet, Short, ShortStr, Table
from wherry.wire.amqp.codec.kinds.method import Method, no_entries


class ConnectionStart(Method, frozen=True, gc=False):
    """Server: the versions, mechanisms and locales that it offers, and its properties."""

    ids: ClassVar = (10, 10)
    version_major: Octet = 0
    version_minor: Octet = 9
    server_properties: Table = no_entries()
    mechanisms: LongStr = b"PLAIN"
    locales: LongStr = b"en_US"


class ConnectionStartOk(Method, frozen=True, gc=False):
    """Client: its properties, and the first response of the chosen mechanism."""

    ids: ClassVar = (10, 11)
    client_properties: Table = no_entries()
    mechanism: ShortStr = "PLAIN"
    response: LongStr = b""
    locale: ShortStr = "en_US"


class ConnectionSecure(Method, frozen=True, gc=False):
    """Server: a challenge of the mechanism."""

    ids: ClassVar = (10, 20)
    challenge: LongStr = b""


class ConnectionSecureOk(Method, frozen=True, gc=False):
    """Client: the answer to a challenge."""

    ids: ClassVar = (10, 21)
    response: LongStr = b""


class ConnectionTune(Method, frozen=True, gc=False):
    """Server: its bounds. A zero means no bound; the heart-beat is in seconds."""

    ids: ClassVar = (10, 30)
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


class ConnectionTuneOk(Method, frozen=True, gc=False):
    """Client: the bounds that hold from here on."""

    ids: ClassVar = (10, 31)
    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


class ConnectionOpen(Method, frozen=True, gc=False):
    """Client: the virtual host to work in."""

    ids: ClassVar = (10, 40)
    virtual_host: ShortStr = "/"
    reserved_1: ShortStr = ""
    reserved_2: Bit = False


class ConnectionOpenOk(Method, frozen=True, gc=False):
    """Server: the virtual host is open."""

    ids: ClassVar = (10, 41)
    reserved_1: ShortStr = ""


class ConnectionClose(Method, frozen=True, gc=False):
    """Either side: close the connection, with the reason and the method at fault."""

    ids: ClassVar = (10, 50)
    reply_code: Short = 200
    reply_text: ShortStr = ""
    class_id: Short = 0
    method_id: Short = 0


class ConnectionCloseOk(Method, frozen=True, gc=False):
    """Either side: the connection is closed."""

    ids: ClassVar = (10, 51)


class ConnectionBlocked(Method, frozen=True, gc=False):
    """Server: it accepts no publishes for now."""

    ids: ClassVar = (10, 60)
    reason: ShortStr = ""


class ConnectionUnblocked(Method, frozen=True, gc=False):
    """Server: it accepts publishes again."""

    ids: ClassVar = (10, 61)


class ConnectionUpdateSecret(Method, frozen=True, gc=False):
    """Client: a new secret (such as a token) for the same user."""

    ids: ClassVar = (10, 70)
    new_secret: LongStr = b""
    reason: ShortStr = ""


class ConnectionUpdateSecretOk(Method, frozen=True, gc=False):
    """Server: the new secret holds."""

    ids: ClassVar = (10, 71)
