"""Users sign in at the console by a provider: npm's `oidc-provider` as a process, a real node, and a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from tests.console.asking import ask
from tests.console.conftest import Opening
from tests.console.signing_in import (
    PATIENCE_MS,
    Identities,
    Place,
    begin,
    is_live,
    kept,
    key_of,
    providing,
    returned_to,
    sign_in,
    signing_in,
)
from tests.oidc.nodes import taking_tokens
from tests.ports import free_port

CLIENTS: dict[str, dict[str, Any]] = {
    "console": {},
    "query": {"in_query": True},
    "foreign": {},
    "late": {},
    "closed": {"origins": []},
}


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Identities]:
    with providing(tmp_path_factory.mktemp("usual"), CLIENTS) as found:
        yield found


@pytest.fixture(scope="module")
def place(identities: Identities, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with signing_in(tmp_path_factory.mktemp("nodes"), identities, "console") as found:
        yield found


@pytest.mark.rows("P12", "P13")
def test_a_user_signs_in_by_the_provider_and_has_the_rights_of_the_token(place: Place, opened: Opening):
    page = opened(place.url, "topics", quiet=False)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    back = returned_to(page, place)
    sign_in(page, place)
    is_live(page)
    assert page.url == f"{place.url}/console#/topics", "the page that was asked for, and nothing of the sign-in"
    assert "code=" in back[0]
    code = back[0].partition("code=")[2].partition("&")[0]
    assert not [each for each in asked if code in each and each != back[0]], "no other address has the code"
    assert kept(page) == ["wherry.key", "wherry.session"]
    expect(page.get_by_role("table", name="Topics")).to_contain_text("orders.new")
    expect(page.get_by_role("table", name="Topics")).not_to_contain_text("jobs")
    expect(page.locator(".caller")).to_have_text("ann")
    assert page.locator(".caller").get_attribute("title") == "publish orders.*, consume orders.*"
    page.goto(f"{place.url}/console#/publish?topic=orders.new")
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.locator(".toast", has_text="Published 1 message")).to_be_visible()
    page.goto(f"{place.url}/console#/messages?topic=orders.new")
    expect(page.get_by_role("table", name="Messages")).to_contain_text("0-0")
    with pytest.raises(AssertionError, match=r"403 .*'oidc:ann' lacks the right to publish"):
        ask(place.url, "POST /v1/topics/jobs/messages", [{"payload": "x"}], key_of(page))
    page.reload()
    is_live(page)
    expect(page.locator(".caller")).to_have_text("ann")


@pytest.mark.rows("P13")
def test_the_node_names_the_provider_to_all_and_the_caller_to_itself(place: Place):
    issuer = place.identity.issuer
    assert ask(place.url, "GET /v1/sign-in")["provider"] == {
        "issuer": issuer,
        "client_id": "console",
        "scopes": ["openid", "orders"],
        "authorization_url": f"{issuer}/auth",
        "token_url": f"{issuer}/token",
        "end_session_url": f"{issuer}/session/end",
        "names_issuer": True,
    }
    admin = ask(place.url, "GET /v1/identity/caller", key=place.admin)
    assert (admin["rights"], admin["expires_ms"]) == ([{"verb": "admin", "topics": "*"}], None)
    for wrong in ("", "x.y.z"):
        with pytest.raises(AssertionError, match="401"):
            ask(place.url, "GET /v1/identity/caller", key=wrong)


def test_the_policy_lets_the_page_ask_the_token_endpoint_and_no_other_place(place: Place, opened: Opening):
    page = opened(place.url, quiet=False)
    is_refused = """(url) => fetch(url).then(() => false, () => true)"""
    issuer = place.identity.issuer
    answer = page.request.get(f"{place.url}/console")
    assert f"connect-src 'self' {issuer}/token; " in answer.headers["content-security-policy"]
    for url in (f"{issuer}/me", f"{issuer}/token/x", issuer.replace("127.0.0.1", "localhost") + "/token"):
        assert page.evaluate(is_refused, url), url
    assert "connect-src 'self';" in page.request.get(f"{place.url}/console/start.js").headers["content-security-policy"]


@pytest.mark.rows("P12")
def test_a_sign_out_ends_the_session_at_the_provider_too(place: Place, opened: Opening):
    page = opened(place.url, quiet=False)
    sign_in(page, place)
    is_live(page)
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("button", name="Yes, sign me out").click()
    expect(page.get_by_role("dialog")).to_contain_text("This broker asks for a key")
    assert page.url.removesuffix("#/") == f"{place.url}/console"
    assert kept(page) == []
    begin(page, place)
    expect(page.get_by_placeholder("Enter any login")).to_be_visible()


@pytest.mark.rows("P13")
def test_a_user_without_rights_reads_so(place: Place, opened: Opening):
    page = opened(place.url, quiet=False)
    sign_in(page, place, "eve")
    banner = page.locator(".banner")
    expect(banner).to_contain_text("You are signed in as oidc:eve, but your token gives you no right on this node")
    page.goto(f"{place.url}/console#/keys")
    expect(page.locator("main")).to_contain_text("the key of 'oidc:eve' lacks the right to admin")
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("button", name="Yes, sign me out").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(banner).to_be_hidden()


@pytest.mark.rows("P12")
def test_a_user_that_declines_at_the_provider_reads_so(place: Place, opened: Opening):
    page = opened(place.url, "topics", quiet=False)
    begin(page, place)
    page.get_by_role("link", name="Cancel").click()
    box = page.get_by_role("dialog")
    expect(box.get_by_role("alert")).to_contain_text("The provider did not let you in, or you declined there.")
    assert page.url == f"{place.url}/console#/topics"
    assert kept(page) == []


@pytest.mark.rows("P12")
def test_a_provider_that_answers_in_the_query_is_understood(identities: Identities, tmp_path: Path, opened: Opening):
    with signing_in(tmp_path, identities, "query") as place:
        page = opened(place.url, "topics", quiet=False)
        back = returned_to(page, place)
        begin(page, place)
        page.get_by_role("link", name="Cancel").click()
        alert = page.get_by_role("dialog").get_by_role("alert")
        expect(alert).to_contain_text("The provider did not let you in, or you declined there.")
        assert page.url == f"{place.url}/console#/topics"
        sign_in(page, place)
        is_live(page)
        assert page.url == f"{place.url}/console#/topics"
        assert kept(page) == ["wherry.key", "wherry.session"]
        expect(page.get_by_role("table", name="Topics")).to_contain_text("orders.new")
        assert [each.partition("?")[2].partition("=")[0] for each in back] == ["error", "code"], "no fragment"
        page.goto(back[1])
        expect(page.locator(".toast.bad")).to_contain_text("No sign-in is under way in this tab")
        assert page.url == f"{place.url}/console#/"
        page.go_back()
        assert "code=" not in page.url
        answer = page.request.get(f"{back[1]}#{back[1].partition('?')[2]}")
        assert (answer.status, answer.headers["cache-control"]) == (200, "no-cache, no-store")


@pytest.mark.rows("P12")
def test_what_is_set_up_wrong_is_shown_in_words(identities: Identities, tmp_path: Path, opened: Opening):
    with signing_in(tmp_path, identities, "foreign", audiences=("another-node",)) as place:
        page = opened(place.url, quiet=False)
        sign_in(page, place)
        alert = page.get_by_role("dialog").get_by_role("alert")
        expect(alert).to_contain_text("The provider signed you in, but this node refuses its token: this token is not")
        assert kept(page) == []
    with signing_in(tmp_path, identities, "closed") as place:
        page = opened(place.url, quiet=False)
        sign_in(page, place)
        alert = page.get_by_role("dialog").get_by_role("alert")
        expect(alert).to_contain_text(f"to let pages of {place.url} ask for tokens")


@pytest.mark.rows("P12")
def test_a_provider_that_was_not_reached_is_named_and_offered_once_it_is(
    identities: Identities, tmp_path: Path, opened: Opening
):
    identities.process.stop()
    try:
        with signing_in(tmp_path, identities, "late") as place:
            page = opened(place.url, quiet=False)
            expect(page.get_by_role("dialog")).to_contain_text("this node has not reached it")
            policy = page.request.get(f"{place.url}/console").headers["content-security-policy"]
            assert "connect-src 'self';" in policy
            identities.process.start()
            name = f"Sign in with 127.0.0.1:{place.identity.port}"
            expect(page.get_by_role("button", name=name)).to_be_visible(timeout=PATIENCE_MS)
            sign_in(page, place)
            is_live(page)
    finally:
        identities.process.stop()
        identities.process.start()


def test_without_a_client_the_console_asks_for_keys_alone(tmp_path: Path, opened: Opening):
    with taking_tokens(tmp_path, f"http://127.0.0.1:{free_port()}/realms/shop") as served:
        assert ask(served.node.url, "GET /v1/sign-in") == {"provider": None}
        page = opened(served.node.url, quiet=False)
        page.wait_for_load_state("networkidle")
        expect(page.get_by_role("dialog").get_by_label("API key")).to_be_visible()
        expect(page.get_by_role("dialog").get_by_role("button", name="Sign in with")).to_have_count(0)


def test_where_browsers_forbid_cryptography_the_page_states_what_it_needs(place: Place, opened: Opening):
    page = opened(place.url, quiet=False)
    far = f"http://queue.example:{place.served.node.port}"

    def to_node(route: Route) -> None:
        """Ask the node in the place of a name that leads nowhere."""
        headers = {name: each for name, each in route.request.headers.items() if name != "origin"}
        route.fulfill(response=route.fetch(url=route.request.url.replace(far, place.url), headers=headers))

    page.route(f"{far}/**", to_node)
    page.goto(f"{far}/console")
    begin(page, place)
    expect(page.locator(".toast.bad")).to_contain_text("this page has to come by https, or from this machine")
    assert kept(page) == []
