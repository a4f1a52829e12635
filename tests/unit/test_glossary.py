"""One word for one thing: docs/glossary.md has the words of every surface, and words that were given up stay away."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import wherry.cli.main  # noqa: F401  declares the commands
from wherry.cli.frame import EXAMPLES
from wherry.wire.flight.actions import ACTIONS
from wherry.wire.http.endpoints import TABLES

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
GIVEN_UP = ("catalogue", "is_stuffed", "skimmed", "teller", "turnstile", "undertaker")
"""Words for which the glossary has another."""


def rows() -> list[list[str]]:
    """Return the lines of the glossary's tables: word, meaning, where it is seen, words that are not used."""
    lines = [line for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in found if row[0] != "word"]


def known() -> set[str]:
    """Return every word that the glossary explains, in the singular and as it is written in paths and commands."""
    words: set[str] = set()
    for word, _, seen, _ in rows():
        words |= set(re.findall(r"[\w-]+", word))
        for code in re.findall(r"`([^`]+)`", seen):
            words |= set(re.findall(r"[\w-]+", code))
    return words | {f"{word}s" for word in words}


def test_every_line_of_the_glossary_is_whole():
    assert [row for row in rows() if len(row) != 4 or not all(row)] == []
    words = [row[0] for row in rows()]
    assert sorted(words) == sorted(set(words)), "a word has two lines"


def test_every_command_is_in_the_glossary():
    words = {word for path in EXAMPLES for word in path.split()}
    assert words - known() - {"up"} == set()


def test_every_word_of_an_http_path_is_in_the_glossary():
    paths = [endpoint.path for table in TABLES for endpoint in table.endpoints]
    words = {part for path in paths if path.startswith("/v1/") for part in path.split("/")[2:] if "{" not in part}
    assert len(words) > 20
    assert words - known() == set()


def test_every_action_of_flight_is_in_the_glossary():
    words = {word for name in ACTIONS for word in name.split("-")}
    assert words - known() - {"at", "committed"} == set()


@pytest.mark.parametrize("word", GIVEN_UP)
def test_a_word_that_was_given_up_is_not_in_source_or_docs(word: str):
    pattern = re.compile(rf"(?<![a-z]){word}s?(?![a-z])", re.IGNORECASE)
    files = [path for kind in ("py", "js", "md", "html", "ts") for path in (ROOT / "src").rglob(f"*.{kind}")]
    files += [path for path in (ROOT / "docs").rglob("*.md") if path != GLOSSARY]
    files += [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
    found = [str(path.relative_to(ROOT)) for path in files if pattern.search(path.read_text(encoding="utf-8"))]
    assert found == []
    assert any(word in row[3] for row in rows()), "the glossary has the word that is used instead"


def test_every_class_that_the_glossary_names_exists():
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "wherry").rglob("*.py"))
    named = {code for _, _, seen, _ in rows() for code in re.findall(r"`([A-Z]\w*[a-z]\w*)`", seen)}
    assert len(named) > 10
    assert [
        name for name in sorted(named) if not re.search(rf"^(class {name}\b|{name} = )", source, re.MULTILINE)
    ] == []
