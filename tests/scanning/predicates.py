"""Predicates at random, for Polars and as SQL: comparisons, nulls, negations, casts, lists, time zones, and what joins
them.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl

from tests.scanning.worlds import KEYS

TOKYO = ZoneInfo("Asia/Tokyo")
col = pl.col


class Predicates:
    """Draws predicates about the rows of a world; `times` are times of publish that rows have."""

    def __init__(self, chance: random.Random, times: list[datetime], offset_max: int) -> None:
        self.chance, self.times, self.offset_max = chance, times, offset_max

    def offset(self) -> int:
        return self.chance.randrange(-5, self.offset_max + 5)

    def key(self) -> str:
        return self.chance.choice((*KEYS, "nobody"))

    def priority(self) -> int:
        return self.chance.choice((-1, 0, 1, 7, 8, 32_768, 65_535, 65_536))

    def time(self) -> datetime:
        near = timedelta(microseconds=self.chance.choice((-1_000_000, -1_000, -1, 0, 0, 1, 999, 86_400_000_000)))
        return self.chance.choice(self.times) + near

    def drawn(self) -> tuple[str, Callable[[], Any]]:
        """Return a column by which reads skip, and what draws values that rows of it have."""
        return self.chance.choice(
            (
                ("offset", lambda: self.chance.randrange(self.offset_max)),
                ("priority", lambda: self.chance.choice((0, 1, 7, 32_768, 65_535))),
                ("partition", lambda: self.chance.randrange(3)),
                ("published", lambda: self.chance.choice(self.times)),
                ("key", lambda: self.chance.choice(("ann", "bob", "ü"))),
            )
        )


class PolarsPredicates(Predicates):
    """Draws `pl.Expr`."""

    def one(self, depth: int = 3) -> pl.Expr:
        if depth and self.chance.random() < 0.6:
            left, right = self.one(depth - 1), self.one(depth - 1)
            joined: list[Callable[[], pl.Expr]] = [
                lambda: left & right,
                lambda: left | right,
                left.not_,
                lambda: left ^ right,
                lambda: pl.when(left).then(right).otherwise(~right),
                (left & right).is_null,
                lambda: left.fill_null(value=True) & right,
            ]
            return self.chance.choices(joined, (6, 5, 3, 1, 1, 1, 1))[0]()
        if self.chance.random() < 0.5:
            return self._skipping()
        return self.chance.choice((self._number, self._text, self._moment, self._other))()

    def _skipping(self) -> pl.Expr:
        """Draw comparisons of one column with values that rows have, joined: what is skipped ends beside these."""
        name, draw = self.drawn()
        column = col(name)
        found: pl.Expr | None = None
        for _ in range(self.chance.randrange(1, 4)):
            value = draw()
            one = self.chance.choice(
                (
                    column > value,
                    column >= value,
                    column < value,
                    column <= value,
                    column == value,
                    column.is_in([value]),
                )
            )
            joins = self.chance.choice((operator.or_, operator.or_, operator.and_))
            found = one if found is None else joins(found, one)
        assert found is not None
        return found

    def _number(self) -> pl.Expr:
        name, value = self.chance.choice(
            (("offset", self.offset()), ("priority", self.priority()), ("partition", self.chance.randrange(-1, 4)))
        )
        column = col(name)
        other = value + self.chance.randrange(-2, 30)
        return self.chance.choice(
            (
                column > value,
                column >= value,
                column < value,
                column <= value,
                column == value,
                column != value,
                pl.lit(value) > column,
                pl.lit(value) <= column,
                column.eq_missing(value),
                column.ne_missing(value),
                column == pl.lit(None, pl.Int64),
                column > value + 0.5,
                column.cast(pl.Float64) > value,
                column.cast(pl.Int16, strict=False) < value % 100,
                column.cast(pl.String) == str(value),
                column + 3 > value,
                -column < value,
                column.is_between(value, other, self.chance.choice(("both", "left", "right", "none"))),
                column.is_in([value, other]),
                column.is_in([value, None]),
                column.is_in([], nulls_equal=True) | column.is_null(),
                ~column.is_in([value, other]),
                column % 7 == value % 7,
                column > col("priority"),
            )
        )

    def _text(self) -> pl.Expr:
        column, key = col("key"), self.key()
        return self.chance.choice(
            (
                column == key,
                column != key,
                pl.lit(key) == column,
                column < key,
                column.eq_missing(key),
                column.eq_missing(pl.lit(None, pl.String)),
                column == pl.lit(None, pl.String),
                column.is_null(),
                column.is_not_null(),
                column.is_in([key, "ann"]),
                column.is_in([key, None]),
                column.is_in([key, None], nulls_equal=True),
                ~column.is_in([key], nulls_equal=True),
                column.str.starts_with("a"),
                column.str.to_uppercase() == key.upper(),
                column == col("id"),
                column.fill_null("ann") == key,
            )
        )

    def _moment(self) -> pl.Expr:
        column, at = col("published"), self.time()
        there = at.astimezone(TOKYO)
        return self.chance.choice(
            (
                column > at,
                column >= at,
                column < at,
                column <= at,
                column == at,
                column != at,
                pl.lit(at) > column,
                column.is_between(at, at + timedelta(seconds=1)),
                column.is_in([at, at + timedelta(microseconds=1)]),
                column.dt.convert_time_zone("Asia/Tokyo") >= there,
                column.dt.replace_time_zone(None) < at.replace(tzinfo=None),
                column.cast(pl.Datetime("ms", "UTC")) > at,
                column > pl.lit(at).cast(pl.Datetime("ms", "UTC")),
                column <= pl.lit(at, dtype=pl.Datetime("ns", "UTC")),
                column.dt.date() == at.date(),
                column.dt.epoch("us") >= int(at.timestamp()) * 1_000_000,
                column + pl.duration(hours=1) > at,
            )
        )

    def _other(self) -> pl.Expr:
        return self.chance.choice(
            (
                col("due").is_null(),
                col("due") > datetime(2030, 3, 17, 17, 45, tzinfo=UTC),
                col("payload") == b'{"n": 1, "city": null}',
                col("payload").bin.size() > 15,
                col("value").struct.field("n") > self.offset(),
                col("value").struct.field("city") == "Oslo",
                col("error").is_not_null(),
                col("id").is_not_null(),
                col("topic") == "nothing",
                col("topic") != "nothing",
                pl.lit(True),
                pl.lit(False),
            )
        )


class SqlPredicates(Predicates):
    """Draws conditions of SQL."""

    def one(self, depth: int = 3) -> str:
        if depth and self.chance.random() < 0.6:
            left, right = self.one(depth - 1), self.one(depth - 1)
            forms = (f"({left} AND {right})", f"({left} OR {right})", f"(NOT {left})", f"(({left}) IS NOT TRUE)")
            return self.chance.choices(
                (*forms, f"CASE WHEN {left} THEN {right} ELSE NOT {right} END"), (6, 5, 3, 1, 1)
            )[0]
        kinds = (self._skipping,) * 4 + (self._number, self._text, self._moment, self._other)
        return f"({self.chance.choice(kinds)()})"

    def _skipping(self) -> str:
        """Draw comparisons of one column with values that rows have, joined: what is skipped ends beside these."""
        name, draw = self.drawn()
        found = ""
        for _ in range(self.chance.randrange(1, 4)):
            value = draw()
            shown = f"TIMESTAMPTZ '{value.isoformat()}'" if isinstance(value, datetime) else repr(value)
            found += self.chance.choice((" OR ", " OR ", " AND ")) if found else ""
            found += f'"{name}" {self.chance.choice(("<", "<=", "=", ">=", ">"))} {shown}'
        return found

    def _sign(self) -> str:
        return self.chance.choice(("<", "<=", "=", "<>", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"))

    def _number(self) -> str:
        name, value = self.chance.choice(
            (('"offset"', self.offset()), ("priority", self.priority()), ("partition", self.chance.randrange(-1, 4)))
        )
        other = value + self.chance.randrange(-2, 30)
        return self.chance.choice(
            (
                *(f"{name} {self._sign()} {value}" for _ in range(6)),
                f"{value} {self._sign()} {name}",
                f"{name} BETWEEN {value} AND {other}",
                f"{name} IN ({value}, {other})",
                f"{name} IN ({value}, NULL)",
                f"{name} NOT IN ({value}, {other})",
                f"{name} > {value}.5",
                f"{name}::DOUBLE > {value}",
                f"{name}::VARCHAR = '{value}'",
                f"{name} + 3 > {value}",
                f"{name} = NULL",
                f"{name} > priority",
            )
        )

    def _text(self) -> str:
        key = "'" + self.key().replace("\x00", "") + "'"
        return self.chance.choice(
            (
                *(f"key {self._sign()} {key}" for _ in range(4)),
                "key IS NULL",
                "key IS NOT NULL",
                "key IS NOT DISTINCT FROM NULL",
                f"key IN ({key}, 'ann')",
                f"key IN ({key}, NULL)",
                f"key NOT IN ({key}, 'ann')",
                f"key IN ({key}, 'bob') OR key IS NULL",
                "key LIKE 'a%'",
                f"upper(key) = upper({key})",
                "key = id",
                f"coalesce(key, 'ann') = {key}",
            )
        )

    def _moment(self) -> str:
        at = self.time()
        here, there = (f"TIMESTAMPTZ '{each.isoformat()}'" for each in (at, at.astimezone(TOKYO)))
        return self.chance.choice(
            (
                *(f"published {self._sign()} {self.chance.choice((here, there))}" for _ in range(5)),
                f"published BETWEEN {here} AND {here} + INTERVAL 1 SECOND",
                f"published IN ({here}, {there})",
                f"published::DATE = DATE '{at.date()}'",
                f"published::TIMESTAMP < TIMESTAMP '{at.replace(tzinfo=None)}'",
                f"published + INTERVAL 1 HOUR > {here}",
                f"epoch_us(published) >= {int(at.timestamp())}000000",
            )
        )

    def _other(self) -> str:
        return self.chance.choice(
            (
                "due IS NULL",
                "due > TIMESTAMPTZ '2030-03-17T17:45:00+00:00'",
                "octet_length(payload) > 15",
                'payload = \'{"n": 1, "city": null}\'::BLOB',
                f"value.n > {self.offset()}",
                "value.city = 'Oslo'",
                "error IS NOT NULL",
                "headers['kind'] = 'order'",
                "headers IS NULL",
                "topic <> 'nothing'",
                "true",
            )
        )


def times_of(frame: Any) -> list[datetime]:
    return frame["published"].unique().sort().to_list()
