"""Answers of a provider that the console must not use: changed on their way, used before, of another tab, too late."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browsers import browser  # noqa: F401
from tests.console.conftest import Opening
from tests.console.signing_in import (
    Place,
    begin,
    is_live,
    kept,
    key_of,
    providing,
    returned_to,
    sign_in,
    signing_in,
    with_claims,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("refused")
    with providing(home, {"console": {}}) as identities, signing_in(home / "node", identities, "console") as found:
        yield found


@pytest.fixture(scope="module")
def cookies(place: Place, browser: Browser) -> list[Any]:  # noqa: F811
    """Return the cookies of a user whom the provider knows, and who agreed: it asks nothing any more."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{place.url}/console")
    sign_in(page, place)
    is_live(page)
    found = context.cookies()
    context.close()
    return list(found)


@pytest.fixture
def known(place: Place, opened: Opening, cookies: list[Any]) -> Page:
    """Return a page whose user only has to begin."""
    page = opened(place.url, "topics", quiet=False)
    page.context.add_cookies(cookies)
    return page


FORGED = {
    "another state": (lambda text: changed(text, "state", "x" * 43), "its state is another one"),
    "no state": (lambda text: changed(text, "state", None), "its state is another one"),
    "all of it twice": (lambda text: text.replace("#", f"?{text.partition('#')[2]}#"), "its state is another one"),
    "a state twice": (lambda text: text + "&state=y", "its state is another one"),
    "another provider": (
        lambda text: changed(text, "iss", "https://evil.example"),
        "The answer is not from http://127",
    ),
    "no provider": (lambda text: changed(text, "iss", None), "The answer is not from http://127"),
    "another code": (lambda text: changed(text, "code", "y" * 43), "does not take this sign-in any more"),
    "an error with a text": (
        lambda text: changed(text, "code", None) + "&error=temporarily_unavailable&error_description=%3Cb%3Elater",
        "The provider cannot sign people in now. Try again. (<b>later)",
    ),
    "an error that nobody knows": (
        lambda text: changed(text, "code", None) + "&error=__proto__",
        "The provider refused the sign-in: __proto__.",
    ),
}


def changed(url: str, name: str, value: str | None) -> str:
    """Return an address with another value of a field behind its `#`, or without it."""
    place, _, text = url.partition("#")
    fields = [each for each in text.split("&") if not each.startswith(f"{name}=")]
    return f"{place}#{'&'.join([*fields, *([] if value is None else [f'{name}={value}'])])}"


@pytest.mark.rows("P12")
@pytest.mark.parametrize("name", FORGED)
def test_an_answer_that_was_changed_on_its_way_is_refused(place: Place, known: Page, name: str):
    change, words = FORGED[name]

    def forge(route: Route) -> None:
        """Answer in the place of the provider: by its own redirect, changed."""
        target = change(route.fetch(max_redirects=0).headers["location"])
        assert target.startswith((f"{place.url}/console#", f"{place.url}/console?"))
        route.fulfill(content_type="text/html", body=f"<script>location.replace({json.dumps(target)})</script>")

    known.route("**/realms/shop/auth?*", forge)
    begin(known, place)
    expect(known.get_by_role("dialog").get_by_role("alert")).to_contain_text(words)
    assert known.url == f"{place.url}/console#/topics"
    assert kept(known) == []
    assert known.locator("dialog b").count() == 0


@pytest.mark.rows("P12")
@pytest.mark.parametrize(
    ("name", "words"),
    [("nonce", "an ID token of another sign-in"), ("code_challenge", "does not take this sign-in any more")],
)
def test_an_answer_to_a_request_that_was_changed_is_refused(place: Place, known: Page, name: str, words: str):
    def forge(route: Route) -> None:
        url, _, fields = route.request.url.partition("?")
        others = [each for each in fields.split("&") if not each.startswith(f"{name}=")]
        changed_fields = "&".join([*others, f"{name}={'x' * 43}"])
        route.continue_(url=f"{url}?{changed_fields}")

    known.route("**/realms/shop/auth?*", forge)
    begin(known, place)
    expect(known.get_by_role("dialog").get_by_role("alert")).to_contain_text(words)
    assert kept(known) == []


CLAIMS: dict[str, dict[str, Any]] = {
    "of another provider": {"iss": "https://evil.example"},
    "for another client": {"aud": "billing"},
    "that another client asked for": {"aud": ["console", "billing"], "azp": "billing"},
    "of another sign-in": {"nonce": "x" * 43},
    "without a nonce": {"nonce": None},
    "of nobody": {"sub": None},
}


@pytest.mark.rows("P12")
@pytest.mark.parametrize("name", CLAIMS)
def test_an_id_token_that_is_not_of_this_sign_in_is_refused(place: Place, known: Page, name: str):
    def forge(route: Route) -> None:
        given = route.fetch().json()
        route.fulfill(json=given | {"id_token": with_claims(given["id_token"], **CLAIMS[name])})

    known.route("**/realms/shop/token", forge)
    begin(known, place)
    alert = known.get_by_role("dialog").get_by_role("alert")
    expect(alert).to_contain_text("an ID token of another sign-in")
    assert kept(known) == []


@pytest.mark.rows("P12")
def test_an_answer_is_taken_once_and_in_its_own_tab_only(place: Place, known: Page, opened: Opening):
    page = known
    back = returned_to(page, place)
    begin(page, place)
    is_live(page)
    before = key_of(page)
    page.evaluate("(url) => location.assign(url)", back[0])
    expect(page.locator(".toast.bad")).to_contain_text("No sign-in is under way in this tab")
    assert page.url == f"{place.url}/console#/"
    page.goto("about:blank")
    page.goto(back[0])
    expect(page.locator(".toast.bad")).to_contain_text("No sign-in is under way in this tab")
    assert page.url == f"{place.url}/console#/"
    is_live(page)
    assert key_of(page) == before, "the session that was there goes on"
    other = opened(place.url, quiet=False)
    other.goto("about:blank")
    other.goto(back[0])
    expect(other.get_by_role("dialog").get_by_role("alert")).to_contain_text("No sign-in is under way in this tab")
    fields = dict(each.split("=", 1) for each in back[0].partition("#")[2].split("&"))
    stolen = {"state": fields["state"], "nonce": "n", "verifier": "v" * 43, "issuer": place.identity.issuer}
    other.evaluate(
        "(begun) => sessionStorage.setItem('wherry.signing-in', JSON.stringify({...begun, begun_at: Date.now()}))",
        stolen,
    )
    other.goto("about:blank")
    other.goto(back[0])
    expect(other.get_by_role("dialog").get_by_role("alert")).to_contain_text("it was used already, or is too old")
    assert kept(other) == []


@pytest.mark.rows("P12")
def test_a_sign_in_that_took_too_long_begins_again(place: Place, opened: Opening):
    page = opened(place.url, quiet=False)
    page.clock.install()
    begin(page, place)
    page.get_by_placeholder("Enter any login").wait_for()
    page.clock.fast_forward("11:00")
    page.get_by_placeholder("Enter any login").fill("ann")
    page.get_by_placeholder("and password").fill("any")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("took more than ten minutes")
