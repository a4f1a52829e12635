"""Whether a node asks for keys: never open to others by accident."""

import pytest

from wherry.node.config import SecuritySection
from wherry.node.key_policy import OpenRefused, is_loopback, requires_keys

LOCAL, OTHERS = "127.0.0.1", "0.0.0.0"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_addresses_of_this_machine_only(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "192.0.2.1", "2001:db8::1", "no.such.name.invalid"])
def test_addresses_that_others_may_reach(host):
    assert not is_loopback(host)


@pytest.mark.rows("D27")
@pytest.mark.parametrize(
    ("keys", "host", "has_keys", "asks"),
    [
        ("auto", LOCAL, False, False),
        ("auto", LOCAL, True, True),
        ("auto", OTHERS, True, True),
        ("on", LOCAL, False, True),
        ("on", OTHERS, False, True),
        ("off", LOCAL, True, False),
    ],
)
def test_when_a_key_is_asked_for(keys, host, has_keys, asks):
    assert requires_keys(SecuritySection(keys=keys), host, has_keys=has_keys) is asks


@pytest.mark.rows("D27")
@pytest.mark.parametrize(("keys", "has_keys"), [("auto", False), ("off", False), ("off", True)])
def test_an_open_broker_that_others_can_reach_takes_a_word(keys, has_keys):
    with pytest.raises(OpenRefused, match=r"--keys on.*--open"):
        requires_keys(SecuritySection(keys=keys), OTHERS, has_keys=has_keys)
    assert not requires_keys(SecuritySection(keys=keys, open=True), OTHERS, has_keys=has_keys)
