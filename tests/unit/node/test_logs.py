"""Logs for people and for programs, and no secret in either."""

import io
import logging
import sys

import msgspec
import pytest

from wherry.model.catalog.key import Right
from wherry.node import logs
from wherry.security.keys import make


def record(message, *args, fault=None, **fields):
    made = logging.getLogger("wherry.http").makeRecord(
        "wherry.http", logging.WARNING, __file__, 1, message, args, fault, extra=fields
    )
    made.created, made.msecs = 1_800_000_000.25, 250.0
    return made


def test_text_has_the_time_the_place_and_the_fields():
    line = logs.Text().format(record("slow %s", "disk", seconds=1.5, topic="jobs"))
    clock, rest = line.split(" ", 1)
    assert clock.endswith(".250")
    assert rest == "warning http: slow disk  seconds=1.5  topic=jobs"


def test_json_is_one_object_a_line():
    line = logs.Json().format(record("two\nlines", seconds=1.5, where={"a": 1}, level="not this one"))
    assert "\n" not in line
    assert msgspec.json.decode(line) == {
        "time": "2027-01-15T08:00:00.250Z",
        "level": "warning",
        "logger": "wherry.http",
        "message": "two\nlines",
        "seconds": 1.5,
        "where": {"a": 1},
    }


@pytest.mark.parametrize("value", [object(), "\udc80", float("nan"), {1, 2}, b"x", {("a", "b"): 1}, 1 << 80])
def test_whatever_is_logged_becomes_json(value):
    assert msgspec.json.decode(logs.Json().format(record("m", value=value)))["message"].strip("'") == "m"


@pytest.mark.parametrize("form", [logs.Text(), logs.Json()])
def test_no_secret_is_logged(form):
    token = make("ann", [Right("admin", "*")], now_ms=0).token
    try:
        raise ValueError(f"bad {token}")
    except ValueError:
        line = form.format(record("got %s", token, fault=sys.exc_info(), headers={"authorization": f"Bearer {token}"}))
    assert token[12:] not in line
    assert line.count(token[:11]) >= 3
    assert "ValueError" in line


@pytest.fixture
def root():
    """Yield the root logger, and put it back as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(False)


@pytest.mark.parametrize(("form", "first"), [("auto", "{"), ("json", "{"), ("text", "")])
def test_what_is_no_terminal_gets_json(root, form, first):
    out = io.StringIO()
    logs.set_up("warning", form, out)
    logging.getLogger("wherry.x").info("quiet")
    logging.getLogger("wherry.x").warning("loud")
    assert out.getvalue().count("\n") == 1
    assert out.getvalue().startswith(first)
    assert "loud" in out.getvalue()
