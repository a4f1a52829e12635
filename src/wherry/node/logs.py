"""Logs: text on a terminal, else one JSON object a line. Neither contains a secret.

Fields are given beside the message: `log.info("closed", extra={"seconds": 1.2})`.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from typing import Literal, TextIO

import msgspec

from wherry.security.keys import masked

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""The attributes of every record; all others come from `extra`."""

_ENCODER = msgspec.json.Encoder(enc_hook=repr, decimal_format="number")


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields that were given in `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _PLAIN}


def _trace(record: logging.LogRecord) -> str:
    return "".join(traceback.format_exception(*record.exc_info)).rstrip() if record.exc_info else ""


class Text(logging.Formatter):
    """`12:30:01.250 warning http: message  name=value`, in local time."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        name = record.name.removeprefix("wherry.")
        more = "".join(f"  {field}={value}" for field, value in fields_of(record).items())
        level = record.levelname.lower()
        line = f"{clock}.{int(record.msecs):03} {level:<7} {name}: {record.getMessage()}{more}"
        trace = _trace(record)
        return masked(f"{line}\n{trace}" if trace else line)


class Json(logging.Formatter):
    """One object a line: `time` (UTC), `level`, `logger`, `message`, the fields, and `trace` for a fault."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{stamp}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in fields_of(record).items() if name not in line}
        trace = _trace(record)
        if trace:
            line["trace"] = trace
        return masked(_encoded(line))


def _encoded(line: dict[str, object]) -> str:
    try:
        return _ENCODER.encode(line).decode()
    except (TypeError, ValueError):  # a lone surrogate, or a value that msgspec cannot encode
        return msgspec.json.encode({name: ascii(value) for name, value in line.items()}).decode()


def set_up(level: str, form: Literal["auto", "text", "json"], stream: TextIO | None = None) -> None:
    """Send the logs of the process to a stream, by default stderr."""
    out = stream or sys.stderr
    handler = logging.StreamHandler(out)
    as_text = form == "text" or (form == "auto" and out.isatty())
    handler.setFormatter(Text() if as_text else Json())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
