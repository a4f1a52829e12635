"""API keys are part of what a broker keeps: there after a restart, gone when deleted, bounded in number."""

import asyncio

import msgspec
import pytest

from tests.behaviour.world import in_loop
from wherry.core.state import catalog
from wherry.model.catalog.key import Right
from wherry.model.errors import InvalidInput, LimitReached, NotFound, Unauthorized
from wherry.security.access import Access
from wherry.security.keys import make

ALL = [Right("admin", "*")]


@pytest.mark.rows("D27")
@in_loop
async def test_keys_outlive_a_restart_and_deleted_ones_do_not(home, clock, how):
    broker = await home.open()
    ann, bob, eve = (make(name, ALL, now_ms=clock.now_ms) for name in ("ann", "bob", "eve"))
    for made in (bob, ann, eve):
        assert await broker.put_key(made.key) == made.key
    await broker.delete_key(eve.key.id)
    changed = await broker.change_key(bob.key.id, rights=(Right("consume", "jobs"),))
    assert changed == msgspec.structs.replace(bob.key, rights=(Right("consume", "jobs"),))
    broker = await home.again(how)
    listed = broker.keys()
    assert [key.name for key in listed] == ["ann", "bob"]
    assert broker.key(ann.key.id) == ann.key
    access = Access(True, broker, lambda: clock.now_ms)
    assert access.check_token(ann.token, "admin") == "ann"
    assert access.check_token(bob.token, "consume", "jobs") == "bob"
    with pytest.raises(Unauthorized, match="not known here"):
        access.check_token(eve.token, "admin")


@pytest.mark.rows("D27")
@in_loop
async def test_the_disk_never_sees_a_secret(home, clock):
    broker = await home.open()
    made = make("ann", ALL, now_ms=clock.now_ms)
    await broker.put_key(made.key)
    await broker.checkpoint()
    assert home.disk_holds(made.key.digest)
    assert home.disk_holds(made.key.id.encode())
    assert not home.disk_holds(made.token[12:].encode())


@in_loop
async def test_a_deleted_key_opens_nothing_at_once(home, clock):
    broker = await home.open()
    made = make("ann", ALL, now_ms=clock.now_ms)
    await broker.put_key(made.key)
    await broker.delete_key(made.key.id)
    with pytest.raises(Unauthorized):
        Access(True, broker).check_token(made.token, "admin")
    with pytest.raises(NotFound, match="no key named"):
        await broker.delete_key(made.key.id)


@in_loop
async def test_a_change_that_meets_a_deletion_brings_no_key_back(home, clock):
    broker = await home.open()
    made = make("ann", ALL, now_ms=clock.now_ms)
    await broker.put_key(made.key)
    outcomes: list[object] = await asyncio.gather(
        broker.delete_key(made.key.id), broker.change_key(made.key.id, name="bob"), return_exceptions=True
    )
    assert outcomes[0] is None
    assert isinstance(outcomes[1], NotFound)
    assert broker.keys() == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"digest": bytes(32)}, "key field"),
        ({"id": "abcdefgh"}, "key field"),
        ({"rights": ()}, "rights"),
        ({"name": ""}, "name"),
    ],
)
@in_loop
async def test_a_change_that_breaks_a_rule_changes_nothing(home, clock, changes, field):
    broker = await home.open()
    made = make("ann", ALL, now_ms=clock.now_ms)
    await broker.put_key(made.key)
    with pytest.raises(InvalidInput) as caught:
        await broker.change_key(made.key.id, **changes)
    assert caught.value.field == field
    assert broker.keys() == [made.key]


@in_loop
async def test_the_number_of_keys_is_bounded(home, clock, monkeypatch):
    monkeypatch.setattr(catalog, "KEYS_MAX", 2)
    broker = await home.open()
    keys = [make(f"k{number}", ALL, now_ms=clock.now_ms).key for number in range(3)]
    for key in keys[:2]:
        await broker.put_key(key)
    with pytest.raises(LimitReached, match="keys is full: the limit is 2"):
        await broker.put_key(keys[2])
    await broker.put_key(msgspec.structs.replace(keys[0], name="changed"))  # a key that is there may change
    await broker.create_topic("jobs")  # and nothing else is held up
    await broker.delete_key(keys[1].id)
    await broker.put_key(keys[2])


@in_loop
async def test_what_is_no_key_is_refused(home):
    broker = await home.open()
    with pytest.raises(InvalidInput, match="a Key"):
        await broker.put_key("wk_…")
    with pytest.raises(NotFound):
        await broker.delete_key(7)
