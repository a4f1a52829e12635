"""Replace an attribute for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def patched(owner: object, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace an attribute by what `make` returns for the old value, and restore it afterwards."""
    old = getattr(owner, name)
    setattr(owner, name, make(old))
    try:
        yield
    finally:
        setattr(owner, name, old)
