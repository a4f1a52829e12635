"""Errors as Flight sends them: the text begins with the code, and the code is also in a field for programs."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import flight

from wherry.model.errors import Closed, Forbidden, InvalidInput, Unauthorized, Unavailable, WherryError

_log = logging.getLogger("wherry.flight")

F = TypeVar("F", bound=Callable[..., Any])


TEXT_MAX = 1_000
"""Characters of one text in an error: gRPC sends errors as headers, and drops the call if these are above 8 KB."""


def as_flight(fault: WherryError) -> flight.FlightError:
    """Return the error as one of Flight, with its fields."""
    cut = {name: value[:TEXT_MAX] if isinstance(value, str) else value for name, value in vars(fault).items()}
    fields = {name: value for name, value in cut.items() if isinstance(value, str | int | float | None)}
    kind = flight.FlightServerError
    if isinstance(fault, Unauthorized):
        kind = flight.FlightUnauthenticatedError
    elif isinstance(fault, Forbidden):
        kind = flight.FlightUnauthorizedError
    elif isinstance(fault, Closed | Unavailable):
        kind = flight.FlightUnavailableError
    return kind(f"{fault.code}: {str(fault)[:TEXT_MAX]}", msgspec.json.encode({**fields, "code": fault.code}))


@contextmanager
def flight_errors() -> Iterator[None]:
    """Turn errors inside the block into errors of Flight; a fault of the broker is logged, and sent as `internal`."""
    try:
        yield
    except flight.FlightError:
        raise
    except WherryError as fault:
        raise as_flight(fault) from None
    except CancelledError:
        raise as_flight(Closed("the broker is closing, or the call was cancelled")) from None
    except (pa.ArrowInvalid, pa.ArrowIndexError) as fault:
        raise as_flight(InvalidInput("stream", str(fault)[:200], "a valid stream of Arrow batches")) from None
    except pa.ArrowCancelled:
        raise
    except Exception as fault:
        _log.exception("a call failed by a fault of the broker")
        raise flight.FlightInternalError(f"internal: {type(fault).__name__}") from None


def sends_errors(call: F) -> F:
    """Wrap a method so that its errors are errors of Flight."""

    @functools.wraps(call)
    def method(*args: Any) -> Any:
        with flight_errors():
            return call(*args)

    return method  # type: ignore[return-value]
