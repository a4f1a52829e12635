"""CONNECT: agrees on version, user, virtual host and heart-beats."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping
from importlib.metadata import version as version_of
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, NamedTuple

from wherry.model.errors import Forbidden, NotFound, Unauthorized
from wherry.queueing.hosts.virtual_host import VirtualHost
from wherry.queueing.introduction import PROPERTIES
from wherry.queueing.login import GUEST
from wherry.queueing.names import ROOT
from wherry.wire.stomp import codec
from wherry.wire.stomp.codec import V10, VERSIONS, Frame, StompFault, shown

if TYPE_CHECKING:
    from wherry.wire.stomp.session import Session

BEAT_MS_MIN = 1_000
"""Heart-beats are neither promised nor requested more often."""

BEAT_MS_MAX = 1 << 31

SERVER = f"{PROPERTIES['product']}/{PROPERTIES['version']} Wherry/{version_of('wherry')}"
"""Product and version that clients choose their dialect by, as over AMQP; then the real name."""


class HeartBeats(NamedTuple):
    """Seconds between two heart-beats, of the server and of the client; 0 for none."""

    send_s: float
    expect_s: float


def patience_s(expect_s: float) -> float:
    """Return how long a client may be silent: two of its intervals, and time for the network."""
    return 2 * expect_s + 1.0


def connect(session: Session, frame: Frame) -> Coroutine[Any, Any, None] | None:
    """Log a client in, or raise the fault; with an access token of a new key, once that key was fetched."""
    waiting = session.login.awaited(frame.headers.get("passcode", "").strip(" "))
    if waiting is None:
        return _connect(session, frame)
    return session.finished(frame, _connect_later(session, frame, waiting), sends_receipt=False)


async def _connect_later(session: Session, frame: Frame, waiting: Awaitable[None]) -> None:
    await waiting
    refusal = None if session.is_over else _connect(session, frame)
    if refusal is not None:
        await refusal


def _connect(session: Session, frame: Frame) -> Coroutine[Any, Any, None] | None:
    """Log a client in, or raise the fault; the refusal of a wrong password is sent after a pause."""
    headers = frame.headers
    version = chosen_version(headers.get("accept-version"))
    if version == V10:  # clients of 1.0 write a space after the colon
        headers = {name: value.strip(" ") for name, value in headers.items()}
    ours, theirs = agreed_beats(headers.get("heart-beat")) if session.wants_heart_beats else (0, 0)
    try:
        _log_in(session, headers)
    except Unauthorized as fault:
        return session.finished(frame, _refuse(headers.get("login", ""), fault), sends_receipt=False)
    host = _host(session, headers.get("host", ROOT))
    session.client_id = headers.get("client-id", "")
    session.opened(host, version, HeartBeats(ours / 1000, theirs / 1000))
    answer = [("server", SERVER), ("session", session.id), ("heart-beat", f"{ours},{theirs}"), ("version", version)]
    session.write(codec.connected(answer))
    session.receipt(headers.get("receipt"))
    return None


async def _refuse(name: str, fault: Unauthorized) -> None:
    await asyncio.sleep(fault.pause_s)
    raise StompFault("Bad CONNECT", f"Access refused for user '{shown(name)}'", str(fault))


def _host(session: Session, name: str) -> VirtualHost:
    """Return a virtual host. Clients of 1.2 that want none name the machine that they connected to: that means `/`."""
    known = session.queueing.hosts
    if name not in known and (name in session.shared.names or _is_address(name)):
        name = ROOT
    try:
        return session.queueing.enter(name, session.login)
    except NotFound:
        allowed = "allowed: a virtual host, an address, or a name of this machine (server.names)"
        raise StompFault("Bad CONNECT", f"Virtual host '{shown(name)}' access denied", allowed) from None
    except (Forbidden, Unauthorized) as fault:
        raise StompFault("Bad CONNECT", f"Virtual host '{shown(name)}' access denied", str(fault)) from None


def _is_address(name: str) -> bool:
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def chosen_version(accepted: str | None) -> str:
    """Return the newest version that both sides know. A client of 1.0 names none."""
    if accepted is None:
        return V10
    known = [version for version in VERSIONS if version in (each.strip() for each in accepted.split(","))]
    if not known:
        given = f"accept-version is {accepted[:80]!r}"
        raise StompFault("Version mismatch", f"Supported versions are {','.join(VERSIONS)}\n", given)
    return known[-1]


def agreed_beats(offered: str | None) -> tuple[int, int]:
    """Return milliseconds between heart-beats of the server and of the client, from the client's `cx,cy`."""
    if offered is None:
        return 0, 0
    can, comma, wants = offered.partition(",")
    parts = [each.strip() for each in (can, wants)]
    if not comma or not all(each.isascii() and each.isdecimal() and len(each) < 16 for each in parts):
        raise StompFault("Bad CONNECT", f"heart-beat is {offered[:80]!r}; allowed: two whole numbers and a comma")
    theirs, ours = (min(int(each), BEAT_MS_MAX) for each in parts)
    return max(ours, BEAT_MS_MIN) if ours else 0, max(theirs, BEAT_MS_MIN) if theirs else 0


def _log_in(session: Session, headers: Mapping[str, str]) -> None:
    """Log in; the passcode is an API key. On a broker without keys a client without a login is `guest`."""
    name, secret = headers.get("login"), headers.get("passcode")
    login = session.login
    if name is None and secret is None and login.is_open:
        if session.certified is not None:
            login.enter("EXTERNAL", session.certified, "")
        else:
            login.enter("PLAIN", GUEST, GUEST)
    else:
        login.enter("PLAIN", name or "", secret or "")
