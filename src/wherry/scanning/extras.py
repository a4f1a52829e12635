"""Libraries that a user may not have: imported when they are needed, with the line that installs them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from wherry.model.errors import InvalidInput


def needed(name: str) -> Any:
    """Return a module; raise `InvalidInput` with the way to install it if it is not there."""
    try:
        return import_module(name)
    except ModuleNotFoundError as fault:
        if fault.name != name:
            raise
        raise InvalidInput(name, None, f"{name}, which is not installed: pip install 'wherry[{name}]'") from None
