"""Paths of source files that the pages name exist, and so do the modules on the map in ARCHITECTURE.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "wherry"
FOLDERS = {path.name for path in SOURCE.iterdir() if path.is_dir() and not path.name.startswith("_")}
TOPS = FOLDERS | {"src", "clients", "tests", "bench", "examples", "docs"}
PAGES = [
    str(path.relative_to(ROOT))
    for path in (
        ROOT / "ARCHITECTURE.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs" / "adr").glob("*.md")),
    )
]


def named_paths(text: str) -> list[str]:
    """Return what is in backticks and looks like a path of the repository: a top folder and `/`, or an end of `.py`."""
    words = [code for code in re.findall(r"`([^`\n]+)`", text) if re.fullmatch(r"[\w./*-]+", code)]
    return [word for word in words if word.endswith(".py") or ("/" in word and word.split("/")[0] in TOPS)]


def is_there(path: str) -> bool:
    """Return whether a path names a file, a folder, a module, or a name in a module as in `core/decide/span.reach`."""
    if "/" not in path:
        return any(True for folder in ("src", "tests", "bench") for _ in (ROOT / folder).rglob(path))
    for base in (ROOT, SOURCE):
        if any(True for form in (path.rstrip("/"), f"{path}.py") for _ in base.glob(form)):
            return True
    module, _, name = path.rpartition(".")
    file = SOURCE / f"{module}.py"
    return (
        file.is_file()
        and re.search(rf"^\s*((async )?def|class) {name}\b|^{name}\b.*=", file.read_text(), re.M) is not None
    )


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_a_page_names_exists(page: str):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert sorted({path for path in named_paths(text) if not is_there(path)}) == []


def test_a_path_that_does_not_exist_is_found():
    text = "`core/none.py` `core/decide/span.reach` `core/decide/span.none` `tests/unit` `broker/` `GET /none.py` `a/b`"
    assert [path for path in named_paths(text) if not is_there(path)] == ["core/none.py", "core/decide/span.none"]


def unknown_modules(text: str) -> list[str]:
    """Return the names in the first column of the map's tables that are no module and no folder of their section."""
    unknown, section, inside = [], SOURCE, SOURCE
    for line in text.splitlines():
        if heading := re.match(r"### `([\w/]+?)/?`", line):
            section = inside = SOURCE / heading[1]
        elif below := re.match(r"`([\w/]+?)/`, ", line):
            section = inside = SOURCE / below[1]
        elif line.startswith("| ") and not line.startswith("| module"):
            cell = line.split("|")[1]
            if bold := re.search(r"\*\*`([\w/]+?)/?`\*\*", cell):
                inside = SOURCE / bold[1] if (SOURCE / bold[1]).is_dir() and "/" in bold[1] else section / bold[1]
            names = re.findall(r"`([\w/*]+?)/?`", cell)
            places = [inside, section, *(section / name for name in names), *(inside / name for name in names), SOURCE]
            unknown += [
                name
                for name in names
                if not any(True for place in places for form in (name, f"{name}.py") for _ in place.glob(form))
            ]
    return unknown


def test_every_module_on_the_map_exists():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert unknown_modules(text[text.index("## The map") : text.index("## Invariants")]) == []


def test_a_module_that_is_not_there_is_found_on_the_map():
    core = "### `core/`: x\n| **`core/state`** | | |\n| `catalog`, `gone` | x | y |\n"
    http = "### `wire/http/`: x\n| `app`, `catalog` | x | y |\n"
    assert unknown_modules(core + http) == ["gone", "catalog"]
