"""API keys: which clients are admitted, and what the refusal of the others contains."""

import pytest

from wherry.model.catalog.key import Key, Right
from wherry.model.errors import Forbidden, Unauthorized
from wherry.security.access import Access, signed
from wherry.security.keys import make
from wherry.wire.http.api.problem import problem

NOW_MS = 1_800_000_000_000


class Ring:
    def __init__(self, *keys: Key) -> None:
        self.known = {key.id: key for key in keys}

    def key(self, public_id: str) -> Key | None:
        return self.known.get(public_id)

    def user(self, name: str) -> Key | None:
        return next((key for key in self.known.values() if key.user is not None and key.name == name), None)


MADE = make("ann", [Right("publish", "orders.*"), Right("consume", "jobs")], now_ms=NOW_MS)


def access(*keys: Key) -> Access:
    return Access(True, Ring(*(keys or (MADE.key,))), lambda: NOW_MS)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.mark.rows("D27")
def test_a_key_opens_what_it_has_rights_on():
    door = access()
    assert door.check(bearer(MADE.token), "publish", "orders.eu") == "ann"
    assert door.check({"authorization": f"bearer  {MADE.token} "}, "consume", "jobs") == "ann"


@pytest.mark.rows("D27")
def test_a_missing_right_is_named_with_its_topic():
    with pytest.raises(Forbidden, match=r"the key of 'ann' lacks the right to consume on topic 'orders\.eu'"):
        access().check(bearer(MADE.token), "consume", "orders.eu")
    with pytest.raises(Forbidden, match=r"admin on all topics \('\*'\)"):
        access().check(bearer(MADE.token), "admin")


@pytest.mark.rows("D27")
@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({}, "Authorization: Bearer wk_…"),
        ({"authorization": ""}, "Authorization: Bearer wk_…"),
        ({"authorization": "Basic YTpi"}, "'Basic'; allowed: Bearer"),
        ({"authorization": "Bearer"}, "this is no key"),
        (bearer("hello"), "this is no key"),
        (bearer(MADE.token[:-1]), "this is no key"),
        (bearer(MADE.token[:12] + "A" * 43), "not known here"),
        (bearer("wk_00000000_" + MADE.token[12:]), "not known here"),
    ],
)
def test_a_client_without_a_key_learns_how_to_give_one_but_not_which_keys_there_are(headers, message):
    with pytest.raises(Unauthorized) as caught:
        access().check(headers, "publish", "orders.eu")
    assert message in str(caught.value)
    assert MADE.token[12:] not in str(caught.value)


@pytest.mark.rows("D27")
def test_a_key_ends_at_its_end():
    ends, lasts = (make("bob", [Right("admin", "*")], now_ms=0, expires_ms=NOW_MS + ms) for ms in (0, 1))
    door = access(ends.key, lasts.key)
    assert door.check(bearer(lasts.token), "admin") == "bob"
    with pytest.raises(Unauthorized, match="the key of 'bob' expired at 1800000000000"):
        door.check(bearer(ends.token), "admin")


def test_with_keys_off_every_client_is_admitted():
    door = Access(False, Ring())
    assert door.check({}, "admin") == door.check_token("", "admin") == ""


def test_the_answer_to_a_client_without_a_name_describes_how_to_give_one():
    answer = problem(Unauthorized("no key"))
    assert (answer.status, answer.headers) == (401, [("WWW-Authenticate", "Bearer")])
    assert (problem(Forbidden("ann", "admin", "*")).status) == 403


@pytest.mark.parametrize(
    ("caller", "by", "named"),
    [("", "", ""), ("", "ann", "ann"), ("key", "", "key"), ("key", "key", "key"), ("key", "ann", "key (by: ann)")],
)
def test_an_audit_names_the_known_caller_first(caller, by, named):
    assert signed(caller, by) == named
