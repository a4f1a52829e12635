"""The page of services at the port of a peer: a real browser looks, pauses, limits and drains; nothing else runs."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.console.asking import ask
from tests.console.conftest import Opening
from wherry.model.errors import Forbidden, Unauthorized
from wherry.service.outcomes import RefusalCode, Refused
from wherry.service.service import Service
from wherry.service.sync import SyncPeer, peer_sync
from wherry.service.trust import Trust

BOOM = '<img src=x onerror="alert(1)"><script>alert(2)</script>'
PATIENCE_S = 60


class Order(msgspec.Struct):
    """What `shop.total` takes."""

    items: list[int]


class Held:
    """Lets calls of `shop.slow` wait until a test opens it."""

    def __init__(self) -> None:
        self.open = threading.Event()


def shop(held: Held) -> list[Service]:
    """Return two services; a method of the first waits, one fails, and one was described by a stranger."""
    found, quiet = Service("shop", max_concurrent=50), Service("quiet")

    @found.method(max_concurrent=8, max_waiting=20, idempotent=True)
    async def total(order: Order) -> int:
        """Add the prices of an order."""
        return sum(order.items)

    @found.method
    async def broken(order: Order) -> int:
        raise KeyError("no price")

    async def strange() -> None:
        return None

    strange.__doc__ = BOOM
    found.method(strange)

    @found.method(max_concurrent=2, max_waiting=1)
    async def slow() -> None:
        await asyncio.to_thread(held.open.wait, PATIENCE_S)

    @quiet.method
    async def never() -> None:
        return None

    return [found, quiet]


@pytest.fixture
def provider() -> Iterator[tuple[SyncPeer, Held]]:
    """Yield a peer that provides and calls; there is no registry and no broker."""
    held = Held()
    with peer_sync(provides=shop(held)) as found:
        yield found, held
        held.open.set()


def method_row(page: Page, name: str, service: str = "shop") -> Locator:
    table = page.get_by_role("table", name=f"Methods of {service}")
    return table.locator("tbody tr").filter(has=page.get_by_text(name, exact=True))


def cell(row: Locator, head: str) -> Locator:
    return row.locator(f'td[data-head="{head}"]')


def view(url: str, method: str) -> dict[str, Any]:
    return next(each for each in ask(url, "GET /services/shop")["methods"] if each["name"] == method)


@pytest.mark.rows("P2")
def test_the_page_shows_what_is_called(provider: tuple[SyncPeer, Held], opened: Opening):
    peer, held = provider
    page = opened(peer.url, path="/services")
    expect(page).to_have_title("Services · Wherry")
    expect(page.locator(".status")).to_have_text("live")
    expect(page.get_by_text(ask(peer.url, "GET /services")["instance"])).to_be_visible()
    total = method_row(page, "total")
    expect(cell(total, "Calls")).to_have_text("none yet")
    expect(cell(total, "Median")).to_have_text("–")
    expect(total).to_contain_text("Add the prices of an order.")
    for _ in range(3):
        peer.call("shop.total", Order([1, 2]))
    with suppress(Exception):
        peer.call("shop.broken", Order([1]))
    expect(cell(total, "Calls")).to_have_text("3 answered")
    expect(cell(total, "Median")).to_have_text(re.compile(r"\d.* (µs|ms|s)$"))
    expect(cell(method_row(page, "broken"), "Calls")).to_have_text("1 failed")
    slow = [peer.start_call("shop.slow") for _ in range(4)]
    row = method_row(page, "slow")
    expect(cell(row, "Running")).to_have_text("2 of 2")
    expect(cell(row, "Waiting")).to_have_text("1 of 1")
    expect(cell(row, "Calls")).to_have_text("1 refused")
    expect(page.get_by_role("region", name="shop")).to_contain_text("2 of 50 running, 1 waiting")
    held.open.set()
    assert sum(isinstance(each.exception(PATIENCE_S), Refused) for each in slow) == 1
    expect(cell(row, "Calls")).to_have_text("3 answered · 1 refused")
    expect(cell(row, "Running")).to_have_text("0 of 2")
    expect(cell(method_row(page, "never", "quiet"), "Calls")).to_have_text("none yet")
    assert page.locator("main img, main script").count() == 0, "what a stranger wrote is text"
    expect(method_row(page, "strange")).to_contain_text(BOOM)


@pytest.mark.rows("P2")
def test_a_method_is_paused_and_resumed(provider: tuple[SyncPeer, Held], opened: Opening):
    peer, _ = provider
    page = opened(peer.url, path="/services")
    row = method_row(page, "total")
    page.get_by_role("button", name="Pause shop.total", exact=True).click()
    expect(page.locator(".toast")).to_have_text(re.compile("Paused shop.total."))
    expect(cell(row, "State")).to_have_text("paused")
    expect(page.get_by_role("region", name="shop").locator("header .badge")).to_have_text("partly paused")
    with pytest.raises(Refused) as refused:
        peer.call("shop.total", Order([1]))
    assert refused.value.reason is RefusalCode.PAUSED
    expect(cell(row, "Calls")).to_have_text("1 refused")
    expect(page.locator(".tile").first).to_contain_text("4 of 5")
    page.get_by_role("button", name="Resume shop.total", exact=True).click()
    expect(cell(row, "State")).to_have_text("open")
    assert peer.call("shop.total", Order([1, 2])) == 3
    expect(cell(row, "Calls")).to_have_text("1 answered · 1 refused")
    page.get_by_role("button", name="Pause shop.total", exact=True).focus()
    page.keyboard.press("Enter")
    expect(cell(row, "State")).to_have_text("paused")
    expect(page.get_by_role("button", name="Resume shop.total", exact=True)).to_be_focused()


@pytest.mark.rows("P2")
def test_a_service_is_drained_paused_and_resumed_as_a_whole(provider: tuple[SyncPeer, Held], opened: Opening):
    peer, _ = provider
    page = opened(peer.url, path="/services")
    state = page.get_by_role("region", name="shop").locator("header .badge")
    drain = page.get_by_role("button", name="Drain shop", exact=True)
    drain.click()
    page.get_by_role("dialog").get_by_role("button", name="Keep it").click()
    expect(state).to_have_text("open")
    drain.click()
    page.get_by_role("dialog", name="Drain shop here?").get_by_role("button", name="Drain").click()
    expect(state).to_have_text("draining")
    expect(drain).to_be_hidden()
    with pytest.raises(Refused) as refused:
        peer.call("shop.total", Order([1]))
    assert refused.value.reason is RefusalCode.DRAINING
    page.get_by_role("button", name="Resume shop", exact=True).click()
    expect(state).to_have_text("open")
    assert peer.call("shop.total", Order([4])) == 4
    page.get_by_role("button", name="Pause shop", exact=True).focus()
    page.keyboard.press("Enter")
    expect(state).to_have_text("paused")
    expect(page.get_by_role("button", name="Resume shop", exact=True)).to_be_focused()
    expect(cell(method_row(page, "slow"), "State")).to_have_text("paused")
    page.get_by_role("button", name="Resume shop", exact=True).click()
    expect(state).to_have_text("open")


@pytest.mark.rows("P2")
def test_limits_are_changed_and_bad_ones_name_their_field(provider: tuple[SyncPeer, Held], opened: Opening):
    peer, _ = provider
    page = opened(peer.url, path="/services", quiet=False)
    row = method_row(page, "total")
    page.get_by_role("button", name="Limit shop.total", exact=True).click()
    box = page.get_by_role("dialog", name="Limits of shop.total")
    run, wait = box.get_by_label("Calls that run at a time"), box.get_by_label("Calls that wait")
    expect(run).to_have_value("8")
    for bad, field in (("0", "max_concurrent"), ("many", "max_concurrent"), ("2.5", "max_concurrent")):
        run.fill(bad)
        box.get_by_role("button", name="Save").click()
        expect(box.locator(".toast.bad").last).to_contain_text(field)
        box.get_by_role("button", name="Dismiss").first.click()
    run.fill("3")
    wait.fill("-1")
    box.get_by_role("button", name="Save").click()
    expect(box.locator(".toast.bad").last).to_contain_text("max_waiting")
    assert view(peer.url, "total")["max_concurrent"] == 8, "nothing of a bad request was done"
    wait.fill("0")
    wait.press("Enter")
    expect(box).to_have_count(0)
    expect(cell(row, "Running")).to_have_text("0 of 3")
    expect(cell(row, "Waiting")).to_have_text("0 of 0")
    page.get_by_role("button", name="Limit shop", exact=True).click()
    page.get_by_label("Calls that run at a time").fill("7")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("region", name="shop")).to_contain_text("0 of 7 running")


@pytest.mark.rows("P2")
def test_a_token_is_asked_for_and_forgotten(opened: Opening):
    def authorize(token: str, service: str, method: str) -> str:
        if token not in ("open-sesame", "for-calls"):
            raise Unauthorized("this token is not known here")
        if method == "*" and (token == "for-calls" or service == "quiet"):
            raise Forbidden("the caller", "inspect", service)
        return token

    with peer_sync(provides=shop(Held()), trust=Trust(authorize=authorize)) as peer:
        page = opened(peer.url, path="/services", quiet=False)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        box = page.get_by_role("dialog", name="These services ask for a token")
        expect(page.locator(".status")).to_have_text("locked")
        for bad, text in (
            ("schlüssel €", "Token: only visible ASCII"),
            ("wrong", "this token is not known here"),
            ("for-calls", "lacks the right to inspect"),
        ):
            box.get_by_label("Token").fill(bad)
            box.get_by_role("button", name="Sign in").click()
            expect(box.get_by_role("alert")).to_contain_text(text)
        box.get_by_label("Token").fill("open-sesame")
        box.get_by_role("button", name="Sign in").click()
        expect(page.locator(".status")).to_have_text("live")
        expect(page.get_by_role("region", name="shop")).to_be_visible()
        expect(page.get_by_role("region", name="quiet")).to_have_count(0)
        page.get_by_role("button", name="Pause shop.total", exact=True).click()
        expect(cell(method_row(page, "total"), "State")).to_have_text("paused")
        page.reload()
        expect(page.locator(".status")).to_have_text("live")
        page.get_by_role("button", name="Sign out").click()
        expect(box).to_be_visible()
        assert "shop" not in page.locator("main").inner_text()
        assert page.evaluate("() => Object.keys(sessionStorage)") == []
        assert not [each for each in asked if "sesame" in each], "no token in a URL"


def test_the_page_comes_back_when_nothing_answered(provider: tuple[SyncPeer, Held], opened: Opening):
    peer, _ = provider
    page = opened(peer.url, path="/services", quiet=False)
    expect(page.locator(".status")).to_have_text("live")
    page.route("**/services", lambda route: route.abort())
    expect(page.locator(".status")).to_have_text("reconnecting …")
    expect(page.locator("body")).to_have_class("stale")
    page.unroute("**/services")
    expect(page.locator(".status")).to_have_text("live")


def test_a_process_that_is_silent_is_lost(provider: tuple[SyncPeer, Held], opened: Opening):
    peer, _ = provider
    page = opened(peer.url, path="/services", quiet=False)
    page.clock.install()
    page.reload()
    expect(page.locator(".status")).to_have_text("live")
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/services", hold)
    while not held:
        page.clock.run_for(1_000)
    expect(page.locator(".status")).to_have_text("live")
    page.clock.run_for(10_000)
    expect(page.locator(".status")).to_have_text("reconnecting …")
    page.unroute("**/services")
    page.clock.run_for(10_000)
    expect(page.locator(".status")).to_have_text("live")


def test_a_hidden_page_asks_nothing(provider: tuple[SyncPeer, Held], opened: Opening):
    peer, _ = provider
    page = opened(peer.url, path="/services")
    page.clock.install()
    page.reload()
    expect(page.locator(".status")).to_have_text("live")
    page.evaluate("() => Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    peer.call("shop.total", Order([1]))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for _ in range(10):  # an answer may still be on its way, and nothing is asked after it
        page.clock.run_for(2_000)
        page.evaluate("() => fetch('/console/style.css').then((answer) => answer.text())")
    assert sum(url.endswith("/services") for url in asked) <= 1
    page.evaluate("() => { delete document.hidden; document.dispatchEvent(new Event('visibilitychange')); }")
    expect(cell(method_row(page, "total"), "Calls")).to_have_text("1 answered")


@pytest.mark.parametrize("width", [375, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_the_dark_and_names_what_it_has(
    provider: tuple[SyncPeer, Held], opened: Opening, width: int, scheme: str
):
    peer, _ = provider
    page = opened(peer.url, path="/services", width=width, scheme=scheme)
    peer.call("shop.total", Order([1]))
    expect(cell(method_row(page, "total"), "Calls")).to_have_text("1 answered")
    assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0
    boxes = page.evaluate("() => [...document.querySelectorAll('.tablebox')].map((e) => e.scrollWidth - e.clientWidth)")
    assert max(boxes) <= 0, "no table scrolls sideways"
    ground = page.evaluate("() => getComputedStyle(document.documentElement).backgroundColor")
    assert ground == ("rgb(15, 21, 23)" if scheme == "dark" else "rgb(246, 247, 246)")
    names = page.locator("button:visible").evaluate_all("(all) => all.map((e) => e.ariaLabel || e.innerText)")
    assert all(names)
    assert len(set(names)) == len(names), "each button says what it is of"
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()


def got(url: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    parts = urlsplit(url)
    with closing(HTTPConnection(str(parts.hostname), parts.port, timeout=PATIENCE_S)) as connection:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


@pytest.mark.rows("P2")
def test_a_browser_gets_the_page_and_programs_the_list(provider: tuple[SyncPeer, Held]):
    peer, _ = provider
    browsers = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
    status, headers, body = got(peer.url, "/services", Accept=browsers)
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b'src="/console/services/start.js"' in body
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for accept in ("*/*", "application/json", "text/csv", "application/json, text/html;q=0.9"):
        _, listed, body = got(peer.url, "/services", Accept=accept)
        assert listed["content-type"] == "application/json", accept
        assert listed["vary"] == headers["vary"] == "Accept"
    assert got(peer.url, "/services")[1]["content-type"] == "application/json"
    script = got(peer.url, "/console/services/start.js")
    assert (script[0], script[1]["content-security-policy"]) == (200, policy)
    for path in ("/console", "/console/services/index.html", "/console/..%2F__init__.py", "/console/pages/none.js"):
        assert got(peer.url, path)[0] == 404, path
    for name, value in (("Origin", "http://evil.example"), ("Host", "evil.example"), ("Sec_Fetch_Site", "cross-site")):
        assert got(peer.url, "/services", Accept=browsers, **{name: value})[0] == 403, name
        assert got(peer.url, "/console/services/start.js", **{name: value})[0] == 403, name
