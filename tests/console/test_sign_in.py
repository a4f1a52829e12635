"""Users sign in at the console by a provider: npm's `oidc-provider` as a process, a real node, and a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Page, Response, Route, expect

from tests.console.asking import ask
from tests.console.conftest import Opening
from tests.integration.served import Served
from tests.oidc.nodes import RULES, taking_tokens
from tests.oidc.provider import ProviderProcess, console, provider
from tests.ports import free_port
from wherry.node.config import AmqpSection, FlightSection, ServerSection, StompSection

BRIEF_S = 8
"""The life of tokens that have to be renewed while a test looks."""

PATIENCE_MS = 60_000


class Place(NamedTuple):
    """A node, and the provider by which people sign in at its console."""

    url: str
    admin: str
    served: Served
    identity: ProviderProcess


@contextmanager
def signing_in(home: Path, client: str = "console", oidc: dict[str, Any] | None = None, **more: Any) -> Iterator[Place]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with provider(home / "provider", [console(client, url, **more)]) as identity:
        sections = {
            "server": ServerSection(port=port, drain_s=2.0),
            "flight": FlightSection(enabled=False),
            "amqp": AmqpSection(enabled=False),
            "stomp": StompSection(enabled=False),
        }
        given = {"console_client": client, "console_scopes": ("orders",), **(oidc or {})}
        with taking_tokens(home / "node", identity.issuer, sections, **given) as served:
            assert served.node.first_key is not None
            admin = served.node.first_key.read_text().strip()
            for name in ("orders.new", "jobs"):
                ask(url, f"PUT /v1/topics/{name}", {}, admin)
            yield Place(url, admin, served, identity)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with signing_in(
        tmp_path_factory.mktemp("usual"), oidc={"rules": (*RULES, "realm:clerk -> consume:orders.*")}
    ) as found:
        yield found


def begin(page: Page, place: Place) -> None:
    page.get_by_role("dialog").get_by_role("button", name=f"Sign in with 127.0.0.1:{place.identity.port}").click()


def sign_in(page: Page, place: Place, who: str = "ann") -> None:
    """Sign in, and agree to what the console asks for."""
    begin(page, place)
    page.get_by_placeholder("Enter any login").fill(who)
    page.get_by_placeholder("and password").fill("any")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()


def key_of(page: Page) -> str:
    return str(page.evaluate("() => sessionStorage.getItem('wherry.key') ?? ''"))


def kept(page: Page) -> list[str]:
    return sorted(page.evaluate("() => [...Object.keys(sessionStorage), ...Object.keys(localStorage)]"))


def is_live(page: Page) -> None:
    expect(page.locator(".status")).to_have_text("live", timeout=PATIENCE_MS)


def returned_to(page: Page, place: Place) -> list[str]:
    """Note where the provider sends the browser back to, with what it says in the address."""
    found: list[str] = []

    def look(response: Response) -> None:
        target = response.headers.get("location", "")
        if target.startswith(f"{place.url}/console#"):
            found.append(target)

    page.on("response", look)
    return found


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


FORGED = {
    "another state": (lambda text: changed(text, "state", "x" * 43), "its state is another one"),
    "no state": (lambda text: changed(text, "state", None), "its state is another one"),
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


def posts(route: Route) -> bool:
    return route.request.method == "POST"


def changed(url: str, name: str, value: str | None) -> str:
    """Return an address with another value of a field behind its `#`, or without it."""
    place, _, text = url.partition("#")
    fields = [each for each in text.split("&") if not each.startswith(f"{name}=")]
    return f"{place}#{'&'.join([*fields, *([] if value is None else [f'{name}={value}'])])}"


@pytest.mark.rows("P12")
@pytest.mark.parametrize("name", FORGED)
def test_an_answer_that_was_changed_on_its_way_is_refused(place: Place, opened: Opening, name: str):
    change, words = FORGED[name]
    page = opened(place.url, "topics", quiet=False)

    def forge(route: Route) -> None:
        """Answer a form in the place of the provider: by its own redirects, the last of them changed."""
        resumed = route.fetch(max_redirects=0).headers["location"]
        target = page.context.request.get(resumed, max_redirects=0).headers["location"]
        target = change(target) if target.startswith(f"{place.url}/console#") else target
        route.fulfill(content_type="text/html", body=f"<script>location.replace({json.dumps(target)})</script>")

    page.route("**/realms/shop/interaction/*", lambda route: forge(route) if posts(route) else route.continue_())
    sign_in(page, place)
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text(words)
    assert page.url == f"{place.url}/console#/topics"
    assert kept(page) == []
    assert page.locator("dialog b").count() == 0


@pytest.mark.rows("P12")
@pytest.mark.parametrize(
    ("name", "words"),
    [("nonce", "an ID token of another sign-in"), ("code_challenge", "does not take this sign-in any more")],
)
def test_an_answer_to_a_request_that_was_changed_is_refused(place: Place, opened: Opening, name: str, words: str):
    page = opened(place.url, quiet=False)

    def forge(route: Route) -> None:
        url, _, fields = route.request.url.partition("?")
        others = [each for each in fields.split("&") if not each.startswith(f"{name}=")]
        changed_fields = "&".join([*others, f"{name}={'x' * 43}"])
        route.continue_(url=f"{url}?{changed_fields}")

    page.route("**/realms/shop/auth?*", forge)
    sign_in(page, place)
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text(words)
    assert kept(page) == []


@pytest.mark.rows("P12")
def test_an_answer_is_taken_once_and_in_its_own_tab_only(place: Place, opened: Opening):
    page = opened(place.url, quiet=False)
    back = returned_to(page, place)
    sign_in(page, place)
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


def is_renewal(response: Response) -> bool:
    return response.url.endswith("/token") and "grant_type=refresh_token" in (response.request.post_data or "")


@pytest.mark.rows("P12")
def test_a_token_is_renewed_before_it_ends_and_what_is_shown_goes_on(
    tmp_path_factory: pytest.TempPathFactory, opened: Opening
):
    with signing_in(tmp_path_factory.mktemp("brief"), lives_s=BRIEF_S) as place:
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
        place.identity.stop()
        expect(page.get_by_role("dialog")).to_contain_text("This broker asks for a key", timeout=PATIENCE_MS)


@pytest.mark.rows("P12")
def test_without_a_refresh_token_the_page_visits_the_provider_which_asks_nothing(
    tmp_path_factory: pytest.TempPathFactory, opened: Opening
):
    home = tmp_path_factory.mktemp("visiting")
    with signing_in(home, lives_s=BRIEF_S, grants=["authorization_code"]) as place:
        page = opened(place.url, "topics", quiet=False)
        visits: list[str] = []
        page.on("request", lambda request: visits.append(request.url) if "prompt=none" in request.url else None)
        sign_in(page, place)
        is_live(page)
        first = key_of(page)
        page.wait_for_function(
            "(first) => ![null, first].includes(sessionStorage.getItem('wherry.key'))", arg=first, timeout=PATIENCE_MS
        )
        assert visits
        is_live(page)
        assert page.url == f"{place.url}/console#/topics"
        page.context.clear_cookies()  # the session at the provider is gone
        alert = page.get_by_role("dialog").get_by_role("alert")
        expect(alert).to_contain_text("Your session at the provider has ended: sign in again.", timeout=PATIENCE_MS)
        assert kept(page) == []


@pytest.mark.rows("P12")
def test_a_visit_that_finds_another_user_shows_nothing_of_the_one_before(
    tmp_path_factory: pytest.TempPathFactory, opened: Opening
):
    home = tmp_path_factory.mktemp("other")
    with signing_in(home, lives_s=BRIEF_S, grants=["authorization_code"]) as place:
        page = opened(place.url, "topics", quiet=False)
        sign_in(page, place, "bob")
        is_live(page)
        page.evaluate("() => sessionStorage.setItem('wherry.draft', JSON.stringify({payload: 'of bob'}))")
        beside = page.context.new_page()
        beside.goto(f"{place.identity.issuer}/session/end")
        beside.get_by_role("button", name="Yes, sign me out").click()
        beside.goto(f"{place.url}/console")
        sign_in(beside, place, "eve")
        expect(beside.locator(".caller")).to_have_text("eve", timeout=PATIENCE_MS)
        beside.close()
        expect(page.locator(".caller")).to_have_text("eve", timeout=PATIENCE_MS)
        expect(page.locator("main")).to_contain_text("No topics yet")
        assert "wherry.draft" not in kept(page)


def test_what_a_user_writes_is_not_lost_to_a_visit_of_the_provider(
    tmp_path_factory: pytest.TempPathFactory, opened: Opening
):
    home = tmp_path_factory.mktemp("writing")
    with signing_in(home, lives_s=BRIEF_S, grants=["authorization_code"]) as place:
        page = opened(place.url, "publish?topic=orders.new", quiet=False)
        sign_in(page, place, "bob")
        is_live(page)
        page.get_by_label("Payload", exact=True).fill("a long text")
        expect(page.get_by_role("dialog")).to_contain_text("This broker asks for a key", timeout=PATIENCE_MS)
        expect(page.get_by_label("Payload", exact=True)).to_have_value("a long text")


@pytest.mark.rows("P12")
def test_what_is_set_up_wrong_is_shown_in_words(tmp_path_factory: pytest.TempPathFactory, opened: Opening):
    with signing_in(tmp_path_factory.mktemp("foreign"), oidc={"audiences": ("another-node",)}) as place:
        page = opened(place.url, quiet=False)
        sign_in(page, place)
        alert = page.get_by_role("dialog").get_by_role("alert")
        expect(alert).to_contain_text("The provider signed you in, but this node refuses its token: this token is not")
        assert kept(page) == []
    with signing_in(tmp_path_factory.mktemp("closed"), origins=[]) as place:
        page = opened(place.url, quiet=False)
        sign_in(page, place)
        alert = page.get_by_role("dialog").get_by_role("alert")
        expect(alert).to_contain_text(f"to let pages of {place.url} ask for tokens")
        place.identity.stop()


def test_a_provider_that_was_never_reached_is_named(tmp_path: Path, opened: Opening):
    issuer = f"http://127.0.0.1:{free_port()}/realms/shop"
    with taking_tokens(tmp_path, issuer, console_client="console") as served:
        page = opened(served.node.url, quiet=False)
        expect(page.get_by_role("dialog")).to_contain_text("this node has not reached it")
        assert (
            "connect-src 'self';" in page.request.get(f"{served.node.url}/console").headers["content-security-policy"]
        )


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
