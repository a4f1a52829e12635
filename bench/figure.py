"""One measured figure and what it is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.measuring import short


@dataclass(frozen=True)
class Figure:
    """`name` is stable and begins with the part; `ratio` is value by against_value."""

    name: str
    value: float
    unit: str
    against: str
    against_value: float

    @property
    def ratio(self) -> float:
        """Return how the value compares."""
        return self.value / self.against_value if self.against_value else float("nan")

    def row(self) -> dict[str, Any]:
        """Return a row for the JSON file."""
        return {
            "name": self.name,
            "value": round(self.value, 4),
            "unit": self.unit,
            "against": self.against,
            "against_value": round(self.against_value, 4),
            "ratio": round(self.ratio, 4),
        }


def table(figures: list[Figure]) -> str:
    """Return the table for people."""
    rows = [("name", "value", "unit", "ratio", "against")]
    rows += [
        (f.name, short(f.value), f.unit, f"{f.ratio:.2f}", f"{f.against} ({short(f.against_value)})") for f in figures
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
