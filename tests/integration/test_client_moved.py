"""A topic that is served elsewhere: nothing of the request was done, and the client names the address.

No server of this version sends MOVED, so a node is made to, with the golden bytes.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import wherry
from tests.golden.wire_v1 import FILE
from tests.integration.worlds import in_process
from wherry.wire.native.codec.frames import HEADER, Kind
from wherry.wire.native.session import Session

GOLDEN = {name: bytes.fromhex(text) for name, text in (line.split() for line in FILE.read_text().splitlines())}
PATIENCE_S = 30.0


def moved(name: str, number: int) -> bytes:
    """Return a golden MOVED, in answer to another number."""
    data = GOLDEN[name]
    return data[: HEADER.size - 4] + number.to_bytes(4, "little") + data[HEADER.size :]


def refuse(session: Session, flags: int, number: int, body: bytes) -> None:
    session.send(moved("moved", number))


def test_a_request_about_a_topic_that_moved_raises_and_names_the_address(tmp_path: Path, monkeypatch):
    async def main() -> None:
        async with in_process(tmp_path) as node, wherry.connect(node.url, wire="native") as client:
            await client.create_topic("jobs")
            before = node.native_sessions.frames.copy()
            with monkeypatch.context() as planted:
                for name in ("_publish", "_call"):
                    planted.setattr(Session, name, refuse)
                async with wherry.connect(node.url, wire="native") as other:
                    for call in (other.publish("jobs", b"a"), other.publish("jobs", b"b"), other.stats("jobs")):
                        with pytest.raises(
                            wherry.Unavailable, match=r"'jobs' is served at https://b\.example\.org:7070"
                        ):
                            await call
            sent = node.native_sessions.frames - before
            assert sent[Kind.PUBLISH] == 2, "a publish is not repeated by itself"
            assert sent[Kind.HELLO] == 1, "the connection is kept: only the topic moved"
            assert (await client.publish("jobs", b"c")).ids() == ["0-0"]

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_a_consumer_of_a_topic_that_moved_asks_again_until_the_topic_is_back(tmp_path: Path, monkeypatch):
    asked: list[int] = []
    subscribe = Session._subscribe

    def refuse_some(session: Session, flags: int, number: int, body: bytes) -> None:
        asked.append(number)
        if len(asked) < 4:
            session.send(moved("moved-of-a-stream", number))
        else:
            subscribe(session, flags, number, body)

    monkeypatch.setattr(Session, "_subscribe", refuse_some)

    async def main() -> None:
        async with in_process(tmp_path) as node, wherry.connect(node.url, wire="native") as client:
            await client.create_topic("jobs")
            await client.subscribe("jobs", "workers")
            await client.publish("jobs", b"a")
            async with client.consumer("jobs", "workers") as consumer:
                message = await anext(aiter(consumer))
                assert (message.payload, message.attempt) == (b"a", 1)
                await message.ack()
            assert len(asked) == 4
            assert node.native_sessions.frames[Kind.HELLO] == 1

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_a_producer_of_a_topic_that_moved_sends_the_same_again_until_the_topic_is_back(tmp_path: Path, monkeypatch):
    refused: list[bytes] = []
    publish = Session._publish

    def refuse_some(session: Session, flags: int, number: int, body: bytes) -> None:
        if len(refused) < 3:
            refused.append(body)
            session.send(moved("moved", number))
        else:
            publish(session, flags, number, body)

    monkeypatch.setattr(Session, "_publish", refuse_some)

    async def main() -> None:
        async with in_process(tmp_path) as node, wherry.connect(node.url, wire="native") as client:
            await client.create_topic("jobs")
            async with client.producer("jobs", name="p") as producer:
                await (await producer.publish(b"a")).stored()
            assert len(set(refused)) == 1, "under the same number"
            assert (await client.stats("jobs")).counters["published"] == 1

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
