"""Names and their addresses: shared, bounded, kept for a moment."""

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.integration.receiver import until
from wherry.node.webhooks import lookups
from wherry.node.webhooks.lookups import Lookups, NotTried
from wherry.node.webhooks.targets import Target, TargetRefused, Targets


class System:
    """A resolver of a system: names in `.hangs` wait for `answer`, those in `.none` do not exist."""

    def __init__(self) -> None:
        self.answer = threading.Event()
        self.asked: list[str] = []

    def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        if host.endswith(".hangs"):
            self.answer.wait(20)
        if host.endswith(".none"):
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return ["192.0.2.1"]


@pytest.fixture
def system() -> Iterator[System]:
    made = System()
    yield made
    made.answer.set()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "WAIT_S", 0.5)
    monkeypatch.setattr(lookups, "LATE_S", 0.05)
    monkeypatch.setattr(lookups, "KEEP_S", 0.5)


async def look(names: Lookups, host: str) -> list[str]:
    return await (await names.begin(host))


def test_all_callers_that_ask_for_a_name_share_one_lookup_and_its_answer_holds_for_a_moment(system):
    async def main() -> None:
        names = Lookups(system)
        waiting = [asyncio.create_task(look(names, "a.hangs")) for _ in range(50)]
        await asyncio.sleep(0.02)
        system.answer.set()
        assert await asyncio.gather(*waiting) == [["192.0.2.1"]] * 50
        await look(names, "a.hangs")
        assert system.asked == ["a.hangs"]
        await asyncio.sleep(0.55)
        await look(names, "a.hangs")
        assert system.asked == ["a.hangs"] * 2

    asyncio.run(main())


def test_hosts_that_answered_before_have_places_of_their_own(system, monkeypatch):
    monkeypatch.setattr(lookups, "LATE_MAX", 0)

    async def main() -> None:
        names = Lookups(system)
        await look(names, "known")
        for number in range(lookups.PLACES):
            _ = await names.begin(f"{number}.hangs")
        with pytest.raises(NotTried, match=r"new is not looked up yet"):
            _ = await names.begin("new")
        await asyncio.sleep(0.55)
        assert await look(names, "known") == ["192.0.2.1"]
        assert system.asked.count("known") == 2
        system.answer.set()
        assert await look(names, "new") == ["192.0.2.1"]

    asyncio.run(main())


def test_a_lookup_that_is_late_gives_its_place_back_and_late_ones_are_bounded(system, monkeypatch):
    monkeypatch.setattr(lookups, "LATE_MAX", 5)

    async def main() -> None:
        names = Lookups(system)
        for number in range(lookups.PLACES + 5):
            _ = await names.begin(f"{number}.hangs")
        with pytest.raises(NotTried):
            _ = await names.begin("one-more.hangs")
        assert len(system.asked) == lookups.PLACES + 5
        assert "one-more.hangs" not in system.asked
        system.answer.set()
        assert await look(names, "one-more.hangs") == ["192.0.2.1"]
        await until(lambda: not names._running)
        assert names._late == 0

    asyncio.run(main())


def test_lookups_that_wait_are_bounded_too(system, monkeypatch):
    monkeypatch.setattr(lookups, "NAMES_MAX", 2)

    async def main() -> None:
        names = Lookups(system)
        _ = await names.begin("a.hangs")
        _ = await names.begin("b.hangs")
        with pytest.raises(NotTried, match="2 other names are"):
            _ = await names.begin("c")

    asyncio.run(main())


def test_a_failure_is_raised_and_not_kept(system):
    async def main() -> None:
        names = Lookups(system)
        for _ in range(2):
            with pytest.raises(socket.gaierror):
                await look(names, "a.none")
            await asyncio.sleep(0)
        assert len(system.asked) == 2

    asyncio.run(main())


def test_without_a_thread_nothing_was_tried(system, monkeypatch):
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with pytest.raises(NotTried, match="can't start"):
                await look(Lookups(system), "a")

    asyncio.run(main())


@pytest.mark.parametrize("address", ["192.0.2.7", "::1"])
def test_an_address_needs_no_lookup(system, address):
    assert asyncio.run(look(Lookups(system), address)) == [address]
    assert system.asked == []


def test_an_answer_that_is_kept_is_judged_at_each_use(system):
    async def main() -> None:
        strict, lenient = Targets(), Targets(allow_private=True)
        strict._lookups = lenient._lookups = Lookups(system)
        target = Target.of("http://a/")
        assert await lenient.addresses(target) == ["192.0.2.1"]
        with pytest.raises(TargetRefused):
            await strict.addresses(target)
        assert system.asked == ["a"]

    asyncio.run(main())


def test_names_that_are_remembered_are_bounded(system, monkeypatch):
    monkeypatch.setattr(lookups, "KNOWN_MAX", 3)

    async def main() -> None:
        names = Lookups(system)
        for number in range(10):
            await look(names, str(number) + ".example")
        assert list(names._known) == ["7.example", "8.example", "9.example"]

    asyncio.run(main())
