"""Whether a caller may call a method, by a function of the program, which may fail in any way.

What it raises beside `Unauthorized` and `Forbidden` is a fault of the program: it is logged, and the call is refused
without its text. It never lets a call pass that was not given the name of its caller.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from inspect import isawaitable

from wherry.model.errors import Forbidden, WherryError

Authorize = Callable[[str, str, str], str | Awaitable[str]]
"""Called with the token of a caller, a service and a method; returns the name of the caller, or raises `Unauthorized`
or `Forbidden`."""

_log = logging.getLogger("wherry.service")


class NotChecked(Forbidden):
    """The right could not be checked."""

    def __init__(self) -> None:
        WherryError.__init__(self, "the right to this call could not be checked; the provider has logged why")


class Rights:
    """Asks the function of the program; raises nothing but errors of Wherry, `SystemExit` and `KeyboardInterrupt`."""

    def __init__(self, authorize: Authorize) -> None:
        self._authorize = authorize

    def ask(self, token: str, service: str, method: str) -> str | Awaitable[str]:
        """Return the name of a caller, or what to wait for until it is known."""
        try:
            found = self._authorize(token, service, method)
        except (WherryError, SystemExit, KeyboardInterrupt):
            raise
        except BaseException as fault:
            raise _not_checked(service, method, fault) from None
        if isinstance(found, str):
            return found
        return self._named(found, service, method)

    async def _named(self, found: object, service: str, method: str) -> str:
        try:
            name = await found if isawaitable(found) else found
        except (WherryError, SystemExit, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as fault:
            raise _not_checked(service, method, fault) from None
        if not isinstance(name, str):
            wrong = TypeError(f"it returned {type(name).__name__}, and not the name of the caller")
            raise _not_checked(service, method, wrong)
        return name


def _not_checked(service: str, method: str, fault: BaseException) -> NotChecked:
    _log.error("authorize failed for %s.%s", service, method, exc_info=fault)
    return NotChecked()
