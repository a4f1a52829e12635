"""The blocking face when it closes: nobody waits for ever, and what comes afterwards is refused."""

from __future__ import annotations

import threading
import time

import pytest

from tests.integration.services import shop
from wherry.model.errors import Closed, InvalidInput
from wherry.service.outcomes import CallError
from wherry.service.providing.provider import ListenAt
from wherry.service.sync import SyncPeer, peer_sync

PATIENCE_S = 60.0


def call_until_closed(peer: SyncPeer, ended: list[str]) -> None:
    while True:
        try:
            peer.call("shop.echo", b"x")
        except (Closed, CallError) as fault:
            ended.append(type(fault).__name__)
            if isinstance(fault, Closed):
                return


def test_threads_that_call_while_it_closes_all_end():
    for _ in range(3):
        peer, ended = peer_sync(provides=[shop()]), list[str]()
        threads = [threading.Thread(target=call_until_closed, args=(peer, ended), daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.02)
        peer.close()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads)
        peer.close()
        with pytest.raises(Closed):
            peer.start_call("shop.echo", b"x")


def test_an_address_that_callers_cannot_reach_is_refused_without_one_to_advertise():
    for host in ("0.0.0.0", "::"):
        with pytest.raises(InvalidInput, match="advertise"):
            ListenAt(host=host)
    listening = ListenAt(host="0.0.0.0", advertise="http://web-1:7080", names=("shop.example",))
    assert {"web-1", "shop.example"} <= listening.known_names()
