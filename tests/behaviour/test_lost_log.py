"""The log of lost calls, on a real directory: kept, read, bounded, sent again, dropped."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import msgspec
import pytest

from tests.behaviour.world import VirtualClock
from tests.unit.service.lost.samples import lost_call
from wherry import InvalidInput, NotFound
from wherry import open as open_broker
from wherry.service.lost.bounds import LostBounds, LostStatistics
from wherry.service.lost.log import KEEPING_BYTES_MAX, KEEPING_MAX, LostLog
from wherry.service.lost.lost_call import LostCall
from wherry.service.lost.resending import UNDER_WAY_MAX, Resending

PATIENCE_S = 60


async def ids(log: LostLog, **of: str) -> list[str]:
    return [each.id async for each in log.calls(**of)]


async def refused(call: LostCall) -> None:
    raise ConnectionError("nobody there")


def run(main):
    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.rows("P15")
def test_a_call_that_is_kept_is_read_as_it_was_also_after_a_restart(tmp_path):
    calls = [
        lost_call("c1", resend=True, session="customer-7", instance="a", error="TimedOut", text="after 2 s"),
        lost_call("c2", side="provider", outcome="failed", body=b"\x00\xff", content="msgpack", labels={"a": "b"}),
        lost_call("c2", service="mail"),
    ]

    async def main():
        async with LostLog(tmp_path / "lost") as log:
            assert [await log.keep(each) for each in calls] == [True] * 3
            assert [each async for each in log.calls()] == calls
        async with LostLog(tmp_path / "lost") as log:
            assert [each async for each in log.calls()] == calls
            assert await ids(log, service="mail") == ["c2"]
            assert {each.side for each in await log.get("c2")} == {"caller", "provider"}
            assert await log.get("c3") == []

    run(main)


def test_a_peer_that_loses_nothing_has_no_folder(tmp_path):
    async def main():
        async with LostLog(tmp_path / "lost") as log:
            assert await ids(log) == []
            assert await log.get("c1") == []
            assert await log.drop([lost_call()]) == 0
            assert await log.resend("caller:c1", refused)
            assert await log.statistics() == LostStatistics()
        assert not (tmp_path / "lost").exists()

    run(main)


@pytest.mark.parametrize(
    ("bounds", "size", "left"),
    [(LostBounds(calls=3), 1, 3), (LostBounds(bytes=20_000, body_bytes=10_000), 5_000, 3)],
)
def test_at_a_bound_the_oldest_are_dropped_and_counted(tmp_path, bounds, size, left):
    async def main():
        async with LostLog(tmp_path / "lost", bounds) as log:
            for at in range(8):
                await log.keep(lost_call(f"c{at}", body=b"x" * size))
            assert await ids(log) == [f"c{at}" for at in range(8 - left, 8)]
        async with LostLog(tmp_path / "lost", bounds) as log:
            found = await log.statistics()
            assert (found.calls, found.kept, found.pushed_out, found.not_kept) == (left, 8, 8 - left, 0)

    run(main)


def test_bounds_can_be_changed_later(tmp_path):
    async def main():
        for most in (2, 4):
            async with LostLog(tmp_path / "lost", LostBounds(calls=most)) as log:
                for at in range(6):
                    await log.keep(lost_call(f"{most}-{at}"))
                assert len(await ids(log)) == most

    run(main)


def test_a_call_is_dropped_when_it_is_too_old(tmp_path):
    clock = VirtualClock()

    async def main():
        async with LostLog(tmp_path / "lost", LostBounds(keep_s=60.0), clock=clock) as log:
            await log.keep(lost_call("old"))
            clock.advance(30_000)
            await log.keep(lost_call("new"))
            clock.advance(31_000)
            assert await ids(log) == ["new"]
            assert (await log.statistics()).expired == 1

    run(main)


@pytest.mark.rows("P16")
def test_a_call_is_sent_again_and_dropped_when_it_was_answered(tmp_path):
    sent = []

    async def answer(call):
        sent.append(call)

    async def main():
        call = lost_call(resend=True)
        async with LostLog(tmp_path / "lost") as log:
            await log.keep(call)
            assert not await log.resend(call.name, refused)
            (after,) = await log.get(call.id)
            assert (after.attempts, after.error, after.text) == (2, "ConnectionError", "nobody there")
            assert await log.resend(call.name, answer)
            assert await ids(log) == []
            assert await log.resend(call.name, answer)
            found = await log.statistics()
            assert (found.calls, found.kept, found.removed, found.resent) == (0, 1, 1, 1)
        assert sent == [msgspec.structs.replace(call, attempts=2, error="ConnectionError", text="nobody there")]

    run(main)


def test_the_same_call_again_is_one_more_attempt(tmp_path):
    async def main():
        async with LostLog(tmp_path / "lost") as log:
            await log.keep(lost_call(error="TimedOut"))
            assert await log.keep(lost_call(error="ConnectionLost"))
            (found,) = await log.get("call-1")
            assert (found.attempts, found.error) == (2, "ConnectionLost")

    run(main)


def test_calls_are_dropped_by_hand(tmp_path):
    async def main():
        async with LostLog(tmp_path / "lost") as log:
            for each in ("c1", "c2", "c3"):
                await log.keep(lost_call(each))
            chosen = await log.get("c2")
            assert await log.drop(chosen) == 1
            assert await log.drop(chosen) == 0
            assert await ids(log) == ["c1", "c3"]

    run(main)


def test_a_call_of_which_a_part_is_missing_cannot_be_sent_again(tmp_path):
    async def main():
        async with LostLog(tmp_path / "lost", LostBounds(body_bytes=10)) as log:
            await log.keep(lost_call(body=b"x" * 11, resend=True))
            (found,) = await log.get("call-1")
            assert not found.resend
            with pytest.raises(InvalidInput, match="10 of 11 bytes are kept"):
                await log.ask_for_resend(found)

    run(main)


def test_what_cannot_be_kept_is_counted_and_reported(tmp_path, caplog):
    (tmp_path / "lost").write_text("a file is in the way")

    async def main():
        async with LostLog(tmp_path / "lost") as log:
            with caplog.at_level(logging.ERROR):
                assert [await log.keep(lost_call(f"c{at}")) for at in range(5)] == [False] * 5
            assert (await log.statistics()).not_kept == 5
        assert not await log.keep(lost_call("after-the-end"))
        assert not await log.keep(lost_call("no id"))

    run(main)
    assert len(caplog.records) == 3, "the first, the second and the fourth"
    assert "billing.total timed out" in caplog.text


def test_a_folder_that_another_log_has_open_is_named(tmp_path, caplog):
    async def main():
        async with LostLog(tmp_path / "lost") as log, LostLog(tmp_path / "lost") as other:
            await log.keep(lost_call("c1"))
            assert not await other.keep(lost_call("c2"))
            assert await ids(log) == ["c1"]

    run(main)
    assert "is in use by process" in caplog.text


def test_the_folder_of_another_broker_is_not_read(tmp_path):
    async def main():
        async with open_broker(tmp_path / "data") as broker:
            await broker.create_topic("jobs")
        async with LostLog(tmp_path / "data") as log:
            with pytest.raises(InvalidInput, match="allowed: a folder of its own for lost calls"):
                await ids(log)

    run(main)


def test_a_flood_of_failures_takes_bounded_memory(tmp_path, caplog):
    async def main():
        async with LostLog(tmp_path / "lost") as log:
            kept = await asyncio.gather(*(log.keep(lost_call(f"c{at}")) for at in range(KEEPING_MAX + 50)))
            assert Counter(kept) == {True: KEEPING_MAX, False: 50}
            large = b"x" * (1 << 20)
            count = KEEPING_BYTES_MAX // len(large)
            kept = await asyncio.gather(*(log.keep(lost_call(f"l{at}", body=large)) for at in range(count + 3)))
            assert Counter(kept) == {True: count, False: 3}
            assert await log.keep(lost_call("later")), "the flood is over"
            assert (await log.statistics()).not_kept == 53

    run(main)


@pytest.mark.rows("P16")
def test_kept_calls_are_sent_again_when_their_service_is_back(tmp_path):
    there: set[str] = set()
    answered: asyncio.Queue[str] = asyncio.Queue()
    under_way = Counter[str]()
    two_are_under_way = asyncio.Event()

    async def send(call):
        under_way["now"] += 1
        under_way["most"] = max(under_way["most"], under_way["now"])
        if under_way["now"] > 1:
            two_are_under_way.set()
        await two_are_under_way.wait()
        under_way["now"] -= 1
        answered.put_nowait(call.id)

    async def main():
        async with LostLog(tmp_path / "lost") as log:
            for at in range(20):
                await log.keep(lost_call(f"early-{at}", resend=True))
            await log.keep(lost_call("not-asked-for"))
        async with LostLog(tmp_path / "lost") as log:
            resending = Resending(log, send, there.__contains__)
            running = asyncio.create_task(resending.run())
            await log.keep(lost_call("late", resend=True))
            await log.keep(lost_call("other", service="mail", resend=True))
            there.add("billing")
            resending.changed("billing")
            found = {await answered.get() for _ in range(21)}
            assert found == {"late", *(f"early-{at}" for at in range(20))}
            while len(await ids(log)) > 2:  # noqa: ASYNC110  nothing signals it
                await asyncio.sleep(0.01)
            assert await ids(log) == ["not-asked-for", "other"]
            assert 1 < under_way["most"] <= UNDER_WAY_MAX
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run(main)


@pytest.mark.rows("P16")
def test_a_call_that_fails_again_stays_and_is_tried_again(tmp_path):
    tries = Counter[str]()
    done = asyncio.Event()

    async def send(call):
        tries[call.id] += 1
        if tries[call.id] == 1:
            raise TimeoutError("still not there")
        done.set()

    async def main():
        async with LostLog(tmp_path / "lost") as log:
            running = asyncio.create_task(Resending(log, send, lambda service: True).run())
            await log.keep(lost_call(resend=True))
            await done.wait()
            while await ids(log):  # noqa: ASYNC110  nothing signals it
                await asyncio.sleep(0.01)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert tries == {"call-1": 2}

    run(main)


def test_resends_begin_when_the_process_that_had_the_folder_open_is_gone(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("wherry.service.lost.resending.FAULT_PAUSE_S", 0.01)
    done = asyncio.Event()

    async def send(call):
        done.set()

    async def main():
        async with LostLog(tmp_path / "lost") as other, LostLog(tmp_path / "lost") as log:
            await other.keep(lost_call(resend=True))
            running = asyncio.create_task(Resending(log, send, lambda service: True).run())
            while "cannot be sent again" not in caplog.text:  # noqa: ASYNC110  nothing signals it
                await asyncio.sleep(0.01)
            await other.close()
            await done.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run(main)


@pytest.mark.rows("P16")
def test_a_call_is_sent_again_if_that_is_asked_for_later(tmp_path):
    done = asyncio.Event()

    async def send(call):
        done.set()

    async def main():
        async with LostLog(tmp_path / "lost") as log:
            running = asyncio.create_task(Resending(log, send, lambda service: True).run())
            await log.keep(lost_call())
            (call,) = await log.get("call-1")
            await log.ask_for_resend(call)
            await done.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            with pytest.raises(NotFound):
                await log.ask_for_resend(lost_call("never kept"))

    run(main)
