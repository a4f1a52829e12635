"""ZooKeeper that is killed, comes back, or stands still, and what becomes of rosters and announcements."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.registries.announcing import Announcing
from tests.registries.test_zookeeper import HOST, one, run, until_created
from tests.registries.waiting import PATIENCE_S, until, until_true, until_urls, urls
from tests.registries.zookeeper_server import ZooKeeper


@pytest.fixture
def server(tmp_path) -> Iterator[ZooKeeper]:
    """Return a server of the test alone, which may end it."""
    started = ZooKeeper(tmp_path)
    started.start()
    yield started
    started.kill()


@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.long)])
def test_rosters_outlast_a_killed_server_and_what_happened_meanwhile_is_announced_after_it(server, kills):
    async def play(reading, announcing):
        for port in range(1, 1 + kills):
            await announcing.announce(one(port))
            await announcing.announce(one(90, "b"))
            known = [f"{HOST}:{port}", f"{HOST}:90"]
            await until_urls(reading, known)
            changes: list[str] = []
            stop = reading.roster.watch(changes.append)
            server.kill()
            await until_true(lambda: not reading.reachable and not announcing.reachable)
            await announcing.withdraw("billing", "b")
            await announcing.announce(one(50, "new", service="orders"))
            await announcing.announce(one(100 + port, version=port))
            assert (urls(reading), changes) == (known, [])
            server.start()
            await until_urls(reading, [f"{HOST}:{100 + port}"])
            await until(reading, lambda: urls(reading, "orders") == [f"{HOST}:50"])
            stop()

    run(server, "", play, 2)


def test_no_instance_is_missed_while_all_sessions_are_lost_and_replaced(server):
    """Let the server stand still until all sessions ended: some processes are back sooner than others."""

    async def play(reading, announcing):
        await announcing.announce(one(1))
        await until(reading, lambda: urls(reading) == [f"{HOST}:1"])
        changes: list[str] = []
        reading.roster.watch(changes.append)
        reading._hold_s = PATIENCE_S  # a busy machine may need longer than what is usual
        while not (reading.sessions_lost and announcing.sessions_lost):
            server.pause()
            await until_true(lambda: not reading.reachable and not announcing.reachable)
            await asyncio.sleep(2)  # the length of a session: what is waited for is its end
            server.resume()
            await until_true(lambda: reading.reachable and announcing.reachable)
        await until_true(lambda: reading._reader.tree.has("billing", "a"))
        assert (urls(reading), changes) == ([f"{HOST}:1"], [])

    run(server, "", play, 2)


def test_a_server_that_lost_its_data_gets_all_instances_again(server):
    """Such a server refuses clients that saw more than it has, so they have to begin anew."""

    async def play(reading, announcing):
        for port in range(1, 10):
            await announcing.announce(one(port))
        await until_urls(reading, [f"{HOST}:9"])
        changes: list[str] = []
        reading.roster.watch(changes.append)
        reading._hold_s = PATIENCE_S  # a busy machine may need longer than what is usual
        server.kill()
        server.wipe()
        server.start()
        await until_true(lambda: reading.sessions_lost and announcing.sessions_lost)
        await until_true(lambda: reading._reader.tree.has("billing", "a"))
        assert (urls(reading), changes) == ([f"{HOST}:9"], [])

    run(server, "", play, 2)


def test_a_new_session_takes_over_the_nodes_of_the_last_one_before_that_expires(server):
    async def play(reading, announcing):
        await announcing.announce(one(1))
        await until_urls(reading, [f"{HOST}:1"])
        seen: list[list[str]] = []
        reading.roster.watch(lambda _: seen.append(urls(reading)))
        server.kill()
        await until_true(lambda: not reading.reachable and not announcing.reachable)
        before = announcing._announcer._sessions[-1]
        await announcing._link.renew()
        server.start()
        await until_created(server, "/wherry", before)
        await announcing.announce(one(2, "b"))
        await until_urls(reading, [f"{HOST}:1", f"{HOST}:2"])
        assert seen == [[f"{HOST}:1", f"{HOST}:2"]]

    run(server, "", play, 2, session_ms=10_000)


def test_processes_find_the_server_again(server, tmp_path):
    url = f"zk://{server.address}?session_ms=2000"
    provider, caller = Announcing(url, "billing", "a", f"{HOST}:1"), Announcing(url)
    try:
        assert f"billing {HOST}:1" in caller.reported
        server.kill()
        provider.order(f"announce billing a {HOST}:2")
        server.start()
        caller.wait_for(f"billing {HOST}:2")
    finally:
        provider.close()
        caller.close()


def test_what_is_held_stays_until_all_was_read_again(server):
    """Lose the new session's connection before anything was read in it: what is held has to wait for the next one."""

    async def play(reading, announcing):
        await announcing.announce(one(1))
        await until_urls(reading, [f"{HOST}:1"])
        changes: list[str] = []
        reading.roster.watch(changes.append)
        reading._hold_s = PATIENCE_S
        server.kill()
        await until_true(lambda: not reading.reachable and not announcing.reachable)
        for connected in (None, True, False):
            reading._changed(connected)
        assert reading._holding
        assert reading._release is None, "nothing ends the hold while nothing can be read"
        server.start()
        await until_true(lambda: reading._release is not None and reading._reader.tree.has("billing", "a"))
        reading._give_up()
        assert not reading._holding
        assert (urls(reading), changes) == ([f"{HOST}:1"], [])

    run(server, "", play, 2)
