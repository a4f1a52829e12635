"""The URL of a registry: its parts, what it refuses, and that no secret of it is shown."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.mesh.urls import OPTIONS_MAX, URL_CHARS_MAX, HostPort, parse, place, places, shown
from wherry.model.errors import InvalidInput


def test_a_url_has_a_scheme_places_a_path_and_options():
    assert parse("zk://a:1,b:2/shop/one?auth=u%3Ap&session_ms=4000") == (
        "zk",
        "a:1,b:2",
        "/shop/one",
        {"auth": "u:p", "session_ms": "4000"},
    )
    assert parse("static://billing=a:1;orders=b:2").places == "billing=a:1;orders=b:2"


@pytest.mark.parametrize(
    "url",
    [
        None,
        b"zk://a",
        "",
        "a:7073",
        "http://a:7073",
        "gossip:a",
        "ZK://a",
        "zk://",
        "zk:///path",
        "zk://u:hidden@a:2181",
        "zk://a:2181?auth=u:hidden#end",
        "zk://a?auth",
        "zk://a?auth=hidden&auth=hidden",
        "nats://u:hidden@a?token=hidden",
        "zk://a?" + "&".join(f"o{each}=1" for each in range(OPTIONS_MAX + 1)),
        "static://" + "a" * URL_CHARS_MAX,
    ],
)
def test_a_url_that_is_none_is_refused_and_hides_its_secrets(url):
    with pytest.raises(InvalidInput) as refused:
        parse(url)
    assert refused.value.field == "registry"
    assert "hidden" not in str(refused.value)


@given(st.text(max_size=30))
def test_no_value_of_an_option_is_shown(secret):
    assert "hidden" not in shown(f"gossip://u:hidden@a:7073?key=hidden{secret.replace('&', '')}&name=hidden")


@given(st.text())
def test_any_text_is_a_url_or_refused(text):
    for url in (text, "zk://" + text, "zk://a?" + text):
        with contextlib.suppress(InvalidInput):
            parse(url)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a:1", HostPort("a", 1)),
        ("a", HostPort("a", 99)),
        ("a.b-c_d.e:65535", HostPort("a.b-c_d.e", 65_535)),
        ("[::1]", HostPort("::1", 99)),
        ("[fe80::1]:7", HostPort("fe80::1", 7)),
    ],
)
def test_a_place_is_a_host_and_a_port(text, found):
    assert place("seeds", text, 99) == found
    assert place("seeds", str(found)) == found


@pytest.mark.parametrize(
    "text", ["", ":1", "a:", "a:0", "a:65536", "a:x", "::1", "[::1", "[a]:1", "a b:1", "-a:1", "ä:1"]
)
def test_a_place_that_is_none_is_refused(text):
    with pytest.raises(InvalidInput) as refused:
        place("seeds", text, 99)
    assert refused.value.field == "seeds"


def test_places_are_bounded_and_each_is_given_once():
    assert places("seeds", "a:1, b:2", most=2) == [HostPort("a", 1), HostPort("b", 2)]
    for bad in ("a:1,b:2,c:3", "a:1,a:1", "a:1,", "a"):
        with pytest.raises(InvalidInput):
            places("seeds", bad, most=2)
