"""The URL of a callback is checked once, whichever way a publish comes in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.behaviour.world import VirtualClock
from wherry.broker.broker import Broker
from wherry.broker.opening import start
from wherry.journal.memory import MemoryEngine
from wherry.model.calls.publish import PublishOptions
from wherry.model.catalog.webhook import URL_CHARS_MAX
from wherry.model.errors import InvalidInput, WherryError

Publish = Callable[[Broker, PublishOptions], Awaitable[object]]


async def submitted(broker: Broker, options: PublishOptions) -> object:
    _, answer = await broker.submit("t", [b"a"], options)
    return answer


async def submitted_at_once(broker: Broker, options: PublishOptions) -> object:
    answered = broker.submit_at_once("t", [b"a"], options)
    return None if answered is None else answered[1]


async def behind_another(broker: Broker, options: PublishOptions) -> object:
    """Publish in the turn in which messages of another call are gathered."""
    other = asyncio.create_task(broker.publish("t", [b"b"]))
    await asyncio.sleep(0)
    try:
        return await broker.publish("t", [b"a"], options)
    finally:
        await other


NO_URLS = ["", "ftp://x", "http://a b", "http://x\n", 7, "http://x/" + "x" * (URL_CHARS_MAX - 8)]

WAYS: dict[str, Publish] = {
    "publish": lambda broker, options: broker.publish("t", [b"a"], options),
    "submit": submitted,
    "submit at once": submitted_at_once,
    "gathered": behind_another,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("url", "is_taken"), [("http://a.example/x", True), *((url, False) for url in NO_URLS)])
def test_the_url_of_a_callback_is_checked_once(way: str, url: str, is_taken: bool):
    async def main() -> None:
        broker = await start(MemoryEngine(), None, VirtualClock())
        await broker.create_topic("t")
        checked: list[str] = []
        check = broker.check_url

        def counting(field: str, value: str) -> object:
            checked.append(value)
            return check(field, value)

        broker.check_url = counting
        try:
            answer = await WAYS[way](broker, PublishOptions(callback=url))
        except WherryError as fault:
            answer = fault
        assert checked == [url]
        assert isinstance(answer, InvalidInput) is not is_taken
        await broker.close()

    asyncio.run(main())


def test_transient_messages_have_no_callback():
    async def main() -> None:
        broker = await start(MemoryEngine(), None, VirtualClock())
        await broker.create_topic("t")
        with pytest.raises(InvalidInput, match="none for transient messages"):
            await broker.publish("t", [b"a"], PublishOptions(callback="http://a.example", persistent=False))
        await broker.close()

    asyncio.run(main())
