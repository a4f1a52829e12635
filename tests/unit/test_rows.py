"""docs/promises.md and the tests name the same rows.

The markers are read from the source of the tests, not from what pytest collected, so that the answer is the same when
only one test is run.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (?P<id>[A-Z]\d+) \| (?P<promise>[^|]+) \| (?P<status>[^|]+) \|$")


class Promise(NamedTuple):
    id: str
    status: str


class Claim(NamedTuple):
    """One id in one `rows(…)` marker, and where it stands."""

    id: str
    place: str


def promises(page: str) -> list[Promise]:
    matches = (ROW.match(line) for line in page.splitlines())
    return [Promise(match["id"], match["status"]) for match in matches if match]


def claims(source: str, name: str) -> Iterator[Claim]:
    if "rows" not in source:
        return
    for node in ast.walk(ast.parse(source, name)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "rows"):
            continue  # turning a name into text takes longer than all else here
        if ast.unparse(node.func).endswith("mark.rows"):
            place = f"{name}:{node.lineno}"
            for argument in node.args:
                assert isinstance(argument, ast.Constant), (
                    f"{place}: write the row ids out, they are read from the source"
                )
                assert isinstance(argument.value, str), f"{place}: a row id is a string"
                yield Claim(argument.value, place)


PROMISES = promises((ROOT / "docs/promises.md").read_text(encoding="utf-8"))


@cache
def all_claims() -> list[Claim]:
    """Return the claims of all tests; not at import, since every worker imports this file."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return [
        claim for path in paths for claim in claims(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
    ]


def test_the_page_is_well_formed():
    page = (ROOT / "docs/promises.md").read_text(encoding="utf-8")
    table_lines = [line for line in page.splitlines() if re.match(r"\| [A-Z]+\d", line)]
    assert len(PROMISES) == len(table_lines) > 0, "a row of docs/promises.md is not `| id | promise | status |`"
    assert [row_id for row_id, count in Counter(row.id for row in PROMISES).items() if count > 1] == []
    assert {row.status for row in PROMISES} <= {"open", "done"}


def test_every_row_of_every_design_is_listed():
    count = {"P": 19, "Q": 25, "K": 15, "G": 25, "D": 40}
    expected = {f"{letter}{number}" for letter, last in count.items() for number in range(1, last + 1)}
    expected |= {f"A{number}" for number in range(1, 29)} - {"A26"}  # A26 was withdrawn
    assert {row.id for row in PROMISES} == expected


def test_the_page_counts_its_rows():
    page = (ROOT / "docs/promises.md").read_text(encoding="utf-8")
    done = sum(row.status == "done" for row in PROMISES)
    assert f"All {len(PROMISES)} rows are here, {done} of them done" in page


def test_every_done_row_has_a_test():
    claimed = {claim.id for claim in all_claims()}
    assert [row.id for row in PROMISES if row.status == "done" and row.id not in claimed] == []


def test_no_test_is_long_as_a_whole():
    """Check each marker, since `make test-long` alone would show the rows of a test that is long as a whole."""
    marked = re.compile(r"^(@pytest\.mark\.long|pytestmark\b.*\blong)\b", re.MULTILINE)
    paths = (ROOT / "tests").rglob("test_*.py")
    assert [path.name for path in paths if marked.search(path.read_text(encoding="utf-8"))] == []


def test_no_test_carries_an_unknown_row():
    known = {row.id for row in PROMISES}
    assert [claim for claim in all_claims() if claim.id not in known] == []


def test_markers_are_found_wherever_pytest_accepts_them():
    source = """
pytestmark = [pytest.mark.rows("K1")]

@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.rows("K2", "K3"))])
def test_one(x): ...

class TestMany:
    @pytest.mark.rows("K4")
    async def test_two(self): ...
"""
    assert sorted(claims(source, "a.py")) == [("K1", "a.py:2"), ("K2", "a.py:4"), ("K3", "a.py:4"), ("K4", "a.py:8")]
