"""What the console is made of: small, whole, and under a policy that lets nothing else in."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.behaviour.web import Web, web
from tests.console.conftest import folder

BYTES_MAX = {"index.html": 190_000, "services/index.html": 80_000}
"""What a page loads at most, with its style."""


def files() -> list[Path]:
    return sorted(path for path in folder().resolve().rglob("*") if path.is_file())


def on_web(test):
    async def main() -> None:
        async with web() as found:
            await test(found)

    asyncio.run(main())


def test_the_page_takes_what_a_provider_may_append_to_its_address_and_nothing_else():
    async def test(found: Web) -> None:
        page = await found.ask("GET /console?code=c&state=s&iss=https%3A%2F%2Fid.example&session_state=x")
        assert (page.status, page.headers["cache-control"]) == (200, "no-store")
        for query in ("token=x", "access_token=x", "code=a&code=b", "next=https%3A%2F%2Fevil.example"):
            assert (await found.ask(f"GET /console?{query}")).status == 400, query

    on_web(test)


@pytest.mark.rows("A13")
def test_every_file_is_served_under_a_strict_policy():
    async def test(found: Web) -> None:
        page = await found.ask("GET /console")
        assert (page.status, page.kind) == (200, "text/html; charset=utf-8")
        for path in files():
            if path.suffix == ".html":
                continue
            reply = await found.ask(f"GET /console/{path.relative_to(folder())}")
            assert reply.body == path.read_bytes()
            assert reply.headers["content-security-policy"] == page.headers["content-security-policy"]
        policy = page.headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "style-src 'self';" in policy
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert page.headers["x-content-type-options"] == "nosniff"

    on_web(test)


@pytest.mark.rows("A13")
def test_nothing_else_is_served():
    async def test(found: Web) -> None:
        for name in (
            "none.js",
            "index.html",
            "services/index.html",
            "..%2F__init__.py",
            "..%2Fconsole%2Fstart.js",
            "%2Fetc%2Fpasswd",
            "x",
            "pages",
        ):
            assert (await found.ask(f"GET /console/{name}")).status == 404, name

    on_web(test)


@pytest.mark.rows("A13")
def test_the_console_is_small_and_needs_nothing_from_elsewhere():
    texts = {path.relative_to(folder()).as_posix(): path.read_text() for path in files()}
    parts = {page: loaded(texts, page) for page in BYTES_MAX}
    for page, names in parts.items():
        assert sum(len(texts[name].encode()) for name in names) < BYTES_MAX[page], page
    assert set(texts) == set().union(*parts.values()), "each file is part of a page"
    for name, text in texts.items():
        links = [each for each in re.findall(r"https?://[^\"'\s)]+", text) if "w3.org" not in each]
        assert all("avro.apache.org" in each for each in links), (name, links)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            name
        )
        for wanted in re.findall(r'from "(\.[^"]+)"', text):
            assert (folder() / name).parent.joinpath(wanted).resolve() in files(), (name, wanted)
        assert name.endswith(".css") or len(text.splitlines()) < 300, name
    for page in BYTES_MAX:
        assert not re.search(r"<script>|\son\w+=|style=", texts[page]), page


def loaded(texts: dict[str, str], page: str) -> set[str]:
    """Return what a page loads: itself, what it links, and what that imports."""
    found, left = {page}, re.findall(r'"/console/([^"]+)"', texts[page])
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            wanted = re.findall(r'from "(\.[^"]+)"', texts[name])
            left += [
                (folder() / name).parent.joinpath(each).resolve().relative_to(folder()).as_posix() for each in wanted
            ]
    return found


def luminance(colour: str) -> float:
    """Return the luminance of a colour as WCAG 2 defines it."""
    text = colour.removeprefix("#")
    parts = [int(each * 2, 16) for each in text] if len(text) == 3 else [int(text[at : at + 2], 16) for at in (0, 2, 4)]
    linear = [part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_readable_in_light_and_dark():
    style = (folder() / "style.css").read_text()
    themes = [
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6})", part)) for part in re.findall(r"{([^{}]*--bg:[^{}]*)}", style)
    ]
    assert len(themes) == 3
    assert themes[1] == themes[2], "dark by choice is dark by system"
    for theme in themes:
        for ground in ("bg", "surface", "raised", "sunken"):
            for text in ("text", "muted", "accent", "bad", "warn", "good", "second"):
                assert contrast(theme[text], theme[ground]) >= 4.5, (text, ground, theme)
            assert contrast(theme["strong-line"], theme[ground]) >= 3 or ground == "sunken", (ground, theme)
        for tone in ("accent", "bad", "warn", "good"):
            assert contrast(theme[tone], theme[f"{tone}-soft"]) >= 4.5, (tone, theme)
        assert contrast(theme["accent-text"], theme["accent"]) >= 4.5
