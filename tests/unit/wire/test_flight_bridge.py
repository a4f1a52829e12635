"""The way from threads of Flight to the loop."""

from __future__ import annotations

import asyncio
import time

from wherry.wire.flight.bridge import Bridge


def test_a_reader_of_history_waits_for_readers_that_are_served():
    done: list[str] = []

    def serve() -> None:
        time.sleep(0.02)  # a busy turn of the loop; the reader asks for its own turn meanwhile
        done.append("served")

    async def main() -> None:
        bridge = Bridge(asyncio.get_running_loop())

        def read() -> None:
            bridge.give_way()
            done.append("read")

        reading = asyncio.create_task(asyncio.to_thread(read))
        await asyncio.sleep(0)
        serve()
        await reading

    asyncio.run(main())
    assert done == ["served", "read"]


def test_a_reader_continues_when_the_loop_is_closed():
    loop = asyncio.new_event_loop()
    bridge = Bridge(loop)
    loop.close()
    bridge.give_way()
