"""Conditions on messages in Spark's SQL, from a seed: nulls, negations, casts, time zones, constants on either side."""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random
from zoneinfo import ZoneInfo

COMPARISONS = ("=", "<", "<=", ">", ">=", "<=>", "<>")
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata")


class Predicates:
    """A generator of conditions; `times` are some at which messages were published."""

    def __init__(self, seed: int, times: list[datetime], keys: int, offsets: int) -> None:
        self._random, self._times, self._keys, self._offsets = Random(seed), times, keys, offsets

    def next(self, depth: int = 3) -> str:
        random = self._random
        if depth == 0 or random.random() < 0.3:
            return random.choice([self._number, self._number, self._key, self._time, self._time, self._other])()
        shape = random.choice(["AND", "AND", "OR", "NOT"])
        if shape == "NOT":
            return f"NOT ({self.next(depth - 1)})"
        return f"({self.next(depth - 1)}) {shape} ({self.next(depth - 1)})"

    def _number(self) -> str:
        random = self._random
        column, most = random.choice([("offset", self._offsets), ("priority", 100), ("partition", 3)])
        literal = self._integer(most)
        if random.random() < 0.25:
            column = random.choice(
                [f"coalesce({column}, 1)", f"CAST({column} AS DOUBLE)", f"-{column}", f"{column} + 1"]
            )
        listed = [self._integer(most) for _ in range(random.choice([1, 3, 15]))]
        return random.choice(
            [
                f"{column} {random.choice(COMPARISONS)} {literal}",
                f"{column} {random.choice(COMPARISONS)} {literal}",
                f"{literal} {random.choice(COMPARISONS)} {column}",
                f"{column} BETWEEN {literal} AND {self._integer(most)}",
                f"{column} NOT BETWEEN {literal} AND {self._integer(most)}",
                f"{column} {random.choice(['IN', 'NOT IN'])} ({', '.join(listed)})",
                f"{column} IS {random.choice(['', 'NOT '])}NULL",
                f"CASE WHEN {column} < {literal} THEN true ELSE {column} > {self._integer(most)} END",
            ]
        )

    def _integer(self, most: int) -> str:
        value = self._random.randint(-most // 4, most + most // 4)
        forms = [f"{value}", f"{value}", f"{value}L", f"CAST('{value}' AS INT)", f"{value}.5", f"'{value}'"]
        return self._random.choice([*forms, f"({value} + 1)", f"{value}e0", "NULL", "9223372036854775807"])

    def _key(self) -> str:
        random = self._random
        key = f"'k{random.randint(0, self._keys)}'"
        listed = [f"'k{random.randint(0, self._keys)}'" for _ in range(random.choice([1, 3, 15]))]
        listed += random.choice([[], ["NULL"], ["''"], ["'it''s'"], ["'kß\\u00e9'"]])
        return random.choice(
            [
                f"key = {key}",
                f"{key} <=> key",
                f"key {random.choice(COMPARISONS)} {key}",
                f"key {random.choice(['IN', 'NOT IN'])} ({', '.join(listed)})",
                f"upper(key) = upper({key})",
                f"key COLLATE UTF8_LCASE = upper({key})",
                f"coalesce(key, {key}) = {key}",
                "key LIKE 'k1%'",
                f"key IS {random.choice(['', 'NOT '])}NULL",
                f"key = concat('k', {random.randint(0, self._keys)})",
                f"KEY IN ({key}, id, concat('k', partition))",
            ]
        )

    def _time(self) -> str:
        random = self._random
        near = random.choice(self._times) + timedelta(
            microseconds=random.choice([-1_001, -1, 0, 0, 1, 999, 86_400_000_000])
        )
        zone = random.choice(ZONES)
        local = near.astimezone(ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S.%f")
        literal = random.choice(
            [f"TIMESTAMP'{local} {zone}'", f"TIMESTAMP'{local}'", f"'{local} {zone}'", f"'{local}'"]
        )
        date = random.choice([f"DATE'{local[:10]}'", f"CAST('{local[:10]}' AS DATE)"])
        other = random.choice(self._times).strftime("%Y-%m-%d %H:%M:%S.%f")
        return random.choice(
            [
                f"published {random.choice(COMPARISONS)} {literal}",
                f"published {random.choice(COMPARISONS)} {literal}",
                f"{literal} {random.choice(COMPARISONS)} published",
                f"published BETWEEN {literal} AND TIMESTAMP'{other} UTC'",
                f"published {random.choice(COMPARISONS)} {date}",
                f"CAST(published AS DATE) {random.choice(COMPARISONS)} {date}",
                f"published + INTERVAL 1 HOUR >= {literal}",
                f"to_utc_timestamp(published, '{zone}') < {literal}",
                f"date_trunc('HOUR', published) <= {literal}",
                f"unix_micros(published) {random.choice(COMPARISONS)} {int(near.timestamp() * 1_000_000)}",
                f"due {random.choice(COMPARISONS)} {literal}",
                f"published {random.choice(COMPARISONS)} now() - INTERVAL {random.choice([0, 1, 48])} HOURS",
                "published <= current_timestamp() AND CAST(published AS DATE) <= current_date()",
                "published <> TIMESTAMP'0001-01-01 00:00:00 UTC' AND published < TIMESTAMP'9999-12-31 00:00:00 UTC'",
            ]
        )

    def _other(self) -> str:
        return self._random.choice(
            [
                "headers['kind'] = 'odd'",
                "headers['kind'] <=> NULL",
                "size(headers) = 1",
                "length(payload) > 2",
                "CAST(payload AS STRING) LIKE '%1%'",
                "id IS NULL",
                "due IS NOT NULL",
                "expires IS NULL",
                "topic LIKE 't%'",
                "true",
                "CAST(NULL AS BOOLEAN)",
                "offset % 2 = 0",
            ]
        )
