"""A method of a service as it is declared: its function, the types of its argument and result, and its limits.

Types are read from annotations, and checked when the method is declared. An argument is a msgspec struct, or any type
that msgspec knows, or bytes, which are passed on as they are. The functions that do the work are never called here.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, get_type_hints

import msgspec

from wherry.mesh.instance import NAME_CHARS_MAX
from wherry.model import check
from wherry.model.errors import InvalidInput
from wherry.service.values import BYTES, ValueCodec

CONCURRENT_MAX: Final = 1_000_000
WAITING_MAX: Final = 100_000

Function = Callable[..., Awaitable[Any]] | Callable[..., Any]


class ServiceMethod:
    """One method of a service.

    Parameters
    ----------
    max_concurrent
        Calls of this method that run at a time in one instance.
    max_waiting
        Calls that wait for one of those to end, in the order in which they came; at 0 one more is refused as full.
    idempotent
        Whether a call may be run twice: then a caller may send it again after an outcome that is unknown.
    """

    __slots__ = (
        "argument",
        "function",
        "has_argument",
        "idempotent",
        "is_async",
        "max_concurrent",
        "max_waiting",
        "name",
        "result",
        "summary",
    )

    def __init__(
        self, name: str, function: Function, *, max_concurrent: int, max_waiting: int = 0, idempotent: bool = False
    ) -> None:
        self.name = check_name("method", name)
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.max_concurrent = check.integer("max_concurrent", max_concurrent, 1, CONCURRENT_MAX)
        self.max_waiting = check.integer("max_waiting", max_waiting, 0, WAITING_MAX)
        self.idempotent = check.flag("idempotent", idempotent)
        argument, result = _types(name, function)
        self.has_argument = argument is not None
        self.argument = ValueCodec(argument if argument is not None else bytes)
        self.result = ValueCodec(result)
        self.summary = (inspect.getdoc(function) or "").partition("\n")[0]


def check_name(field: str, name: object) -> str:
    """Return the name of a service or a method; it has no dot and no slash, since both part it from others."""
    found = check.graphic(field, name, NAME_CHARS_MAX)
    if not found.isascii() or any(sign in found for sign in "./?#%"):
        raise InvalidInput(field, name, "visible ASCII characters without . / ? # %")
    return found


def _types(name: str, function: Function) -> tuple[Any, Any]:
    """Return the types of the argument, None without one, and of the result of a function."""
    if not callable(function):
        raise InvalidInput("method", function, "a function")
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as fault:
        raise InvalidInput(f"{name}: annotations", str(fault), "types that can be found where it is declared") from None
    parameters = list(inspect.signature(function).parameters.values())
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(parameters) > 1 or any(each.kind not in by_place for each in parameters):
        names = [each.name for each in parameters]
        raise InvalidInput(f"{name}: parameters", names, "one parameter that can be given by place, or none")
    argument: Any = None
    if parameters:
        if parameters[0].name not in hints:
            raise InvalidInput(f"{name}: {parameters[0].name}", "no annotation", "a type: a msgspec struct, or bytes")
        argument = hints[parameters[0].name]
    if "return" not in hints:
        raise InvalidInput(f"{name}: return", "no annotation", "a type: a msgspec struct, bytes, or None")
    for field, kind in ((parameters[0].name if parameters else "", argument), ("return", hints["return"])):
        if kind is not None and kind is not BYTES:
            _check_type(f"{name}: {field}", kind)
    return argument, hints["return"]


def _check_type(field: str, kind: Any) -> None:
    try:
        msgspec.json.Decoder(kind)
        msgspec.msgpack.Decoder(kind)
    except (TypeError, ValueError) as fault:
        raise InvalidInput(field, kind, f"a type that msgspec can decode ({fault})") from None
