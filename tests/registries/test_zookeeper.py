"""ZooKeeper as a registry, with a real server: what processes announce, and what others see of it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from kazoo.security import make_digest_acl

from tests.ports import free_port
from tests.registries.announcing import Announcing
from tests.registries.waiting import PATIENCE_S, until, until_true, until_urls, urls
from tests.registries.zookeeper_server import ZooKeeper
from wherry.mesh.instance import INSTANCE_BYTES_MAX, Instance, encode
from wherry.mesh.opening import open_registry
from wherry.mesh.zookeeper.announcing import ANNOUNCED_MAX
from wherry.mesh.zookeeper.registry import ZooKeeperRegistry
from wherry.model.errors import Closed, InvalidInput, LimitReached, Unauthorized, Unavailable

HOST = "http://127.0.0.1"


@pytest.fixture
def root(request) -> str:
    """Return a path of the test alone."""
    return "/" + "".join(each if each.isalnum() else "-" for each in request.node.name)


@pytest.fixture
def processes() -> Iterator[list[Announcing]]:
    started: list[Announcing] = []
    yield started
    for each in started:
        each.close()


def one(port: int, name: str = "a", service: str = "billing", version: int = 0) -> Instance:
    return Instance(service=service, id=name, url=f"{HOST}:{port}", version=version)


def opened(server: ZooKeeper, root: str, **options: object) -> ZooKeeperRegistry:
    registry = open_registry(f"zk://{server.address}{root}", **{"session_ms": 2_000, "start_ms": 90_000, **options})
    assert isinstance(registry, ZooKeeperRegistry)
    return registry


def run(server: ZooKeeper, root: str, play, count: int = 1, **options: object) -> None:
    """Run a play with started registries of one root."""

    async def whole() -> None:
        registries = [opened(server, root, **options) for _ in range(count)]
        try:
            for each in registries:
                await each.start()
            await play(*registries)
        finally:
            for each in registries:
                await each.close()

    asyncio.run(whole())


@pytest.fixture
def providers() -> Iterator[list[str]]:
    """Return the URLs of two servers, which answer with their number."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = str(servers.index(self.server)).encode()  # type: ignore[arg-type]
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    threads = [threading.Thread(target=each.serve_forever) for each in servers]
    for thread in threads:
        thread.start()
    yield [f"{HOST}:{each.server_port}" for each in servers]
    for each, thread in zip(servers, threads, strict=True):
        each.shutdown()
        thread.join()
        each.server_close()


@pytest.mark.rows("P11")
def test_the_url_of_a_service_changes_and_a_caller_reaches_it_without_a_change(zookeeper, root, processes, providers):
    url = f"zk://{zookeeper.address}{root}"
    provider = Announcing(url, "billing", "a", providers[0])
    caller = Announcing(url)
    processes += [provider, caller]
    assert caller.order("get billing") == "0"
    provider.order(f"announce billing a {providers[1]}")
    caller.wait_for(f"billing {providers[1]}")
    assert caller.order("get billing") == "1"
    provider.order("withdraw billing a")
    caller.wait_for("billing")


@pytest.mark.rows("P10")
def test_an_instance_that_connects_is_seen_by_processes_that_run_already(zookeeper, root, processes):
    url = f"zk://{zookeeper.address}{root}"
    caller = Announcing(url)
    processes += [caller, Announcing(url, "billing", "a", f"{HOST}:1"), Announcing(url, "billing", "b", f"{HOST}:2")]
    caller.wait_for(f"billing {HOST}:1 {HOST}:2")


def test_the_node_of_a_killed_process_goes_with_its_session(zookeeper, root, processes):
    async def play(registry):
        killed = Announcing(f"zk://{zookeeper.address}{root}?session_ms=1000", "billing", "a", f"{HOST}:1")
        processes.append(Announcing(f"zk://{zookeeper.address}{root}", "billing", "b", f"{HOST}:2"))
        await until(registry, lambda: urls(registry) == [f"{HOST}:1", f"{HOST}:2"])
        killed.kill()
        await until(registry, lambda: urls(registry) == [f"{HOST}:2"])

    run(zookeeper, root, play)


def test_a_process_that_ends_withdraws_at_once(zookeeper, root):
    async def play(registry):
        ended = Announcing(f"zk://{zookeeper.address}{root}?session_ms=10000", "billing", "a", f"{HOST}:1")
        await until(registry, lambda: urls(registry) == [f"{HOST}:1"])
        ended.close()
        await until(registry, lambda: urls(registry) == [])

    run(zookeeper, root, play)


