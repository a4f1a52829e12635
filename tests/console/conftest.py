"""A node to look at, and a real browser to look with: what a page logs or the policy forbids fails the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, expect

from tests.browsers import browser  # noqa: F401
from tests.integration.served import Served, served
from wherry.node.config import FlightSection

WAIT_MS = 15_000
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Yield a node without keys."""
    with served(tmp_path_factory.mktemp("node"), flight=FlightSection(enabled=False)) as found:
        yield found


Opening = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opening]:  # noqa: F811
    """Open a page of the console; `quiet=False` where the test expects the browser to log failed requests."""
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    def alerted(shown: Dialog) -> None:
        faults.append(f"alert: {shown.message}")
        shown.dismiss()

    def open_page(
        url: str,
        place: str = "",
        *,
        path: str = "/console",
        quiet: bool = True,
        width: int = 1280,
        scheme: str = "light",
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 800},
            color_scheme="dark" if scheme == "dark" else "light",
            locale="en-GB",
            timezone_id="Europe/Berlin",
        )
        contexts.append(context)
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        page.on("pageerror", lambda fault: faults.append(f"page: {fault}"))
        if quiet:
            page.on("console", lambda entry: faults.append(f"log: {entry.text}") if entry.type == "error" else None)
        page.on("dialog", alerted)
        page.goto(f"{url}{path}#/{place}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not faults, "\n".join(faults)


def folder() -> Path:
    """Return the folder of the files of the console."""
    return Path(__file__).parents[2] / "src" / "wherry" / "console"
