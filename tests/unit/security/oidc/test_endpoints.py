"""What is believed of a discovery document, and which URLs are asked."""

from __future__ import annotations

import json

import pytest

from wherry.model.errors import InvalidInput
from wherry.security.oidc.endpoints import checked_issuer, discovery_url, parse_endpoints

ISSUER = "https://id.example/realms/shop"
DOCUMENT = {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/certs", "token_endpoint": f"{ISSUER}/token"}


def test_the_document_of_an_issuer_is_below_it():
    assert discovery_url(ISSUER) == "https://id.example/realms/shop/.well-known/openid-configuration"
    assert discovery_url("https://id.example/") == "https://id.example/.well-known/openid-configuration"


@pytest.mark.parametrize("issuer", [ISSUER, "http://127.0.0.1:8080/realms/x", "http://[::1]", "http://localhost:1"])
def test_an_issuer_over_tls_or_on_loopback_is_accepted(issuer):
    assert checked_issuer(issuer) == issuer


@pytest.mark.parametrize(
    "issuer",
    [
        *("http://id.example", "http://10.0.0.1", "ftp://id.example", "https://", "id.example", "https://a b"),
        *("https://id.example/?x", "https://id.example/#x", "https://u:p@id.example", "https://id:port"),
        *(
            "https://@id.example",
            "https://:p@id.example",
            "https://id.example\\@evil.example",
            "https://169.254.169.254",
            "https://[fe80::1]",
            "https://[::ffff:169.254.169.254]",
            "https://2852039166",
            "https://0xa9fea9fe",
            "https://169.254.43518.",
            "https://0.0.0.0",
            "http://127.0.0.1.example",
            "http://localhost.example",
            "https://id.example/\r\nX: y",
            "https://" + "a" * 3_000,
        ),
    ],
)
def test_another_issuer_is_refused(issuer):
    with pytest.raises(InvalidInput):
        checked_issuer(issuer)


def test_endpoints_are_read():
    found = parse_endpoints(json.dumps(DOCUMENT).encode(), ISSUER)
    assert (found.keys, found.token, found.authorization) == (f"{ISSUER}/certs", f"{ISSUER}/token", "")


@pytest.mark.parametrize(
    "changes",
    [
        *({"issuer": ISSUER + "/"}, {"issuer": "https://evil.example"}, {"issuer": None}, {"issuer": [ISSUER]}),
        *(
            {"jwks_uri": "http://id.example/certs"},
            {"jwks_uri": "http://127.0.0.1:6379/certs"},
            {"jwks_uri": "https://169.254.169.254/latest"},
            {"jwks_uri": "https://u@id.example/certs"},
            {"jwks_uri": None},
            {"jwks_uri": "file:///etc/passwd"},
            {"jwks_uri": f"{ISSUER}/certs#x"},
            {"jwks_uri": 7},
        ),
    ],
)
def test_a_document_of_another_issuer_or_with_unsafe_keys_is_refused(changes):
    with pytest.raises(ValueError, match="document"):
        parse_endpoints(json.dumps(DOCUMENT | changes).encode(), ISSUER)


def test_endpoints_of_this_machine_are_believed_of_an_issuer_there():
    issuer = "http://127.0.0.1:80"
    document = {"issuer": issuer, "jwks_uri": f"{issuer}/certs", "token_endpoint": "https://id.example/token"}
    found = parse_endpoints(json.dumps(document).encode(), issuer)
    assert (found.keys, found.token) == (f"{issuer}/certs", "https://id.example/token")


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff", b'{"issuer": 1, "issuer": 2}'])
def test_what_is_no_document_is_refused(raw):
    with pytest.raises(ValueError):
        parse_endpoints(raw, ISSUER)


@pytest.mark.parametrize(
    ("stated", "authorization"),
    [({}, True), ({"code_challenge_methods_supported": ["plain", "S256"]}, True)]
    + [({"code_challenge_methods_supported": each}, False) for each in (["plain"], [])],
)
def test_a_provider_that_states_challenges_without_s256_offers_no_sign_in(stated, authorization):
    document = {**DOCUMENT, "authorization_endpoint": f"{ISSUER}/auth", **stated}
    found = parse_endpoints(json.dumps(document).encode(), ISSUER).authorization
    assert found == (f"{ISSUER}/auth" if authorization else "")


@pytest.mark.parametrize(("stated", "names"), [(True, True), (False, False), ("true", False), (None, False)])
def test_a_provider_names_itself_only_if_it_states_so(stated, names):
    document = {**DOCUMENT, "authorization_response_iss_parameter_supported": stated}
    assert parse_endpoints(json.dumps(document).encode(), ISSUER).names_issuer is names


@pytest.mark.parametrize(
    "url",
    [
        *(f"{ISSUER}/auth#code=x&state=y", "javascript:alert(1)//", "http://id.example/auth", "//id.example/auth"),
        *(
            "https://u@id.example/auth",
            "https://id.example\\@evil.example/",
            "data:text/html,x",
            "https://169.254.169.254/",
        ),
    ],
)
def test_a_browser_is_sent_to_no_endpoint_that_is_not_safe(url):
    document = {**DOCUMENT, "authorization_endpoint": url, "end_session_endpoint": url, "token_endpoint": url}
    found = parse_endpoints(json.dumps(document).encode(), ISSUER)
    assert (found.authorization, found.end_session, found.token) == ("", "", "")
