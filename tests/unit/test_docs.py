"""The pages that people read: links that lead somewhere, a site that has them all, and a README that stays short."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from docs import site
from wherry.model import limits
from wherry.model.catalog.subscription import STARTS, Retry, Subscription
from wherry.model.catalog.topic import (
    KEEPS,
    ORDERS,
    OVERFLOWS,
    Topic,
)

ROOT = Path(__file__).parents[2]
PAGES = sorted(["README.md", *site.sources(), *(str(path.relative_to(ROOT)) for path in ROOT.glob("examples/*/*.md"))])
README_LINES_MAX = 160


def slugs(page: str) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    counts: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ (.*?)\s*$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
        counts[slug] += 1
    return found


def dead_links(page: str, text: str) -> list[str]:
    """Return the links of a text that lead to no file, or to no heading of their file."""
    dead = []
    for link in site.links(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, heading = site.target(page, link)
        if not (ROOT / path).exists() or (heading and heading not in slugs(path)):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_to_a_file_and_a_heading_that_exist(page: str):
    assert dead_links(page, (ROOT / page).read_text(encoding="utf-8")) == []


def test_a_dead_link_is_found():
    text = "[a](limits.md) [b](none.md) [`c`](limits.md#none) `[d](code.md)` [e](#f) ![g](images/h.png)\n"
    assert dead_links("docs/index.md", text) == ["none.md", "limits.md#none", "#f", "images/h.png"]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES_MAX


def entries(nav: list[Any]) -> list[str]:
    """Return the pages of a navigation, in its order."""
    found: list[str] = []
    for entry in nav:
        [below] = entry.values()
        found += entries(below) if isinstance(below, list) else [below]
    return found


def test_the_navigation_of_the_site_has_four_parts_and_every_page_once():
    nav = tomllib.loads((ROOT / "docs/zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    assert [name for entry in nav[1:] for name in entry] == ["Tutorials", "How-to guides", "Reference", "Explanation"]
    decisions = {page for page in site.sources().values() if re.match(r"adr/\d", page)}
    assert sorted(entries(nav)) == sorted(set(site.sources().values()) - decisions)
    index = (ROOT / "docs/adr/index.md").read_text(encoding="utf-8")
    assert {f"adr/{link}" for link in site.links(index)} == decisions


def test_the_first_page_links_every_page_of_the_navigation():
    nav = tomllib.loads((ROOT / "docs/zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    first = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    linked = {
        site.sources()[site.target("docs/index.md", link)[0]] for link in site.links(first) if link.endswith("md")
    }
    assert linked == set(entries(nav)) - {"index.md", "differences.md"}


def test_pages_are_gathered_with_links_that_stay_within_the_site(tmp_path: Path):
    site.gather(tmp_path)
    pages = tmp_path / "pages"
    for name in site.sources().values():
        for link in site.links((pages / name).read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:|#", link):
                there = (pages / name).parent / link.partition("#")[0]
                assert there.is_file() and there.resolve().is_relative_to(pages), (name, link)
    assert "[ARCHITECTURE.md](ARCHITECTURE.md)" in (pages / "why.md").read_text(encoding="utf-8")
    assert "`examples/spark`" in (pages / "pipelines.md").read_text(encoding="utf-8")


def test_what_a_built_page_loads_from_the_network_is_found(tmp_path: Path):
    (tmp_path / "page.html").write_text(
        '<script src="https://cdn.example/a.js"></script><link rel="stylesheet" href="//cdn.example/b.css">'
        '<a href="https://example.org">fine</a><img src="images/c.png"><script src="d.js"></script>'
        '<pre class="mermaid"><code>graph LR</code></pre>'
    )
    (tmp_path / "style.css").write_text(
        "@font-face { src: url(https://cdn.example/e.woff2) } a { background: url(f.png) }"
    )
    found = [line.partition(": ")[2] for line in site.remote(tmp_path)]
    assert found == ["https://cdn.example/a.js", "//cdn.example/b.css", "mermaid", "https://cdn.example/e.woff2"]


@pytest.mark.parametrize(
    ("row", "bounds"),
    [
        ("name of a topic", [limits.TOPIC_NAME_BYTES_MAX]),
        ("name of a subscription, a route or an API key", [limits.SUBSCRIPTION_NAME_CHARS_MAX]),
        ("name of a subscription, a route or an API key", [limits.ROUTE_NAME_CHARS_MAX]),
        ("name of a subscription, a route or an API key", [limits.KEY_NAME_BYTES_MAX]),
        ("id of a consumer or a producer", [limits.CONSUMER_ID_CHARS_MAX]),
        ("id of a consumer or a producer", [limits.PRODUCER_ID_CHARS_MAX]),
        ("id of a message", [limits.MESSAGE_ID_BYTES_MAX]),
        ("key of a message", [limits.KEY_BYTES_MAX]),
        ("headers of a message", [limits.HEADERS_MAX, limits.HEADERS_BYTES_MAX]),
        ("envelope of a message", [limits.ENVELOPE_BYTES_MAX]),
        ("labels of a topic", [limits.LABELS_BYTES_MAX]),
        ("key of a transaction", [limits.STAGE_KEY_CHARS_MAX]),
        ("partitions of a topic", [limits.PARTITIONS_MAX]),
        ("priority", [0, limits.PRIORITY_MAX]),
        ("attempts of a retry policy", [limits.ATTEMPTS_MAX]),
        ("body of a message", [limits.PAYLOAD_BYTES_DEFAULT, limits.PAYLOAD_BYTES_MAX >> 20]),
        ("consumers of a subscription", [limits.CONSUMERS_PER_SUBSCRIPTION_MAX]),
    ],
)
def test_the_page_of_limits_and_the_code_have_the_same_bounds(row: str, bounds: list[int]):
    page = (ROOT / "docs/limits.md").read_text(encoding="utf-8")
    [line] = re.findall(rf"^\| {re.escape(row)}\b[^|]*\|([^|]*)\|", page, re.MULTILINE)
    assert [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", line)] == bounds


@pytest.mark.parametrize("struct", [Topic, Subscription, Retry])
def test_the_page_of_semantics_names_every_setting(struct: Any):
    page = (ROOT / "docs/semantics.md").read_text(encoding="utf-8")
    assert [field for field in struct.__struct_fields__ if not re.search(rf"\b{field}\b", page)] == []


def test_the_page_of_semantics_names_every_value_of_a_setting():
    page = (ROOT / "docs/semantics.md").read_text(encoding="utf-8")
    words = [*ORDERS, *OVERFLOWS, *KEEPS, *STARTS, "all", "waiting"]
    assert [word for word in words if f"`{word}`" not in page and f'"{word}"' not in page] == []


def test_the_topic_bounds_the_size_of_a_body():
    assert f"up to {limits.PAYLOAD_BYTES_MAX >> 20} MiB" in (Topic.__doc__ or "")
