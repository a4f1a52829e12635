"""Output: tables for people, one JSON object a line for programs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH_UNSEEN = 10_000
"""The width without a terminal: nothing is cut, since a program reads it."""

CELL_CHARS_MAX = 60
WORD_CHARS_MIN = 8

_NUMBER = re.compile(r"\d[\d.,]*(?: [a-zA-Z]{1,3})?")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d [\d:.]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def console(*, err: bool = False) -> Console:
    """Return a console; content of messages is never taken for markup."""
    from rich.console import Console  # not needed for JSON

    stream = sys.stderr if err else sys.stdout
    width = None if stream.isatty() else WIDTH_UNSEEN
    return Console(stderr=err, highlight=False, markup=False, emoji=False, width=width, soft_wrap=not stream.isatty())


def note(text: str) -> None:
    """Print a note on stderr, so that a pipe gets data only."""
    typer.secho(text, err=True, dim=True)


def as_json(value: object) -> None:
    """Print an object as one line."""
    import msgspec  # not needed for `--help`

    typer.echo(msgspec.json.encode(value).decode())


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return cells as text; numbers to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="bold")
    lines = [[cell(value) for value in row] for row in rows]
    for place, name in enumerate(columns):
        texts = [line[place] for line in lines if line[place]]
        number = bool(texts) and all(map(_NUMBER.fullmatch, texts))
        whole = number or all(map(_MOMENT.fullmatch, texts))  # a narrow terminal cuts words, never figures
        least = min(WORD_CHARS_MIN, max(map(len, (name, *texts))))
        made.add_column(name, justify="right" if number else "left", no_wrap=whole, overflow="fold", min_width=least)
    for line in lines:
        made.add_row(*line)
    return made


def show(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], *, json: bool, empty: str) -> None:
    """Print a listing. `columns` are headings by field; JSON has all fields; `empty` is printed if it has no rows."""
    if json:
        for row in rows:
            as_json(row)
    elif rows:
        console().print(table(list(columns.values()), [[row.get(name) for name in columns] for row in rows]))
    else:
        note(empty)


def fields(value: Mapping[str, Any], *, json: bool) -> None:
    """Print one thing, a line for each field."""
    if json:
        as_json(value)
        return
    lines = [(name, inner) for name, inner in _flat(value) if inner not in (None, {}, [])]
    width = max((len(name) for name, _ in lines), default=0)
    for name, inner in lines:
        typer.echo(f"{name:<{width}}  {safe(_plain(inner))}")


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from _flat(inner, f"{prefix}{name}.")
        elif name.endswith("_ms") and isinstance(inner, int) and inner > 1e11:
            yield prefix + name, f"{inner} ({moment(inner)})"
        else:
            yield prefix + name, inner


def safe(text: str) -> str:
    """Return text without control characters, which could move the cursor."""
    return _CONTROL.sub("�", text)


def cell(value: object) -> str:
    """Return a value as one short line."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.1f}"
        case dict():
            text = " ".join(f"{name}={inner}" for name, inner in value.items())
        case list() | tuple():
            text = " ".join(map(str, value))
        case _:
            text = str(value)
    text = safe(text).replace("\n", "⏎").replace("\t", " ")
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"


def body(row: Mapping[str, Any]) -> str:
    """Return the payload of a message, in the fields of docs/http.md, for a cell."""
    text = row.get("payload")
    if text is None:
        return f"base64 {row.get('payload_base64', '')}"
    return str(text)


def moment(ms: int | None) -> str:
    """Return an instant in local time."""
    if ms is None:
        return ""
    return datetime.fromtimestamp(ms / 1_000).astimezone().isoformat(sep=" ", timespec="milliseconds")[:23]


def many(count: int, what: str) -> str:
    """Return `1 message`, `2,000 messages`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def size(count: float) -> str:
    """Return a number of bytes with its unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def span(ms: float) -> str:
    """Return a duration with its unit."""
    if ms < 1_000:
        return f"{ms:,.0f} ms" if ms >= 10 or ms == 0 else f"{ms:.1f} ms"
    for unit, length, most in (("s", 1e3, 6e4), ("m", 6e4, 3.6e6), ("h", 3.6e6, 8.64e7)):
        if ms < most:
            return f"{ms / length:,.1f} {unit}"
    return f"{ms / 8.64e7:,.1f} d"
