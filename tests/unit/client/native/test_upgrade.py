"""What the client makes of an answer to the upgrade, however it is cut."""

from __future__ import annotations

import asyncio

import pytest

from wherry.client.native.upgrade import ANSWER_BYTES_MAX, UpgradeAnswer

SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: Wherry/1\r\n\r\n"
REFUSED = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 3\r\n"
    b'Content-Length: 15\r\n\r\n{"code":"busy"}'
)


def answer_to(data: bytes, step: int, *, lost: bool = False):
    """Feed bytes, and return the answer in them: None if there is none, False if it is not whole."""

    async def main():
        asking = UpgradeAnswer()
        for at in range(0, len(data), step):
            asking.data_received(data[at : at + step])
        if lost:
            asking.connection_lost(None)
        return asking.answer.result() if asking.answer.done() else False

    return asyncio.run(main())


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_an_answer_is_read_however_it_is_cut(step):
    assert answer_to(SWITCHED, step).status == 101
    refused = answer_to(REFUSED, step)
    assert (refused.status, refused.retry_after_s, refused.body) == (503, 3.0, b'{"code":"busy"}')
    assert answer_to(REFUSED[:-1], step) is False
    assert answer_to(REFUSED[:-1], step, lost=True).status == 503


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_frames_behind_a_101_are_kept_until_the_session_reads_them(step):
    assert answer_to(SWITCHED + b"frames, and more", step).body == b"frames, and more"
    assert answer_to(REFUSED + b"more", 1).body == b'{"code":"busy"}'


def test_what_arrives_after_the_caller_gave_up_is_ignored():
    async def main():
        asking = UpgradeAnswer()
        asking.data_received(SWITCHED[:20])
        asking.answer.cancel()
        asking.data_received(SWITCHED[20:])
        asking.connection_lost(None)
        assert asking.answer.cancelled()

    asyncio.run(main())


@pytest.mark.parametrize(
    "data",
    [
        b"\x15\x03\x01",
        b"SSH-2.0-x\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        SWITCHED.replace(b"Wherry/1", b"websocket"),
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * ANSWER_BYTES_MAX,
    ],
    ids=["tls", "ssh", "http2", "no-status", "odd-status", "another-protocol", "endless"],
)
def test_what_is_no_answer_is_none(data):
    assert answer_to(data, 10_000) is None
    assert answer_to(b"HTTP/1.1 20", 3, lost=True) is None
