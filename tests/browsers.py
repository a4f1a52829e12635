"""A real Chromium for tests: `browser` and `page_factory`, for every folder whose conftest imports them.

    from tests.browsers import browser, page_factory  # noqa: F401

It is the system's own (`chromium` of Debian), driven by playwright. Where it is missing and we may, it is installed.
`WHERRY_CHROMIUM` names another one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests import debian

BUILD = Path(__file__).parents[1] / "build"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
PATIENCE_MS = 30_000

PageFactory = Callable[..., Page]


def chromium() -> str:
    """Return the program. Install it by `apt-get` if it is missing and we are root; else raise with how to do so."""
    found = _found()
    if found is None:
        BUILD.mkdir(exist_ok=True)
        with (BUILD / "chromium.lock").open("w") as lock:  # several test processes may come here at a time
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = _found() or _installed()
    return found


def _found() -> str | None:
    named = os.environ.get("WHERRY_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


def _installed() -> str:
    if not debian.may_install():
        pytest.fail(
            "these tests drive a real browser: install chromium (apt-get install chromium), or give its path in the "
            "variable WHERRY_CHROMIUM which program to take",
            pytrace=False,
        )
    written = debian.install("chromium")
    found = _found()
    if found is None:
        pytest.fail(f"chromium is missing, and apt-get could not install it:\n{written}", pytrace=False)
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Run Chromium without a window and with a profile of its own. Of a module: meanwhile no other loop may run."""
    with sync_playwright() as playwright:
        program = playwright.chromium.launch(executable_path=chromium(), headless=True, args=FLAGS)
        yield program
        program.close()


@pytest.fixture
def page_factory(browser: Browser) -> Iterator[PageFactory]:
    """Return a maker of pages, each in a profile of its own, or with `beside=page` a tab beside another.

    What a page throws and does not catch is in `page.faults`, and fails the test at its end unless the test empties
    that list.
    """
    contexts, pages = [], list[Page]()

    def make(*, beside: Page | None = None, **options: Any) -> Page:
        if beside is None:
            contexts.append(browser.new_context(**options))
        page = (contexts[-1] if beside is None else beside.context).new_page()
        page.set_default_timeout(PATIENCE_MS)
        faults: list[str] = []
        page.on("pageerror", lambda fault: faults.append(str(fault)))
        page.faults = faults  # type: ignore[attr-defined]
        pages.append(page)
        return page

    yield make
    faults = [fault for page in pages for fault in page.faults]  # type: ignore[attr-defined]
    for context in contexts:
        context.close()
    assert not faults, faults
