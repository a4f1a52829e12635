"""Declares a service: its name, its methods, and what an instance of it may take on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar, overload

from wherry.mesh.instance import METHODS_MAX
from wherry.model import check
from wherry.model.errors import InvalidInput
from wherry.service.method import CONCURRENT_MAX, Function, ServiceMethod, check_name

if TYPE_CHECKING:
    from wherry.mesh.registry import Registry
    from wherry.service.losses import LostWhere

CONCURRENT: Final = 1_000
"""Calls that run at a time, unless the service or the method says otherwise."""

F = TypeVar("F", bound=Function)


class Service:
    """A named set of methods that processes provide.

    Parameters
    ----------
    name
        How callers name it: the method `total` of `billing` is `billing.total`.
    registry
        Where instances are announced: a URL or a registry; None if the peer that provides it has one.
    max_concurrent
        Calls of all methods that run at a time in one instance.
    lost
        Where calls without a result are kept, a folder; None if the peer that provides it has one, or keeps none.

    Examples
    --------
    >>> billing = Service("billing")
    >>> @billing.method(max_concurrent=8)
    ... async def total(order: bytes) -> bytes:
    ...     return order
    >>> list(billing.methods)
    ['total']
    """

    def __init__(
        self,
        name: str,
        *,
        registry: str | Registry | None = None,
        max_concurrent: int = CONCURRENT,
        lost: LostWhere | None = None,
    ) -> None:
        self.name = check_name("name", name)
        self.registry, self.lost = registry, lost
        self.max_concurrent = check.integer("max_concurrent", max_concurrent, 1, CONCURRENT_MAX)
        self.methods: dict[str, ServiceMethod] = {}

    @overload
    def method(self, function: F) -> F: ...

    @overload
    def method(
        self,
        *,
        name: str | None = None,
        max_concurrent: int = CONCURRENT,
        max_waiting: int = 0,
        idempotent: bool = False,
    ) -> Callable[[F], F]: ...

    def method(
        self,
        function: F | None = None,
        *,
        name: str | None = None,
        max_concurrent: int = CONCURRENT,
        max_waiting: int = 0,
        idempotent: bool = False,
    ) -> F | Callable[[F], F]:
        """Declare the function below as a method; its parameter and its result have annotations.

        A plain function runs in the event loop and must not block.
        """

        def declare(found: F) -> F:
            called = name if name is not None else getattr(found, "__name__", "")
            if called in self.methods:
                raise InvalidInput("method", called, f"a name that {self.name} does not have yet")
            if len(self.methods) >= METHODS_MAX:
                raise InvalidInput("method", called, f"at most {METHODS_MAX} methods in one service")
            self.methods[called] = ServiceMethod(
                called, found, max_concurrent=max_concurrent, max_waiting=max_waiting, idempotent=idempotent
            )
            return found

        return declare if function is None else declare(function)
