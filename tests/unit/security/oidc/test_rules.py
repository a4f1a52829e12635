"""Rules: which claims give which rights."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.model.catalog.key import Right
from wherry.model.errors import InvalidInput
from wherry.security.oidc.rules import RULES_MAX, Granted, Rules, parse_rule

CLAIMS = {
    "scope": "openid orders.write bill",
    "realm_access": {"roles": ["clerk", "default-roles-shop"]},
    "resource_access": {"https://shop:8443/app": {"roles": ["admin"]}, "wherry": {"roles": ["reader"]}},
    "groups": ["ops", 7],
    "tenant": "north",
    "https://example.org/roles": ["night"],
    "nested": {"deep": {"team": "red"}},
}


@pytest.mark.parametrize(
    ("source", "applies"),
    [
        *(("anyone", True), ("realm:clerk", True), ("realm:Clerk", False), ("realm:cle", False)),
        *(("realm:default-roles-shop", True), ("client:wherry:reader", True), ("client:wherry:clerk", False)),
        *(("client:https://shop:8443/app:admin", True), ("client:other:reader", False)),
        *(("scope:bill", True), ("scope:orders", False), ("scope:orders.write", True)),
        *(("claim:groups=ops", True), ("claim:groups=7", False), ("claim:tenant=north", True)),
        *(("claim:tenant=nor", False), ("claim:https://example.org/roles=night", True)),
        *(("claim:nested.deep.team=red", True), ("claim:nested.deep=red", False), ("claim:scope=bill", False)),
        ("claim:nothing=x", False),
    ],
)
def test_a_rule_applies_to_the_claim_that_it_names(source, applies):
    assert parse_rule(f"{source} -> consume").applies(CLAIMS) is applies


def test_rules_that_apply_give_their_grants_together_and_once():
    rules = Rules(
        [
            "realm:clerk -> publish:orders.* consume call:billing.*",
            "scope:bill->call:billing.* call:stock.count",
            "realm:boss -> admin",
        ]
    )
    granted = rules.granted(CLAIMS)
    assert granted == Granted((Right("publish", "orders.*"), Right("consume", "*")), ("billing.*", "stock.count"))
    assert [granted.may_call(each) for each in ("billing.total", "stock.count", "stock.set", "bill.x")] == [
        *(True, True, False, False)
    ]


def test_claims_that_no_rule_names_give_nothing():
    assert Rules().granted(CLAIMS) == Granted()
    assert not Granted().may_call("billing.total")
    assert Rules(["realm:boss -> admin call"]).granted(CLAIMS) == Granted()
    assert Rules(["anyone -> call"]).granted({}).may_call("billing.total")


@pytest.mark.parametrize(
    "text",
    [
        *("", "->", "realm:clerk", "realm:clerk ->", "realm: -> consume", "client:x -> consume", "scope: -> consume"),
        *("claim:x -> consume", "claim:=x -> consume", "role:x -> consume", "anyone: -> consume"),
        *("realm:x -> publish:", "realm:x -> consume:", "realm:x -> admin:", "realm:x -> call:", "realm: x -> consume"),
        *("client: a:b -> consume", "client:a :b -> consume", "client:a: b -> consume", "claim:x= y -> consume"),
        *("claim: x=y -> consume", "claim:x =y -> consume", "scope:\tx -> consume"),
        *("realm:x -> write", "realm:x -> publish:\x01", "realm:x -> call:" + "a" * 300),
        *("realm:x -> " + "consume " * 65, "realm:" + "x" * 5_000 + " -> consume"),
    ],
)
def test_a_rule_that_means_nothing_is_refused(text):
    with pytest.raises(InvalidInput):
        parse_rule(text)


def test_the_role_of_a_client_is_behind_the_last_colon():
    claims = {"resource_access": {"https://shop:80": {"roles": ["admin"]}, "shop": {"roles": ["80:admin"]}}}
    assert parse_rule("client:https://shop:80:admin -> consume").applies(claims)
    assert not parse_rule("client:shop:80:admin -> consume").applies(claims)
    assert parse_rule("claim:resource_access.shop.roles=80:admin -> consume").applies(claims)


def test_the_number_of_rules_is_bounded():
    Rules(["anyone -> consume"] * RULES_MAX)
    with pytest.raises(InvalidInput):
        Rules(["anyone -> consume"] * (RULES_MAX + 1))


_CLAIMS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["roles", "a", "b"]), inner),
    max_leaves=10,
)
_NAMES = st.sampled_from(["realm_access", "resource_access", "scope", "groups", "a"])


@given(st.dictionaries(_NAMES, _CLAIMS))
def test_claims_of_any_shape_are_no_fault_and_give_no_more_than_the_rules(claims):
    sources = ["realm:x", "client:a:x", "scope:x", "claim:groups=x", "claim:a.b.a=x"]
    granted = Rules([f"{source} -> publish:p call:s.m" for source in sources]).granted(claims)
    assert set(granted.rights) <= {Right("publish", "p")}
    assert set(granted.methods) <= {"s.m"}
