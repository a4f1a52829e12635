"""Lists as tools ask for them: one page, filtered by name, sorted, with some of the columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from wherry.model.errors import InvalidInput
from wherry.wire.amqp.management.asking import DIGITS_MAX, Row

PAGE_SIZE, PAGE_SIZE_MAX = 100, 500
EXPRESSION_MAX = 500


def shown(found: Any, query: Mapping[str, str]) -> Any:
    """Return what was found in the form asked for. Only with `page` a list is filtered by name, and has its counts."""
    if not isinstance(found, list):
        return _columns(found, query) if isinstance(found, dict) else found
    if "page" not in query:
        return [_columns(row, query) for row in _sorted(found, query)]
    page, size = _whole(query, "page", 1), _whole(query, "page_size", PAGE_SIZE)
    if size > PAGE_SIZE_MAX:
        raise InvalidInput("page_size", size, f"at most {PAGE_SIZE_MAX}")
    wanted = _sorted(_named(found, query), query)
    pages = max(1, -(-len(wanted) // size))
    if page > pages:
        raise InvalidInput("page", page, f"a page in range: there are {len(wanted)} in pages of {size}")
    items = wanted[(page - 1) * size : page * size]
    return {
        "filtered_count": len(wanted),
        "item_count": len(items),
        "items": [_columns(row, query) for row in items],
        "page": page,
        "page_count": pages,
        "page_size": size,
        "total_count": len(found),
    }


def _whole(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, "")
    if text and not (text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX and 0 < int(text) < 1 << 31):
        raise InvalidInput(name, text, "a whole number from 1 on")
    return int(text) if text else default


def _named(rows: list[Row], query: Mapping[str, str]) -> list[Row]:
    """Return rows whose names contain a text, or match a regular expression.

    The time of RE2 grows only with the length of the names, whatever the expression; an expression it does not know is
    refused.
    """
    wanted = query.get("name", "")
    if not wanted:
        return rows
    names = [str(row.get("name", "")) for row in rows]
    if query.get("use_regex", "").lower() != "true":
        return [row for row, name in zip(rows, names, strict=True) if wanted.lower() in name.lower()]
    if len(wanted) > EXPRESSION_MAX:
        raise InvalidInput("name", wanted[:80], f"an expression of at most {EXPRESSION_MAX} characters")
    try:
        fits = pc.match_substring_regex(pa.array(names, pa.string()), wanted, ignore_case=True).to_pylist()
    except (pa.ArrowInvalid, UnicodeEncodeError) as fault:
        raise InvalidInput("name", wanted, f"a regular expression ({fault})") from None
    return [row for row, fit in zip(rows, fits, strict=True) if fit]


def _sorted(rows: list[Row], query: Mapping[str, str]) -> list[Row]:
    by = query.get("sort", "")
    if not by:
        return rows
    reverse = query.get("sort_reverse", "").lower() == "true"
    return sorted(rows, key=lambda row: _ranked(_at(row, by)), reverse=reverse)


def _ranked(value: Any) -> tuple[int, float, str]:
    """Return a sort key: numbers before texts before all else, as values of one column may be of several kinds."""
    if isinstance(value, int | float):
        return 0, float(value), ""
    return (1, 0.0, value) if isinstance(value, str) else (2, 0.0, "")


def _at(row: Any, path: str) -> Any:
    """Return the value of a column; a dot leads into nested objects."""
    for step in path.split("."):
        row = row.get(step) if isinstance(row, dict) else None
    return row


def _columns(row: Any, query: Mapping[str, str]) -> Any:
    """Return the columns that were asked for, as far as they exist; all of them where none were."""
    wanted = [name for name in query.get("columns", "").split(",") if name]
    if not wanted or not isinstance(row, dict):
        return row
    chosen: Row = {}
    for path in wanted:
        value = _at(row, path)
        if value is None and "." in path:
            continue
        *outer, last = path.split(".")
        if last not in (_at(row, ".".join(outer)) if outer else row):
            continue
        place = chosen
        for step in outer:
            place = place.setdefault(step, {})
        place[last] = value
    return chosen
