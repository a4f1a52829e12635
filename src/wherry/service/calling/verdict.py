"""What an answer without a result is to its caller, and what it says of the instance that sent it."""

from __future__ import annotations

import time
from typing import Final

from wherry.service.calling.attempt import CalledMethod
from wherry.service.calling.link import CallerLink
from wherry.service.outcomes import CallError, ConnectionLost, Failed, RefusalCode, Refused
from wherry.wire.native.codec.faults import WireFault
from wherry.wire.native.codec.frames import Flag
from wherry.wire.native.codec.invokes import decode_trouble

OWN_FAULTS: Final = frozenset({RefusalCode.INVALID_INPUT, RefusalCode.UNAUTHORIZED, RefusalCode.FORBIDDEN})
"""Refusals that the caller is to blame for, not the instance."""

REFUSING_S: Final = {RefusalCode.FULL: 0.1, RefusalCode.PAUSED: 1.0, RefusalCode.NO_METHOD: 1.0}
"""How long an instance gets no calls of a method that it refused, while others take them."""


def verdict_of(target: CalledMethod, instance_id: str, fault: CallError) -> bool | None:
    """Return what an answer without a result says of its instance; None if it says nothing of its other methods."""
    if isinstance(fault, ConnectionLost):
        return False
    if not isinstance(fault, Refused) or fault.reason in OWN_FAULTS:
        return True
    pause_s = REFUSING_S.get(fault.reason)
    if pause_s is None:
        return False
    target.refused_by(instance_id, time.monotonic() + pause_s)
    return None


def fault_of(name: str, link: CallerLink, instance: str, flags: int, body: bytes) -> CallError:
    """Return the error that an answer without a result is; one that cannot be read ends its connection."""
    try:
        trouble = decode_trouble(body)
    except WireFault as fault:
        link.broke(fault)
        return ConnectionLost(name, instance, f"{fault}; whether it was run is unknown")
    if flags & Flag.FAILED:
        return Failed(name, instance, trouble.kind, trouble.text)
    try:
        reason = RefusalCode(trouble.code)
    except ValueError:  # of a newer version
        reason = RefusalCode.NO_METHOD
    return Refused(
        name, instance, reason, trouble.text, field=trouble.field, given=trouble.given, allowed=trouble.allowed
    )
