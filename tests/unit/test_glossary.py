"""One word for one thing: docs/glossary.md has the words of every surface, and words that were given up stay away."""

from __future__ import annotations

import re
from pathlib import Path

import wherry.cli.main  # noqa: F401  declares the commands
from wherry.cli.frame import EXAMPLES
from wherry.wire.flight.actions import ACTIONS
from wherry.wire.http.endpoints import TABLES

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"

_ORDINARY = """
account, add, available, barrier, blob, boot, bulk, cause, channel, checksum, chunk, clear, command, complete,
content, credential, cursor, data, delay, delayed, describe, drop, edit, endpoint, engine, event, example, exporter,
extend, fail, fault, fetch, filter, finish, format, get, group, handle, handler, hook, import, in flight, index,
info, kill, kind, lock, look, metadata, mode, move, notification, options, out, packet, pending, perf, place,
poll, prepare, process, proxy, publisher, range, read, receive, record, remove, result, return, rule,
safe, scenario, scope, send, shutdown, signal, start, state, status, subject, tags, tell, tenant, timers, touch,
truncate, try, up, update, view, worker
"""
ORDINARY = {word.strip() for word in _ORDINARY.split(",")}
"""Words of the last column that are also everyday words, or words of Python and of other systems: not searched for."""

OTHER_USES = {
    "catch-up": ("a figure of the benchmarks", ("docs/figures.md",)),
    "evict": ("blocks leave a cache", ("journal/bodies/segments/reading.py", "core/state/bodies.py")),
    "generation": ("of the simulated disk", ("sim/world/",)),
    "grave": ("the name of a topic of the simulator", ("sim/plan.py",)),
    "keep alive": ("of HTTP", ("wire/http/", "client/link/")),
    "lifetime": ("a parameter of dnspython", ("mesh/dns/lookup.py",)),
    "peek": ("at the front of an index", ("core/", "sim/plants/")),
    "revoke": ("a permission of RabbitMQ", ("wire/amqp/management/",)),
    "sequence number": ("of a producer's call", ("model/", "sim/clients/", "core/", "docs/flight.md")),
}
"""Words of the last column that mean something else at a few places: what, and where."""


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


def given_up() -> set[str]:
    """Return the words of the last column, without those that have a remark or a line of their own: they are in use."""
    cells = [re.sub(r"[^,(]*\([^)]*\)", "", row[3]) for row in rows()]
    words = {word.strip() for cell in cells for word in cell.split(",")} - {"", "–"}
    explained = {name for row in rows() for name in re.sub(r"\([^)]*\)", "", row[0]).replace(",", " ").split()}
    return words - explained


def texts() -> dict[str, str]:
    """Return source and docs by path, files of the package by their path in it. CONTRIBUTING.md quotes such words."""
    package = ROOT / "src" / "wherry"
    found = {
        path.relative_to(package): path for kind in ("py", "js", "html", "ts") for path in package.rglob(f"*.{kind}")
    }
    found |= {path.relative_to(ROOT): path for path in (ROOT / "docs").rglob("*.md") if path != GLOSSARY}
    found |= {Path(name): ROOT / name for name in ("README.md", "ARCHITECTURE.md")}
    return {name.as_posix(): path.read_text(encoding="utf-8").lower() for name, path in found.items()}


def uses(word: str, text: str) -> bool:
    """Return whether a text has a word, alone or as a part of a name; the text is in lower case."""
    spellings = {re.sub(r"[ -]", between, word) for between in (" ", "_", "-")}
    return any(re.search(rf"(?<![a-z]){each}s?(?![a-z])", text) is not None for each in spellings if each in text)


def test_words_that_were_given_up_are_not_in_source_or_docs():
    read = texts()
    found = [
        (word, name)
        for word in sorted(given_up() - ORDINARY)
        for name, text in read.items()
        if uses(word, text) and not name.startswith(OTHER_USES.get(word, ("", ()))[1])
    ]
    assert found == []


def test_exceptions_for_given_up_words_are_needed():
    words, read = given_up(), texts()
    assert ORDINARY - words == set()
    assert OTHER_USES.keys() - words == set()
    for word, (_, places) in OTHER_USES.items():
        for place in places:
            assert any(uses(word, text) for name, text in read.items() if name.startswith(place)), (word, place)


def test_every_class_that_the_glossary_names_exists():
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "wherry").rglob("*.py"))
    named = {code for _, _, seen, _ in rows() for code in re.findall(r"`([A-Z]\w*[a-z]\w*)`", seen)}
    assert len(named) > 10
    assert [
        name for name in sorted(named) if not re.search(rf"^(class {name}\b|{name} = )", source, re.MULTILINE)
    ] == []
