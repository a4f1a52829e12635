"""What a good token opens on every wire, for how long, and what happens when keys or the provider change."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any

import msgspec
import pytest
from pyarrow import flight

import wherry
from tests.amqp.raw import (
    CANCEL,
    CHANNEL_CLOSE,
    CHANNEL_OPEN,
    CHANNEL_OPEN_OK,
    CLOSE,
    CONSUME,
    CONSUME_OK,
    HEADER,
    OPEN,
    OPEN_OK,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    START,
    START_OK,
    TUNE,
    TUNE_OK,
    long,
    short,
)
from tests.amqp.raw import Raw as AmqpRaw
from tests.amqp.tools import admin_of, ask
from tests.integration.flights import Flights, payloads
from tests.native_client import soon, upgraded
from tests.oidc.doors import DOORS, over_http, until
from tests.oidc.forged import Forger
from tests.oidc.nodes import taking_tokens
from tests.oidc.provider import ALGORITHMS, provider
from tests.stomp.raw import Raw as StompRaw
from wherry.model.catalog.key import Right
from wherry.model.errors import Forbidden, InvalidInput, Unauthorized
from wherry.security.keys import make
from wherry.security.passwords import make_user

UPDATE_SECRET, UPDATE_SECRET_OK = (10, 70), (10, 71)


@pytest.fixture(scope="module")
def home(tmp_path_factory, identity):
    with taking_tokens(tmp_path_factory.mktemp("node"), identity.issuer) as found:
        for name in ("orders.new", "jobs"):
            found.run(found.node.broker.create_topic(name))
        yield found


def amqp_opened(home, token: str, user: str = "any", properties: bytes = long(b"")) -> AmqpRaw:
    raw = AmqpRaw(home.node.amqp_url)
    raw.send(HEADER)
    raw.expect(START)
    secret = long(f"\0{user}\0{token}".encode())
    raw.call(0, START_OK, properties + short("PLAIN") + secret + short("en_US"))
    tuned = raw.expect(TUNE)
    raw.call(0, TUNE_OK, tuned.arguments)
    raw.call(0, OPEN, short("/") + short("") + b"\0")
    raw.expect(OPEN_OK)
    return raw


def stomp_opened(home, token: str) -> StompRaw:
    raw = StompRaw(home.node.stomp_port, patience_s=60)
    raw.connect(login="any", passcode=token)
    return raw


def view_of(home, token: str) -> dict[str, Any]:
    answer = over_http(home.node, token, "/v1/identity")
    assert answer.is_in, answer
    return json.loads(answer.text[answer.text.index("{") :])


# ------------------------------------------------------------------------------------------------------------ rights


@pytest.mark.rows("P13")
@pytest.mark.parametrize("wire", ["native", "http"])
def test_roles_decide_which_topics_may_be_used(wire, home, identity):
    async def main() -> None:
        async with wherry.connect(home.node.url, key=identity.token("shop"), wire=wire) as shop:
            await shop.publish("orders.new", [b"one"])
            with pytest.raises(Forbidden, match="the key of 'oidc:shop' lacks the right to publish on topic 'jobs'"):
                await shop.publish("jobs", [b"two"])
            assert [topic.name for topic in await shop.topics()] == ["orders.new"]
        async with wherry.connect(home.node.url, key=identity.token("nobody"), wire=wire) as nobody:
            with pytest.raises(Forbidden):
                await nobody.publish("orders.new", [b"three"])
            assert await nobody.topics() == []
        async with wherry.connect(home.node.url, key=identity.token("boss"), wire=wire) as boss:
            await boss.publish("jobs", [b"four"])

    asyncio.run(main())


@pytest.mark.rows("P13")
def test_roles_decide_over_flight(home, identity):
    flights = Flights(home.node.flight_url, identity.token("shop"))
    assert flights.put([payloads(b"one")], topic="orders.new")
    assert flights.read(topic="orders.new").num_rows >= 1
    with pytest.raises(flight.FlightUnauthorizedError, match="oidc:shop"):
        flights.put([payloads(b"one")], topic="jobs")


@pytest.mark.rows("P13")
def test_roles_decide_over_stomp(home, identity):
    with stomp_opened(home, identity.token("shop")) as raw:
        raw.done("SEND", b"one", destination="/amq/queue/orders.new")
        raw.send("SEND", b"two", destination="/amq/queue/jobs", receipt="r")
        assert "access_refused" in raw.error().why


@pytest.mark.rows("P13")
def test_roles_decide_over_amqp(home, identity):
    durable = b"\x02" + long(b"")
    with amqp_opened(home, identity.token("boss")) as raw:
        raw.call(1, CHANNEL_OPEN, short(""))
        raw.expect(CHANNEL_OPEN_OK)
        raw.call(1, QUEUE_DECLARE, b"\0\0" + short("fresh") + durable)
        raw.expect(QUEUE_DECLARE_OK)
    with amqp_opened(home, identity.token("shop")) as raw:
        raw.call(1, CHANNEL_OPEN, short(""))
        raw.expect(CHANNEL_OPEN_OK)
        raw.call(1, QUEUE_DECLARE, b"\0\0" + short("others") + durable)
        assert raw.expect(CHANNEL_CLOSE).code == 403


@pytest.mark.rows("P13")
def test_the_rights_are_those_of_the_token_that_came_with_the_call(home, identity):
    """No wire keeps the rights of a subject: another token of the same subject has its own."""
    forger = Forger(identity.issuer)
    more, less = forger.good(realm_access={"roles": ["root"]}), forger.good(realm_access={"roles": []})
    assert over_http(home.node, more, "/v1/identity").is_in
    assert not over_http(home.node, less, "/v1/identity").is_in


@pytest.mark.rows("P12")
@pytest.mark.parametrize("wire", DOORS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_of_each_algorithm_is_accepted(wire, algorithm, home, identity):
    token = Forger(identity.issuer, algorithm=algorithm).good(realm_access={"roles": ["root"]})
    assert DOORS[wire](home.node, token).is_in


def test_api_keys_and_tokens_are_accepted_side_by_side(home):
    key = home.node.first_key.read_text().strip()
    for enter in DOORS.values():
        assert enter(home.node, key).is_in
        assert not enter(home.node, key[:-1] + ("a" if key[-1] != "a" else "b")).is_in


def test_many_calls_with_one_token_costs_one_verification(home, identity):
    token, boss = identity.token("shop"), identity.token("boss")
    before = view_of(home, boss)["outcomes"]["accepted"]
    for _ in range(20):
        assert over_http(home.node, token).is_in
    assert view_of(home, boss)["outcomes"]["accepted"] == before + 1


# -------------------------------------------------------------------------------------------------------- expiry


def test_a_token_that_expires_ends_a_session_of_the_native_wire(home, identity):
    async def main() -> None:
        client = await upgraded(("127.0.0.1", home.node.port), key=identity.token("brief"))
        assert client.hello is not None
        await soon(client.until(lambda: client.is_closed))
        assert client.fault is not None
        assert client.fault.code == "unauthorized"

    asyncio.run(main())
    assert home.node.native_sessions.cut_offs[-1].why == "key no longer good"


def test_a_token_that_expires_ends_a_session_of_stomp(home, identity):
    with stomp_opened(home, identity.token("brief")) as raw:
        assert "key no longer good" in raw.error().why


def test_a_token_that_expires_ends_a_connection_of_amqp(home, identity):
    with amqp_opened(home, identity.token("brief")) as raw:
        raw._socket.settimeout(60)
        assert raw.is_hung_up()


def test_an_amqp_client_renews_its_token_and_stays(home, identity):
    with amqp_opened(home, identity.token("brief")) as raw:
        raw.call(0, UPDATE_SECRET, long(identity.token("brief", scope="orders").encode()) + short("it expires"))
        raw.expect(UPDATE_SECRET_OK)
        ends_at = time.time() + 3
        until(lambda: time.time() > ends_at, "the expiry of the first token")
        raw.call(0, UPDATE_SECRET, long(identity.token("brief").encode()) + short("it expires"))
        raw.expect(UPDATE_SECRET_OK)
        ends_at = time.time() + 4
        until(lambda: time.time() > ends_at, "the expiry of the second token")
        raw.call(1, CHANNEL_OPEN, short(""))
        raw.expect(CHANNEL_OPEN_OK)


@pytest.mark.parametrize("other", ["boss", "forged", "nothing"])
def test_an_amqp_client_cannot_renew_with_a_token_of_another(other, home, identity):
    secret = {"boss": identity.token("boss"), "forged": Forger(identity.issuer + "2").good(), "nothing": ""}[other]
    with amqp_opened(home, identity.token("shop")) as raw:
        raw.call(0, UPDATE_SECRET, long(secret.encode()) + short("why"))
        assert raw.expect(CLOSE).code == 403


def test_an_amqp_login_keeps_its_name_whatever_it_began_with(home, identity):
    """Neither an API key nor a password is followed by the token of another, whose name messages would then have."""
    assert home.node.first_key is not None
    admin = admin_of(home.node)
    for call, body in (
        ("PUT users/dora", {"password": "a password", "tags": ""}),
        ("PUT permissions/%2F/dora", {"configure": ".*", "write": ".*", "read": ".*"}),
    ):
        assert home.run(ask(home.node, call, body, admin))[0] < 300
    key = home.node.first_key.read_text().strip()
    for user, secret, others in (
        ("any", key, [identity.token("shop")]),
        ("dora", "a password", [identity.token("shop"), key, "another password", ""]),
    ):
        for other in others:
            with amqp_opened(home, secret, user) as raw:
                raw.call(0, UPDATE_SECRET, long(secret.encode()) + short("the same"))
                raw.expect(UPDATE_SECRET_OK)
                raw.call(0, UPDATE_SECRET, long(other.encode()) + short("another"))
                assert raw.expect(CLOSE).code == 403


def test_no_key_and_no_user_is_named_like_the_bearer_of_a_token(home):
    assert home.node.first_key is not None
    admin, name = home.node.first_key.read_text().strip(), "oidc:alice"
    for made in (
        lambda: make(name, [Right("admin", "*")], now_ms=0),
        lambda: make_user(name, "a password", [], now_ms=0),
    ):
        with pytest.raises(InvalidInput, match="oidc:"):
            made()
    assert home.run(ask(home.node, f"PUT users/{name}", {"password": "x", "tags": ""}, f"admin:{admin}"))[0] == 400

    async def rename() -> None:
        async with wherry.connect(home.node.url, key=admin, wire="http") as client:
            rights = [{"verb": "publish", "topics": "*"}]
            for call, path, body in (
                ("POST", "/v1/keys", {"name": name, "rights": rights}),
                ("PATCH", "/v1/keys/" + admin[3:11], {"name": name}),
            ):
                with pytest.raises(InvalidInput, match="oidc:"):
                    await client._caller.json(call, path, dict, body)

    asyncio.run(rename())


@pytest.mark.parametrize("is_told", [True, False])
def test_a_consumer_of_amqp_ends_with_the_right_that_a_renewed_token_lacks(is_told, home, identity):
    forger = Forger(identity.issuer)
    told = b"\x16consumer_cancel_notifyt\x01" if is_told else b""
    properties = long(b"\x0ccapabilitiesF" + long(told))
    reads = {"resource_access": {"wherry": {"roles": ["reader"]}}, "realm_access": {"roles": ["root"]}}
    with amqp_opened(home, forger.good(sub="carl", **reads), properties=properties) as raw:
        raw.open_channel(1)
        queue = short(f"orders.{is_told}")
        raw.call(1, QUEUE_DECLARE, b"\0\0" + queue + b"\0" + long(b""))
        raw.expect(QUEUE_DECLARE_OK)
        raw.call(1, CONSUME, b"\0\0" + queue + short("mine") + b"\2" + long(b""))
        raw.expect(CONSUME_OK)
        none = forger.good(sub="carl", resource_access={}, realm_access={"roles": []})
        raw.call(0, UPDATE_SECRET, long(none.encode()) + short("fewer roles"))
        found = [raw.next().method for _ in range(2)]
        assert set(found) == {UPDATE_SECRET_OK, CANCEL if is_told else CHANNEL_CLOSE}
        _, shown = home.run(ask(home.node, f"GET queues/%2F/orders.{is_told}", user=admin_of(home.node)))
        assert shown["consumers"] == 0


def test_a_consumer_of_amqp_ends_soon_after_its_key_lost_the_right(home):
    made = make("reader", [Right("admin", "*")], now_ms=0)
    home.run(home.node.broker.put_key(made.key))
    with amqp_opened(home, made.token) as raw:
        raw.open_channel(1)
        raw.call(1, QUEUE_DECLARE, b"\0\0" + short("orders.old") + b"\0" + long(b""))
        raw.expect(QUEUE_DECLARE_OK)
        raw.call(1, CONSUME, b"\0\0" + short("orders.old") + short("mine") + b"\2" + long(b""))
        raw.expect(CONSUME_OK)
        less = msgspec.structs.replace(made.key, rights=(Right("publish", "*"),))
        home.run(home.node.broker.put_key(less))
        assert raw.expect(CHANNEL_CLOSE).code == 403


# ----------------------------------------------------------------------------------------------- keys and provider


@pytest.mark.rows("P12")
@pytest.mark.parametrize("wire", DOORS)
def test_the_first_token_of_a_new_key_is_accepted(wire, home, identity):
    """The provider is started again with a new key beside the old one, as in a rotation; no node is told."""
    old = identity.token("boss")
    identity.stop()
    try:
        identity.start("RS256", f"next-{wire}", "provider")
        new = identity.token("boss")
        known = home.node.tokens.provider
        until(lambda: known.freshness.may_ask(time.monotonic()), "the least time between two fetches")
        assert not known.keys.knows(f"next-{wire}-RS256")
        assert DOORS[wire](home.node, new).is_in
        assert DOORS[wire](home.node, old).is_in
    finally:
        identity.stop()
        identity.start()


@pytest.mark.rows("P12")
def test_known_keys_go_on_while_the_provider_is_down_and_that_shows(tmp_path):
    with provider(tmp_path / "provider") as lost:
        forger = Forger(lost.issuer)
        boss = forger.good(realm_access={"roles": ["root"]})
        with taking_tokens(tmp_path / "node", lost.issuer, keys_kept_s=8.0) as home:
            assert view_of(home, boss)["is_reachable"] is True
            lost.stop()
            until(lambda: view_of(home, boss)["is_reachable"] is False, "the node notices")
            assert DOORS["http"](home.node, forger.good(sub="new")).is_in, "a new token of a known key"
            assert "wherry_oidc_provider_up 0" in over_http(home.node, boss, "/metrics").text
            until(lambda: not over_http(home.node, boss).is_in, "the end of the time that keys are kept")
            for wire, enter in DOORS.items():
                answer = enter(home.node, boss)
                assert not answer.is_in
                assert wire == "amqp" or "identity provider cannot be reached" in answer.text, answer
            lost.start()
            until(lambda: over_http(home.node, boss).is_in, "the provider is back")


@pytest.mark.rows("P12")
def test_a_node_starts_without_its_provider_and_takes_tokens_once_it_is_there(tmp_path):
    with provider(tmp_path / "provider") as late:
        late.stop()
        boss = Forger(late.issuer).good(realm_access={"roles": ["root"]})
        with taking_tokens(tmp_path / "node", late.issuer) as home:
            assert "identity provider cannot be reached" in over_http(home.node, boss).text
            assert home.node.first_key is not None
            assert over_http(home.node, home.node.first_key.read_text().strip()).is_in, "API keys are not concerned"
            late.start()
            until(lambda: over_http(home.node, boss).is_in, "the provider is there")


def test_a_flood_of_unknown_keys_makes_no_flood_at_the_provider(home, identity):
    boss = identity.token("boss")
    before, began = home.node.tokens.provider.fetches, time.monotonic()
    forger = Forger(identity.issuer)
    for number in range(200):
        assert not over_http(home.node, forger.signed(forger.header(kid=f"k{number}"))).is_in
    assert home.node.tokens.provider.fetches - before <= 2 + (time.monotonic() - began), "one a second, as configured"
    assert over_http(home.node, boss).is_in


def test_a_client_that_leaves_while_its_key_is_fetched_harms_nothing(home, identity):
    forger = Forger(identity.issuer)
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", home.node.port), timeout=60) as plain:
            token = forger.signed(forger.header(kid="unknown"))
            lines = ["POST /v1/topics/jobs/messages HTTP/1.1", "Host: localhost", "Content-Length: 5"]
            plain.sendall("\r\n".join([*lines, f"Authorization: Bearer {token}", "", "ab"]).encode())
    assert over_http(home.node, identity.token("boss")).is_in


def test_the_checks_of_flight_never_wait_in_the_event_loop(home, identity):
    """Flight calls them there too, topic by topic: waiting for the loop in the loop would hold up the whole node."""
    forger = Forger(identity.issuer)
    stranger = {"authorization": f"Bearer {forger.signed(forger.header(kid='unknown'))}"}
    known, flights = home.node.tokens.provider, home.node._flight
    until(lambda: known.freshness.may_ask(time.monotonic()), "the least time between two fetches")

    async def check() -> int:
        before = known.fetches
        for _ in range(5):
            with pytest.raises(Unauthorized):
                flights._guard(stranger, "consume", "orders.new")
            await asyncio.sleep(0)
        return known.fetches - before

    assert home.run(check()) == 0


def test_a_key_that_was_made_with_a_token_outlives_it_and_has_the_name_of_its_maker(home, identity):
    admin: dict[str, Any] = {"realm_access": {"roles": ["root"]}, "sub": "alice"}
    short_lived = Forger(identity.issuer).good(**admin, exp=int(time.time()) + 5)

    async def main() -> tuple[str, str, str]:
        async with wherry.connect(home.node.url, key=short_lived, wire="http") as client:
            made = await client.make_key("batch", ["publish:jobs"])
            assert made.token is not None
            user = ask(home.node, "PUT users/worker", {"password": "x", "tags": ""}, f"any:{short_lived}")
            assert home.run(user)[0] == 201
            until(lambda: not over_http(home.node, short_lived).is_in, "the token has expired")
        async with wherry.connect(home.node.url, key=made.token, wire="http") as client:
            await client.publish("jobs", [b"the token has expired"])
        async with wherry.connect(home.node.url, key=Forger(identity.issuer).good(**admin), wire="http") as client:
            (shown,) = [each for each in await client.keys() if each.id == made.id]
        return made.made_by, shown.made_by, home.node.broker.user("worker").made_by

    assert asyncio.run(main()) == ("oidc:alice",) * 3


@pytest.mark.parametrize(("length", "is_taken"), [(6_900, True), (7_100, False)])
def test_a_long_token_is_taken_or_refused_by_its_length_over_flight_and_not_by_chance(length, is_taken, home, identity):
    forger = Forger(identity.issuer)
    pad = 0
    while len(token := forger.good(note="x" * pad, realm_access={"roles": ["root"]})) < length:
        pad += (length - len(token)) * 3 // 4 + 1
    assert len(token) < length + 8
    client = Flights(home.node.flight_url, token)
    for _ in range(20):
        if is_taken:
            client.act("topics")
        else:
            with pytest.raises(flight.FlightServerError, match="at most 7,000 over Flight") as caught:
                client.act("topics")
            assert token[:40] not in str(caught.value)
