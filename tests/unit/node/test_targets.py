"""Which addresses may be called, whatever they are called."""

import asyncio

import pytest

from wherry.model.errors import InvalidInput
from wherry.node.webhooks.targets import Target, TargetRefused, Targets

PRIVATE = [
    *("127.0.0.1", "127.8.9.1", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254"),
    *("100.64.0.1", "192.0.2.1", "198.18.0.1", "240.0.0.1", "255.255.255.255"),
    *("::1", "fe80::1", "fe80::1%eth0", "fd00::1", "fc00::1", "fec0::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:a9fe:a9fe", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1"),
    *("2002:7f00:1::", "2002:a00:1::1"),
]
NEVER = ["0.0.0.0", "::", "224.0.0.1", "239.255.255.250", "ff02::1", "::ffff:0.0.0.0"]
PUBLIC = ["1.1.1.1", "8.8.8.8", "172.32.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]


def found(targets: Targets, host: str) -> list[str]:
    return asyncio.run(targets.addresses(Target(host, 80, False, "/")))


def resolving(*addresses: str):
    async def resolver(host: str, port: int) -> list[str]:
        return list(addresses)

    return resolver


@pytest.mark.parametrize("address", [*PRIVATE, *NEVER])
def test_addresses_that_are_not_of_the_internet_are_refused(address):
    with pytest.raises(TargetRefused, match=r"webhooks\.allow"):
        found(Targets(resolver=resolving(address)), "example.org")
    bare = address.partition("%")[0]
    with pytest.raises(InvalidInput, match="callback"):
        Targets().check("callback", f"http://[{bare}]/" if ":" in bare else f"http://{bare}/")


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_of_the_internet_are_not(address):
    assert found(Targets(resolver=resolving(address)), "example.org") == [address]
    Targets().check("callback", f"https://[{address}]/" if ":" in address else f"https://{address}/")


@pytest.mark.parametrize("address", PRIVATE)
def test_private_ones_can_be_allowed_in_one_word(address):
    assert found(Targets(allow_private=True, resolver=resolving(address)), "x") == [address]


@pytest.mark.parametrize("address", NEVER)
def test_an_address_of_no_machine_is_no_target(address):
    with pytest.raises(TargetRefused):
        found(Targets(allow_private=True, resolver=resolving(address)), "x")


def test_networks_are_allowed_one_by_one_and_wrapping_does_not_matter():
    targets = Targets(["10.1.0.0/16", "::1"], resolver=resolving("10.2.0.1", "10.1.0.1", "::ffff:10.1.2.3", "::1"))
    assert found(targets, "x") == ["10.1.0.1", "::ffff:10.1.2.3", "::1"]
    targets.check("callback", "http://localhost/")
    with pytest.raises(InvalidInput):
        targets.check("callback", "http://127.0.0.1/")


def test_of_many_addresses_only_the_good_ones_are_used():
    assert found(Targets(resolver=resolving("127.0.0.1", "1.1.1.1")), "x") == ["1.1.1.1"]


@pytest.mark.parametrize("text", ["", "10.0.0.0/33", "10.0.0.1/8", "example.org"])
def test_a_network_that_is_not_valid_is_reported(text):
    with pytest.raises(InvalidInput, match=r"webhooks\.allow"):
        Targets([text])


def test_a_name_is_left_to_its_call():
    Targets().check("callback", "http://example.org/")
    for host in ("localhost", "a.localhost", "LOCALHOST"):
        with pytest.raises(InvalidInput, match="loopback"):
            Targets().check("callback", f"http://{host}/")


@pytest.mark.parametrize(
    ("url", "target", "authority"),
    [
        ("http://a", Target("a", 80, False, "/"), "a"),
        ("https://A:8443/x/?y=1", Target("a", 8443, True, "/x/?y=1"), "a:8443"),
        ("https://[::1]/", Target("::1", 443, True, "/"), "[::1]"),
        ("http://a?b", Target("a", 80, False, "/?b"), "a"),
    ],
)
def test_a_url_in_parts(url, target, authority):
    assert Target.of(url) == target
    assert target.authority == authority
