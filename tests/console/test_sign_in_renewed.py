"""The session of a user who signed in goes on: renewed in time, by a token or by a visit of the provider.

Only one test waits for a token to end. The others move the clock of the page, and their tokens live long.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Page, Response, Route, expect

from tests.console.asking import ask
from tests.console.conftest import Opening
from tests.console.signing_in import (
    PATIENCE_MS,
    Identities,
    Place,
    is_live,
    kept,
    key_of,
    providing,
    sign_in,
    signing_in,
    with_claims,
)
from tests.oidc.provider import ProviderProcess

BRIEF_S = 6
"""The life of tokens that end while a test looks."""

LIFE_S = 600
NEARLY = "09:35"
"""So long after a sign-in its token is due to be renewed, and still good."""

CLIENTS: dict[str, dict[str, Any]] = {
    "brief": {"lives_s": BRIEF_S},
    "renewing": {"lives_s": LIFE_S},
    "visiting": {"lives_s": LIFE_S, "grants": ["authorization_code"]},
}


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Identities]:
    with providing(tmp_path_factory.mktemp("renewed"), CLIENTS) as found:
        yield found


@pytest.fixture(scope="module")
def renewing(identities: Identities, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with signing_in(tmp_path_factory.mktemp("nodes"), identities, "renewing") as found:
        yield found


@pytest.fixture(scope="module")
def visiting(identities: Identities, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with signing_in(tmp_path_factory.mktemp("nodes"), identities, "visiting") as found:
        yield found


def is_renewal(response: Response) -> bool:
    return response.url.endswith("/token") and "grant_type=refresh_token" in (response.request.post_data or "")


def signed_in(place: Place, opened: Opening, who: str = "bob", at: str = "topics") -> Page:
    """Return a page of a user, with a clock that can be moved."""
    page = opened(place.url, at, quiet=False)
    page.clock.install()
    sign_in(page, place, who)
    is_live(page)
    return page


def other_key(page: Page, than: str) -> str:
    """Wait for another key in the tab."""
    another = "(first) => ![null, first].includes(sessionStorage.getItem('wherry.key'))"
    page.wait_for_function(another, arg=than, timeout=PATIENCE_MS)
    return key_of(page)


@pytest.mark.rows("P12")
def test_a_token_is_renewed_before_it_ends_and_what_is_shown_goes_on(
    identities: Identities, tmp_path_factory: pytest.TempPathFactory, opened: Opening
):
    with signing_in(tmp_path_factory.mktemp("nodes"), identities, "brief") as place:
        page = opened(place.url, "topics", quiet=False)
        sign_in(page, place, "bob")
        is_live(page)
        first = key_of(page)
        for _ in range(2):
            with page.expect_response(is_renewal, timeout=PATIENCE_MS) as found:
                pass
            assert found.value.status == 200
        with pytest.raises(AssertionError, match="401"):
            ask(place.url, "GET /v1/topics", key=first)
        assert key_of(page) != first
        expect(page.get_by_role("dialog")).to_have_count(0)
        ask(place.url, "PUT /v1/topics/later", {}, place.admin)
        expect(page.get_by_role("table", name="Topics")).to_contain_text("later")


def refuse_key(page: Page) -> None:
    """Let the tab have a token that the node refuses, as if the provider had dropped its key."""
    page.evaluate("() => sessionStorage.setItem('wherry.key', 'a.refused.token')")


def visit_page(page: Page, name: str) -> None:
    page.get_by_role("navigation").get_by_role("link", name=name).click()


def hold_time(page: Page) -> None:
    """Let no time pass for the page, however busy the machine is; its timers go on."""
    page.clock.set_fixed_time(page.evaluate("() => new Date().toISOString()"))


def unanswered(page: Page, place: Place) -> list[str]:
    """Note what was asked of the provider, and not answered."""
    found: list[str] = []
    page.on(
        "requestfailed",
        lambda request: found.append(request.url) if request.url.startswith(place.identity.issuer) else None,
    )
    return found


@contextmanager
def without(process: ProviderProcess) -> Iterator[None]:
    process.stop()
    try:
        yield
    finally:
        process.start()


@pytest.mark.rows("P12")
def test_a_token_that_the_node_refuses_before_its_end_is_renewed_once(renewing: Place, opened: Opening):
    page = signed_in(renewing, opened)
    renewals: list[str] = []
    page.on("response", lambda response: renewals.append(response.url) if is_renewal(response) else None)
    page.clock.fast_forward("00:30")
    hold_time(page)
    refuse_key(page)
    visit_page(page, "Subscriptions")
    expect(page.get_by_role("heading", name="Subscriptions", exact=True)).to_be_visible()
    other_key(page, "a.refused.token")
    is_live(page)
    expect(page.get_by_role("dialog")).to_have_count(0)
    refuse_key(page)
    visit_page(page, "Keys")
    expect(page.get_by_role("dialog")).to_contain_text("This broker asks for a key")
    assert len(renewals) == 1, "one that came just now is not renewed again"


@pytest.mark.rows("P12")
def test_what_was_refused_with_the_key_before_is_sent_again_with_that_of_now(renewing: Place, opened: Opening):
    page = signed_in(renewing, opened)
    held: list[Route] = []
    sent: list[str] = []

    def hold(route: Route) -> None:
        sent.append(route.request.headers["authorization"])
        if len(sent) > 1:
            route.continue_()
        else:
            held.append(route)

    page.route("**/v1/keys*", hold)
    first = key_of(page)
    with page.expect_request("**/v1/keys*"):
        visit_page(page, "Keys")
    page.clock.fast_forward(NEARLY)
    now = other_key(page, first)
    held[0].fulfill(status=401, json={"detail": "this token has expired", "code": "unauthorized"})
    expect(page.get_by_role("heading", name="Keys", exact=True)).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert sent == [f"Bearer {first}", f"Bearer {now}"]


@pytest.mark.rows("P12")
def test_a_laptop_that_wakes_before_its_network_stays_signed_in(renewing: Place, opened: Opening):
    page = signed_in(renewing, opened)
    down = unanswered(page, renewing)
    page.route("**/token", lambda route: route.abort() if len(down) < 3 else route.continue_())
    refuse_key(page)
    page.clock.fast_forward("59:00")
    hold_time(page)
    visit_page(page, "Subscriptions")
    other_key(page, "a.refused.token")
    is_live(page)
    assert len(down) == 3
    expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.rows("P12")
def test_a_provider_that_is_down_when_a_token_ends_lets_the_console_ask_again(renewing: Place, opened: Opening):
    page = signed_in(renewing, opened)
    with without(renewing.identity):
        refuse_key(page)
        page.clock.fast_forward("10:05")
        with page.expect_event("requestfailed"):
            visit_page(page, "Subscriptions")
        page.clock.fast_forward("00:15")
        expect(page.get_by_role("dialog")).to_contain_text("This broker asks for a key", timeout=PATIENCE_MS)
        assert page.url == f"{renewing.url}/console#/subscriptions"


@pytest.mark.rows("P12")
def test_no_page_is_left_for_a_provider_that_is_down(visiting: Place, opened: Opening):
    page = signed_in(visiting, opened)
    down = unanswered(page, visiting)
    with without(visiting.identity):
        page.clock.fast_forward(NEARLY)
        with page.expect_event("requestfailed", lambda _: len(down) > 3, timeout=PATIENCE_MS):  # two in each try
            pass
        assert page.url == f"{visiting.url}/console#/topics"
        assert {each.rpartition("/")[2] for each in down} == {"token"}
        is_live(page)
    alert = page.get_by_role("dialog").get_by_role("alert")
    expect(alert).to_contain_text("Your session at the provider has ended: sign in again.", timeout=PATIENCE_MS)


@pytest.mark.rows("P12")
def test_a_duplicated_tab_ends_the_session_of_neither(renewing: Place, opened: Opening):
    page = signed_in(renewing, opened)
    with page.context.expect_page() as found:
        page.evaluate("() => window.open('/console#/topics')")  # with a copy of what the tab keeps
    copy = found.value
    is_live(copy)
    first = key_of(page)
    assert key_of(copy) == first
    copy.wait_for_function("() => !JSON.parse(sessionStorage.getItem('wherry.session')).refresh", timeout=PATIENCE_MS)
    for _ in range(2):
        keys = [key_of(each) for each in (page, copy)]
        page.clock.fast_forward(NEARLY)  # of both
        for each, before in zip((page, copy), keys, strict=True):
            other_key(each, before)
            is_live(each)
            expect(each.get_by_role("dialog")).to_have_count(0)
    page.reload()
    is_live(page)
    with page.expect_response(is_renewal, timeout=PATIENCE_MS) as renewed:
        page.clock.fast_forward(NEARLY)
    assert renewed.value.status == 200, "a tab that is loaded again stays the owner"


@pytest.mark.rows("P12")
def test_a_renewal_that_brings_another_user_is_not_used(renewing: Place, opened: Opening):
    page = signed_in(renewing, opened)
    first = key_of(page)

    def forge(route: Route) -> None:
        given = route.fetch().json()
        given["id_token"] = with_claims(given["id_token"], sub="eve")
        route.fulfill(json=given)

    page.route("**/token", forge, times=1)
    with page.expect_request(lambda request: "prompt=none" in request.url, timeout=PATIENCE_MS):
        page.clock.fast_forward(NEARLY)
    other_key(page, first)
    expect(page.locator(".caller")).to_have_text("bob")


@pytest.mark.rows("P12")
def test_without_a_refresh_token_the_page_visits_the_provider_which_asks_nothing(visiting: Place, opened: Opening):
    page = signed_in(visiting, opened)
    visits: list[str] = []
    page.on("request", lambda request: visits.append(request.url) if "prompt=none" in request.url else None)
    first = key_of(page)
    page.clock.fast_forward(NEARLY)
    other_key(page, first)
    assert visits
    is_live(page)
    assert page.url == f"{visiting.url}/console#/topics"
    page.context.clear_cookies()  # the session at the provider is gone
    page.clock.fast_forward(NEARLY)
    alert = page.get_by_role("dialog").get_by_role("alert")
    expect(alert).to_contain_text("Your session at the provider has ended: sign in again.", timeout=PATIENCE_MS)
    assert kept(page) == []


@pytest.mark.rows("P12")
def test_a_visit_that_finds_another_user_shows_nothing_of_the_one_before(visiting: Place, opened: Opening):
    page = signed_in(visiting, opened)
    page.evaluate("() => sessionStorage.setItem('wherry.draft', JSON.stringify({payload: 'of bob'}))")
    beside = page.context.new_page()
    beside.goto(f"{visiting.identity.issuer}/session/end")
    beside.get_by_role("button", name="Yes, sign me out").click()
    beside.goto(f"{visiting.url}/console")
    sign_in(beside, visiting, "eve")
    expect(beside.locator(".caller")).to_have_text("eve", timeout=PATIENCE_MS)
    beside.close()
    page.clock.fast_forward(NEARLY)
    expect(page.locator(".caller")).to_have_text("eve", timeout=PATIENCE_MS)
    expect(page.locator("main")).to_contain_text("No topics yet")
    assert "wherry.draft" not in kept(page)


def test_what_a_user_writes_is_not_lost_to_a_visit_of_the_provider(visiting: Place, opened: Opening):
    page = signed_in(visiting, opened, at="publish?topic=orders.new")
    visits: list[str] = []
    page.on("request", lambda request: visits.append(request.url) if "prompt=none" in request.url else None)
    payload = page.get_by_label("Payload", exact=True)
    payload.fill("a long text")
    page.clock.fast_forward("10:05")
    page.evaluate("() => sessionStorage.setItem('wherry.key', 'an.ended.token')")  # the clock of the node did not move
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("This broker asks for a key", timeout=PATIENCE_MS)
    expect(payload).to_have_value("a long text")
    assert visits == []