def test_of_two_processes_with_an_id_the_later_announcement_counts(zookeeper, root):
    async def play(reading, first, second):
        await first.announce(one(1))
        await second.announce(one(2))
        await until_urls(reading, [f"{HOST}:2"])
        seen: list[list[str]] = []
        reading.roster.watch(lambda _: seen.append(urls(reading)))
        # A new session is no announcement, and a withdrawal is not of the node of another session.
        await end_session(zookeeper, first)
        await first.announce(one(3, "b"))
        await until_urls(reading, [f"{HOST}:2", f"{HOST}:3"])
        before = created(zookeeper, root, "billing/a")
        await first.withdraw("billing", "a")
        assert created(zookeeper, root, "billing/a") == before
        await first.withdraw("billing", "b")
        await until_urls(reading, [f"{HOST}:2"])
        await first.announce(one(4))
        await until_urls(reading, [f"{HOST}:4"])
        assert seen == [[f"{HOST}:2", f"{HOST}:3"], [f"{HOST}:2"], [f"{HOST}:4"]]

    run(zookeeper, root, play, 3)


def test_a_session_that_ended_is_replaced_and_its_instances_are_announced_anew(zookeeper, root):
    async def play(reading, announcing):
        await announcing.announce(one(1))
        await until(reading, lambda: urls(reading) == [f"{HOST}:1"])
        session = await end_session(zookeeper, announcing)
        await until_created(zookeeper, root, session)
        await until(reading, lambda: urls(reading) == [f"{HOST}:1"])
        assert urls(announcing) == [f"{HOST}:1"]

    run(zookeeper, root, play, 2)


def provides(registry: ZooKeeperRegistry, url: str) -> bool:
    return url in urls(registry)


async def end_session(server: ZooKeeper, registry: ZooKeeperRegistry) -> int:
    """End the session of a registry, wait until it has another, and return the one that ended."""
    session, password = registry._link._client.client_id
    while not registry.sessions_lost:  # it may have taken its session back before that was closed
        await asyncio.to_thread(server.end_session, session, password)
        await until_true(lambda: registry.reachable or registry.sessions_lost > 0)
    await until_true(lambda: registry.reachable)
    return session


async def until_created(server: ZooKeeper, root: str, ended: int) -> None:
    """Return once another session than the one that ended owns the node of the instance `a` of `billing`."""
    async with asyncio.timeout(PATIENCE_S):
        while (await asyncio.to_thread(created, server, root, "billing/a"))[0] in {0, ended}:
            pass


def created(server: ZooKeeper, root: str, node: str) -> tuple[int, int]:
    """Return which session created a node and by which transaction, or zeros if it is not there."""
    client = server.client()
    try:
        found = client.exists(f"{root}/services/{node}")
        return (found.ephemeralOwner, found.czxid) if found else (0, 0)
    finally:
        client.stop()
        client.close()


def test_what_others_delete_is_announced_again(zookeeper, root):
    async def play(reading, announcing):
        await announcing.announce(one(1))
        await until(reading, lambda: urls(reading) == [f"{HOST}:1"])
        client = zookeeper.client()

        async def again(deleted: str) -> None:
            before = client.exists(f"{root}/services/billing/a").czxid
            client.delete(deleted, recursive=True)
            await until_true(lambda: (node := client.exists(f"{root}/services/billing/a")) and node.czxid > before)

        await again(f"{root}/services/billing/a")
        await again(f"{root}/services")
        client.stop()
        client.close()
        await until(reading, lambda: urls(reading) == [f"{HOST}:1"])

    run(zookeeper, root, play, 2)


def test_foreign_nodes_are_ignored_and_counted(zookeeper, root):
    client = zookeeper.client()
    services = f"{root}/services"
    bad = {
        f"{services}/billing/json": b"{",
        f"{services}/billing/empty": b"",
        f"{services}/billing/other": encode(one(9, "not-other")),
        f"{services}/billing/big": b" " * (INSTANCE_BYTES_MAX + 1),
        f"{services}/billing/a b": b"x",
        f"{services}/billing/%zz": b"x",
        f"{services}/%zz": b"x",
    }
    for path, content in bad.items():
        client.create(path, content, makepath=True)
    client.create(f"{services}/locked")
    for path in (f"{services}/locked/a", f"{services}/closed"):
        client.create(path, encode(one(9)), acl=[make_digest_acl("x", "y", all=True)])

    async def play(registry):
        assert registry.ignored == len(bad) + 2
        await registry.announce(one(1))
        await until(registry, lambda: urls(registry) == [f"{HOST}:1"])
        assert set(registry.roster.services) == {"billing"}
        client.set(f"{services}/billing/json", encode(one(2, "json")))
        await until(registry, lambda: urls(registry) == [f"{HOST}:1", f"{HOST}:2"])
        client.set(f"{services}/billing/json", b"[]")
        await until(registry, lambda: urls(registry) == [f"{HOST}:1"])
        client.delete(f"{services}/billing/json")
        client.delete(f"{services}/%zz")
        await until_true(lambda: registry.ignored == len(bad))

    run(zookeeper, root, play)
    client.stop()
    client.close()


