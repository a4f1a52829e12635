"""Logins that fail: the same answer whether the name is known, later each time, and no other client waits."""

from __future__ import annotations

import asyncio

import pytest

from tests.amqp.test_management_people import ALL, opens
from tests.amqp.tools import admin_of, ask, config
from tests.stomp.raw import Raw as StompRaw
from wherry.model.catalog.key import Key
from wherry.model.errors import Unauthorized
from wherry.node.node import Node
from wherry.queueing.login import Login
from wherry.security import access as access_module
from wherry.security.access import Access
from wherry.security.attempts import FORGET_S, PEERS_MAX, Attempts
from wherry.security.passwords import knows, make_user


class Ring:
    def __init__(self, *keys: Key) -> None:
        self.known = {key.name: key for key in keys}

    def key(self, public_id: str) -> Key | None:
        return None

    def user(self, name: str) -> Key | None:
        return self.known.get(name)


def refusal(access: Access, name: str, secret: str, *, peer: str = "here", any_user: bool = False) -> Unauthorized:
    with pytest.raises(Unauthorized) as found:
        Login(access, None, any_user=any_user, peer=peer).enter("PLAIN", name, secret)
    return found.value


@pytest.mark.parametrize("keys_on", [True, False])
def test_a_refusal_does_not_reveal_whether_a_name_is_known(keys_on, monkeypatch):
    access = Access(keys_on, Ring(make_user("ann", "secret", [], now_ms=0)))
    compared = []

    def noted(key: Key, word: str) -> bool:
        compared.append(word)
        return knows(key, word)

    monkeypatch.setattr(access_module, "knows", noted)
    found = {str(refusal(access, name, "wrong")) for name in ("ann", "nobody", "guest", "")}
    assert len(found) == 1
    assert compared == ["wrong"] * 4  # one hash for each name, so that each refusal takes as long


def test_a_name_that_is_taken_is_of_one_user_even_where_any_name_is_let_in():
    access = Access(False, Ring(make_user("ann", "secret", [], now_ms=0), make_user("guest", "other", [], now_ms=0)))
    for name, secret in (("ann", "wrong"), ("guest", "guest")):
        refusal(access, name, secret, any_user=True)
    Login(access, None, any_user=True).enter("PLAIN", "bob", "whatever")


def test_each_failure_of_an_address_is_answered_later_than_the_one_before():
    access = Access(False, Ring())
    assert [refusal(access, "x", "y", peer="one").pause_s for _ in range(7)] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert refusal(access, "x", "y", peer="two").pause_s == 0.1
    assert refusal(access, "", "", peer="two").pause_s == 0.0  # nothing was guessed


def test_addresses_are_forgotten_in_time_and_when_there_are_too_many():
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    assert [attempts.failed("one"), attempts.failed("one")] == [0.1, 0.2]
    now[0] += FORGET_S
    assert attempts.failed("one") == 0.1
    for number in range(PEERS_MAX + 10):
        attempts.failed(f"peer {number}")
    assert len(attempts) == PEERS_MAX
    assert attempts.failed("one") == 0.1


def stomp_refusal(node: Node, name: str, secret: str) -> str:
    assert node.stomp_port is not None
    with StompRaw(node.stomp_port) as raw:
        raw.send("CONNECT", accept_version="1.2", login=name, passcode=secret)
        return raw.expect("ERROR").why.replace(name, "NAME")


@pytest.mark.rows("Q12")
@pytest.mark.parametrize("keys", ["off", "on"])
def test_every_wire_counts_failed_logins_and_waits_before_it_answers(tmp_path, keys, monkeypatch):
    """Count the pauses of all wires together; the loop continues, and a client with the password is let in."""
    paused: list[float] = []
    failed = Attempts.failed

    def noted(attempts: Attempts, peer: str) -> float:
        assert peer == "127.0.0.1"
        failed(attempts, peer)
        paused.append(0.3)
        return 0.3

    monkeypatch.setattr(Attempts, "failed", noted)

    async def main() -> None:
        async with Node(config(tmp_path, keys=keys)) as node:
            boss = admin_of(node) if keys == "on" else "guest:guest"
            await ask(node, "PUT users/ann", {"password": "secret", "tags": "management"}, boss)
            await ask(node, "PUT permissions/%2F/ann", ALL, boss)
            loop = asyncio.get_running_loop()
            began = loop.time()
            words = [await asyncio.to_thread(stomp_refusal, node, name, "wrong") for name in ("ann", "nobody")]
            assert words[0] == words[1]
            found = [await ask(node, "GET whoami", None, f"{name}:wrong") for name in ("ann", "nobody")]
            assert [status for status, _ in found] == [401, 401]
            assert found[0] == found[1]
            assert (await ask(node, "PUT queues/%2F/q", {"durable": True}, "ann:wrong"))[0] == 401
            assert (await ask(node, "POST definitions", {"a": "x" * 100_000}, "ann:wrong"))[0] == 401  # at the head
            assert [await opens(node, name, "wrong") for name in ("ann", "nobody")] == [403, 403]
            assert len(paused) == 8
            assert loop.time() - began >= sum(paused)  # no answer came before its time
            assert await opens(node, "ann", "secret") == 0
            assert len(paused) == 8

    asyncio.run(main())
