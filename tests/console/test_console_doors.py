"""Which users get in, what keys on a keyboard do, and that nothing a stranger wrote becomes part of the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.console.asking import ask, bury
from tests.console.conftest import Opening
from tests.integration.served import Served, served
from wherry.node.config import FlightSection, SecuritySection

BOOM = '<img src=x onerror="alert(1)"><script>alert(2)</script>\'"><svg/onload=alert(3)>'


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    """Yield a node that asks for keys, and the first of them."""
    home = tmp_path_factory.mktemp("locked")
    with served(home, security=SecuritySection(keys="on"), flight=FlightSection(enabled=False)) as found:
        assert found.node.first_key is not None
        yield found, found.node.first_key.read_text().strip()


@pytest.mark.rows("D27")
def test_keys_are_asked_for_made_shown_once_and_deleted(locked: tuple[Served, str], opened: Opening):
    node, token = locked
    url = node.node.url
    page = opened(url, "keys", quiet=False)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    box = page.get_by_role("dialog")
    expect(box).to_contain_text("This broker asks for a key")
    box.get_by_label("API key").fill("wk_00000000_" + "A" * 43)
    box.get_by_role("button", name="Sign in").click()
    expect(box).to_contain_text("this key is not known here")
    box.get_by_label("API key").fill(token)
    box.get_by_role("button", name="Sign in").click()
    expect(page.locator(".status")).to_have_text("live")
    expect(page.get_by_role("table", name="Keys")).to_contain_text("yours")
    page.get_by_role("button", name="New key").click()
    page.get_by_label("Name").fill("reader")
    page.get_by_label("Topics, * for any characters").fill("public.*")
    page.get_by_role("button", name="Create").click()
    made = page.get_by_role("dialog").locator("code").inner_text()
    assert made.startswith("wk_")
    page.get_by_role("button", name="I have it").click()
    expect(page.locator("dialog")).to_have_count(0)
    assert made not in page.content(), "it is shown once"
    for name in ("public.news", "secret.plans"):
        ask(url, f"PUT /v1/topics/{name}", {}, token)
    assert [each["config"]["name"] for each in ask(url, "GET /v1/topics", key=made)["topics"]] == ["public.news"]
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("dialog").get_by_label("API key").fill(made)
    page.get_by_role("button", name="Sign in").click()
    page.goto(f"{url}/console#/")
    table = page.get_by_role("table", name="Topics")
    expect(table).to_contain_text("public.news")
    expect(table).not_to_contain_text("secret.plans")
    ids = {each["name"]: each["id"] for each in ask(url, "GET /v1/keys", key=token)["keys"]}
    ask(url, f"DELETE /v1/keys/{ids['reader']}", key=token)
    expect(page.get_by_role("dialog")).to_contain_text("This broker asks for a key")
    assert not [each for each in asked if "wk_" in each], "no key in a URL"
    assert page.evaluate("() => Object.values(localStorage).filter((text) => text.includes('wk_')).length") == 0


@pytest.mark.rows("D27")
def test_the_front_page_asks_for_a_key_and_a_sign_out_leaves_nothing(locked: tuple[Served, str], opened: Opening):
    node, token = locked
    page = opened(node.node.url, quiet=False)
    box = page.get_by_role("dialog")
    expect(box).to_contain_text("This broker asks for a key")
    expect(page.locator(".status")).to_have_text("locked")
    box.get_by_label("API key").fill(token)
    box.get_by_role("button", name="Sign in").click()
    expect(page.locator(".status")).to_have_text("live")
    ask(node.node.url, "PUT /v1/topics/hidden.away", {}, token)
    expect(page.get_by_role("table", name="Topics")).to_contain_text("hidden.away")
    page.goto(f"{node.node.url}/console#/messages?topic=hidden.away")
    expect(page.locator(".copyline code")).to_contain_text('curl -H "Authorization: Bearer $WHERRY_KEY" -X POST')
    assert token not in page.content()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("dialog")).to_contain_text("This broker asks for a key")
    assert "hidden.away" not in page.content()
    assert page.evaluate("() => Object.keys(sessionStorage)") == []


def test_a_topic_is_created_and_published_to_by_keyboard_alone(node: Served, opened: Opening):
    url = node.node.url
    page = opened(url)
    keys = page.keyboard
    expect(page.locator(".status")).to_have_text("live")
    keys.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    keys.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Search on this page")
    keys.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    keys.press("g")
    keys.press("t")
    expect(page.get_by_role("heading", name="Topics", level=1)).to_be_visible()
    keys.press("n")
    expect(page.get_by_label("Name")).to_be_focused()
    keys.type("by-keyboard")
    keys.press("Enter")
    expect(page.get_by_role("heading", name="by-keyboard", level=1)).to_be_visible()
    keys.press("g")
    keys.press("p")
    expect(page.get_by_role("heading", name="Publish", level=1)).to_be_visible()
    page.get_by_label("Topic").focus()
    keys.type("by-keyboard")
    reach(page, "Publish")
    keys.press("Enter")
    expect(page.locator(".toast").last).to_contain_text("Published 1 message")
    keys.press("g")
    keys.press("m")
    keys.press("/")
    expect(page.get_by_role("heading", name="Messages", level=1)).to_be_visible()
    page.get_by_label("Topic").focus()
    keys.type("by-keyboard")
    first = page.get_by_role("table", name="Messages").locator("tbody button").first
    expect(first).to_have_text("0-0")
    reach(page, "0-0")
    keys.press("Enter")
    expect(page.get_by_role("complementary", name="Message")).to_be_visible()


def reach(page: Page, text: str) -> None:
    """Press Tab until a button with this text has the focus, and that shows."""
    for _ in range(60):
        page.keyboard.press("Tab")
        found = page.evaluate(
            "() => { const e = document.activeElement;"
            " return [e.tagName, e.textContent, getComputedStyle(e).outlineStyle] }"
        )
        if found[:2] == ["BUTTON", text]:
            assert found[2] != "none", "a focus ring"
            return
    raise AssertionError(f"Tab never reaches {text!r}")


@pytest.mark.rows("A13")
def test_payloads_of_strangers_are_shown_as_text(node: Served, opened: Opening):
    url = node.node.url
    name = "<b onclick=alert(4)>bold</b>"
    path = "%3Cb%20onclick%3Dalert%284%29%3Ebold%3C%2Fb%3E"
    ask(url, f"PUT /v1/topics/{path}", {})
    ask(url, f"PUT /v1/topics/{path}/subscriptions/s", {})
    ask(
        url,
        f"POST /v1/topics/{path}/messages",
        [{"payload": BOOM, "key": BOOM, "headers": {BOOM: BOOM}, "id": "boom"}, {"payload": {BOOM: [BOOM]}}],
    )
    bury(url, path, "s", {BOOM: 1}, error=BOOM)
    page = opened(url)
    for place, wanted in {
        "": name,
        "topics": name,
        f"topics/{path}": name,
        "subscriptions": name,
        f"messages?topic={path}&kind=id&what=boom": BOOM,
        f"messages?topic={path}": BOOM,
        f"dead?topic={path}": BOOM,
        f"publish?topic={path}": name,
    }.items():
        page.goto(f"{url}/console#/{place}")
        expect(page.locator("main")).to_contain_text(wanted)
        found = page.evaluate(
            "() => document.querySelectorAll('main script, main img, main b[onclick], main svg[onload]').length"
        )
        assert found == 0, place
    page.goto(f"{url}/console#/messages?topic={path}&kind=id&what=boom")
    expect(page.get_by_role("complementary", name="Message")).to_contain_text(BOOM)
    page.goto(f"{url}/console#/dead?topic={path}")
    page.get_by_role("button", name="Show").first.click()
    expect(page.get_by_role("dialog")).to_contain_text(BOOM[:20])


def test_the_policy_stops_what_is_not_ours(node: Served, opened: Opening):
    page = opened(node.node.url, quiet=False)
    expect(page.locator(".status")).to_have_text("live")
    ran = page.evaluate(
        """() => new Promise((done) => {
            document.addEventListener("securitypolicyviolation", (event) => done(event.violatedDirective));
            const script = document.createElement("script");
            script.textContent = "window.ran = true";
            document.body.append(script);
            setTimeout(() => done("it ran: " + window.ran), 5000);
        })"""
    )
    assert ran.startswith("script-src")


def test_the_page_comes_back_when_its_connection_breaks(node: Served, opened: Opening):
    page = opened(node.node.url, quiet=False)
    expect(page.locator(".status")).to_have_text("live")
    page.route("**/v1/figures", lambda route: route.abort())

    async def hang_up() -> None:
        for connection in list(node.node.server.connected):
            connection.abort()

    node.run(hang_up())
    expect(page.locator(".status")).to_have_text("reconnecting …")
    page.unroute("**/v1/figures")
    expect(page.locator(".status")).to_have_text("live")
