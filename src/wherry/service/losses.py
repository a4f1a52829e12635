"""What becomes of calls without a result: the log that keeps them, and functions that are called with them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from wherry.service.calling.caller import OnLost as OnCallLost
from wherry.service.lost.lost_call import LostCall
from wherry.service.providing.endings import OnLost

if TYPE_CHECKING:
    from wherry.service.lost.log import LostLog

OnResent = Callable[[LostCall, Any], object]
"""Called with a kept call and its result, when it was answered at last. Must not raise."""

LostWhere: TypeAlias = "str | os.PathLike[str] | LostLog"
"""A folder of its own, or a log that its owner closes."""


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of calls that have no result: those that this peer made, and those that it provides.

    Parameters
    ----------
    log
        The folder that they are kept in, or a `LostLog` that its owner closes; None keeps nothing.
    on_call, on_provided
        Called with each of them.
    on_resent
        Called with a call that was kept, and its result, when it was sent again and answered.
    """

    log: LostWhere | None = None
    on_call: OnCallLost | None = None
    on_provided: OnLost | None = None
    on_resent: OnResent | None = None
