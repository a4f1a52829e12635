"""A key that a client sends: what may stand in a head, and what of it is shown."""

from __future__ import annotations

import pytest

import wherry
from wherry.client.link.address import Address
from wherry.client.link.pool import Pool


@pytest.mark.parametrize("key", ["wk_a\nb", "wk_a\r\nX-Evil: 1", "wk_secré", "wk_a b", "wk_\x00", b"wk_secret", 7])
def test_a_key_that_cannot_stand_in_a_head_is_refused_and_not_shown(key):
    for connect in (wherry.connect, wherry.connect_sync):
        with pytest.raises(wherry.InvalidInput, match=r"^api_key: got ") as told:
            connect("http://127.0.0.1:1", key=key)
        assert "wk_a" not in f"{told.value} {told.value.given}"
        assert "secr" not in f"{told.value} {told.value.given}"


@pytest.mark.parametrize(("key", "sent"), [(" wk_a\n", "Bearer wk_a"), ("", ""), (" \n", ""), (None, "")])
def test_white_space_around_a_key_is_no_part_of_it(key, sent):
    head = Pool(Address("broker"), key)._common
    assert head == "Host: broker:7070\r\n" + (f"Authorization: {sent}\r\n" if sent else "")
