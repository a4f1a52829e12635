"""What people type, and what it means."""

import time
from datetime import UTC, datetime

import pytest
import typer

from wherry.cli.values import duration, given, instant, pairs, utc
from wherry.spark.options.times import instant_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500ms", 500),
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("1.5s", 1_500),
        ("2w", 1_209_600_000),
        ("10 minutes", 600_000),
        ("1 hour 30 min", 5_400_000),
    ],
)
def test_a_duration_is_read(text, ms):
    assert duration(text) == ms


@pytest.mark.parametrize("text", ["", "10", "m", "10 months", "-5s", "1h30"])
def test_a_text_that_is_no_duration_is_refused_with_what_is_allowed(text):
    with pytest.raises(typer.BadParameter, match="write 500ms"):
        duration(text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1794747724420", 1_794_747_724_420),
        ("now", 1_000_000),
        ("in 10m", 1_600_000),
        ("1s ago", 999_000),
        ("10 minutes ago", 400_000),
        ("1m30s ago", 910_000),
        ("1970-01-01T00:00:05+00:00", 5_000),
        ("1970-01-01T00:00:05Z", 5_000),
    ],
)
def test_an_instant_is_read(text, ms):
    assert instant(text, now_ms=1_000_000) == ms


def test_a_time_without_a_zone_is_local():
    local = datetime(2027, 1, 31, 12, 0).astimezone()
    assert instant("2027-01-31T12:00") == round(local.astimezone(UTC).timestamp() * 1_000)


def test_a_time_of_a_pipeline_is_utc(monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert utc("2027-05-01") == utc("2027-05-01T02:00+02:00") == instant_ms("since", "2027-05-01", 0)
        assert instant("2027-05-01") - utc("2027-05-01") == 4 * 3_600_000
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["soon", "in ten minutes", "2027-13-01", ""])
def test_a_text_that_is_no_instant_is_refused_with_what_is_allowed(text):
    with pytest.raises(typer.BadParameter, match="write"):
        instant(text)


def test_headers_are_pairs():
    assert pairs(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    assert pairs([]) is None
    with pytest.raises(typer.BadParameter, match="name=value"):
        pairs(["novalue"])


def test_only_what_was_given_is_sent():
    assert given(a=None, b=False, c=0) == {"b": False, "c": 0}