def test_names_with_any_visible_characters_are_found(zookeeper, root):
    async def play(reading, announcing):
        for name in ("a/b", ".", "..", "%", "ü", "x" * 128, "zookeeper"):
            await announcing.announce(one(1, name, service=name))
            await until_urls(reading, [f"{HOST}:1"], name)

    run(zookeeper, root, play, 2)


def test_hundreds_of_instances_are_read_and_followed(zookeeper, root):
    async def play(first, announcing):
        await asyncio.gather(
            *(announcing.announce(one(each + 1, f"i{each}", service=f"s{each % 7}")) for each in range(300))
        )
        late = opened(zookeeper, root)
        await late.start()
        try:
            await until(first, lambda: sum(map(len, first.roster.services.values())) == 300)
            assert dict(late.roster.services) == dict(first.roster.services)
        finally:
            await late.close()
        for each in range(300):
            await announcing.withdraw(f"s{each % 7}", f"i{each}")
        await until(first, lambda: not first.roster.services)

    run(zookeeper, root, play, 2)


def test_nodes_of_a_user_are_closed_to_others_and_the_password_is_in_no_log(zookeeper, root, caplog):
    async def play(announcing, reading):
        await announcing.announce(one(1))
        await until(reading, lambda: urls(reading) == [f"{HOST}:1"])
        other = opened(zookeeper, root, auth="wherry:other")
        with pytest.raises(Unauthorized, match="refuses"):
            await other.start()

    with caplog.at_level(logging.DEBUG):
        run(zookeeper, root, play, 2, auth="wherry:hidden")
    assert "hidden" not in caplog.text


def test_what_one_process_announces_is_bounded():
    async def play() -> None:
        registry = open_registry(f"zk://127.0.0.1:{free_port()}")  # not started: announcements are kept
        for each in range(ANNOUNCED_MAX):
            await registry.announce(one(1, f"i{each}"))
        await registry.announce(one(2, "i0", version=1))
        with pytest.raises(LimitReached):
            await registry.announce(one(1, "more"))
        await registry.close()

    asyncio.run(play())


@pytest.mark.parametrize("auth", ["hidden", ":hidden", "hidden:", "hidden:" + "x" * 300, 7])
def test_an_auth_that_is_none_is_refused_and_not_shown(auth):
    with pytest.raises(InvalidInput) as refused:
        open_registry("zk://a:2181", auth=auth)
    assert refused.value.field == "auth"
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "field"),
    [
        ("zk://a:b", "registry"),
        ("zk://a,a", "registry"),
        ("zk://" + ",".join(f"h{each}" for each in range(65)), "registry"),
        ("zk://a//b", "path"),
        ("zk://a/b c", "path"),
        ("zk://a/../b", "path"),
        ("zk://a/zookeeper", "path"),
        ("zk://a/" + "x" * 256, "path"),
        ("zk://a?session_ms=1", "session_ms"),
        ("zk://a?session_ms=1.5", "session_ms"),
        ("zk://a?timeout=1", "option"),
    ],
)
def test_a_url_that_makes_no_sense_names_the_field(url, field):
    with pytest.raises(InvalidInput) as refused:
        open_registry(url)
    assert refused.value.field == field


def test_start_fails_without_a_server_and_leaves_no_thread():
    threads = set(threading.enumerate())

    async def play() -> None:
        registry = open_registry(f"zk://127.0.0.1:{free_port()}", session_ms=2_000, start_ms=300)
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
            await registry.start()
        with pytest.raises(Closed):
            await registry.announce(one(1))

    asyncio.run(play())
    assert [each.name for each in set(threading.enumerate()) - threads if not each.name.startswith("asyncio")] == []


@pytest.mark.rows("P11")
def test_an_instance_that_went_and_came_at_once_is_read_again(zookeeper, root):
    """Withdraw and announce while others look: their looks find no node, or the new one, in any order."""

    async def play(announcing, *reading):
        for number in range(1, 81):
            name = f"i{number % 5}"
            await announcing.announce(one(2 * number - 1, name))
            await announcing.withdraw("billing", name)
            await announcing.announce(one(2 * number, name))
            for each in reading:
                await until(each, partial(provides, each, f"{HOST}:{2 * number}"))
            if number % 2:
                await announcing.withdraw("billing", name)

    run(zookeeper, root, play, 5)
