"""A URL opens its registry, options are checked and hidden, and extras are named where they are missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from wherry.mesh.fixed import FixedRegistry
from wherry.mesh.gossip.registry import GossipRegistry
from wherry.mesh.opening import open_registry
from wherry.mesh.urls import SCHEMES
from wherry.model.errors import InvalidInput


def test_a_url_opens_its_registry():
    assert isinstance(open_registry("static://a:1"), FixedRegistry)
    options = "host=127.0.0.1&port=0&advertise=10.0.0.1&name=me&key=sixteen-bytes-or-more&cluster=shop&period_ms=500"
    opened = open_registry(f"gossip://a,b:7074?{options}")
    assert isinstance(opened, GossipRegistry)
    assert opened.name == "me"
    assert [(seed.host, seed.port) for seed in opened._seeds] == [("a", 7073), ("b", 7074)]
    assert opened._key == b"sixteen-bytes-or-more"


@pytest.mark.parametrize(
    ("url", "field"),
    [
        ("gossip://a:0", "seeds"),
        ("gossip://a,a:7073", "seeds"),
        ("gossip://a/path", "registry"),
        ("gossip://a?key=hidden", "key"),
        ("gossip://a?tls=hidden", "tls"),
        ("gossip://a?period_ms=x", "period_ms"),
        ("gossip://a?advertise=b:c", "advertise"),
        ("gossip://a?secret=hidden", "option"),
    ],
)
def test_an_option_that_breaks_a_rule_is_named_and_a_secret_not_shown(url, field):
    with pytest.raises(InvalidInput) as refused:
        open_registry(url)
    assert refused.value.field == field
    assert "hidden" not in str(refused.value)


LACKING = """
import sys
sys.modules["kazoo"] = sys.modules["dns"] = None
from wherry.mesh.opening import open_registry
open_registry("static://a:1")
for url in ("zk://a", "dns://a:1"):
    try:
        open_registry(url)
    except ValueError as fault:
        print(fault)
"""


def test_a_missing_extra_is_named_and_the_others_work():
    shown = subprocess.run(
        [sys.executable, "-c", LACKING], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert "pip install 'wherry[zookeeper]'" in shown[0]
    assert "pip install 'wherry[dns]'" in shown[1]


def test_every_scheme_that_a_url_may_have_is_opened():
    for scheme in SCHEMES:
        with pytest.raises(InvalidInput, match=f"for {scheme}:// one of"):
            open_registry(f"{scheme}://a:1", none=1)


@pytest.mark.parametrize(
    "url",
    [
        "gossip://a:7073?key=before&SECRET=1",
        "gossip:u:SECRET@host",
        "gossip//u:SECRET@host",
        "SECRET",
        "SECRET1://host",
        "zk://u:SECRET@h/p",
        "zk://h/SECRET@x",
        "zk://h,u:SECRET",
        "zk://h?session_ms=SECRET",
        "gossip://a?name=SECRET%20",
        "gossip://a?cluster=SECRET%00",
        "gossip://a?advertise=u:SECRET",
        "gossip://a:7073;key=SECRET",
        "gossip://a:7073&key=SECRET",
        "dns://a:1?nameserver=SECRET:x",
        "static://a:1?scheme=SECRET",
    ],
)
def test_what_cannot_be_read_and_values_of_options_are_not_shown(url):
    with pytest.raises(InvalidInput) as refused:
        open_registry(url)
    assert "SECRET" not in str(refused.value)
