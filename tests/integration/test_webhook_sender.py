"""Outgoing calls against servers that misbehave: each ends in time, with a verdict, and holds nothing."""

import asyncio
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.receiver import Call, Receiver
from wherry.node.webhooks.sender import BOUNDS, Unreached, WebhookSender
from wherry.node.webhooks.targets import Resolver, Target, Targets

CERTIFICATES = Path(__file__).parents[1] / "unit/security/certificates"


def named(*answers: list[str]) -> tuple[Resolver, list[str]]:
    """Make a resolver with these answers, one after the other, and a list of the names that it was asked for."""
    asked: list[str] = []
    left = list(answers)

    async def resolver(host: str, port: int) -> list[str]:
        asked.append(host)
        return left.pop(0) if len(left) > 1 else left[0]

    return resolver, asked


def post(answer: object, *, times: int = 1, timeout_s: float = 5.0) -> tuple[list[int | str], Receiver]:
    """Call a server that answers so; statuses, or why there was none."""
    replies: list[int | str] = []

    async def main() -> Receiver:
        sender = WebhookSender(Targets(allow_private=True))
        async with asyncio.timeout(20), Receiver(lambda call: answer) as receiver:  # type: ignore[arg-type,return-value]
            for _ in range(times):
                try:
                    came = await sender.post(Target.of(receiver.url), {"A": "b"}, b"{}", timeout_s)
                    replies.append(came.status)
                except Unreached as fault:
                    replies.append(str(fault).replace(str(receiver.port), "port"))
            sender.close()
            await asyncio.sleep(0)
            return receiver

    return replies, asyncio.run(main())


def test_a_call_and_its_answer():
    replies, receiver = post(200, times=3)
    assert replies == [200] * 3
    assert receiver.connections == 1
    assert receiver.calls[0].body == b"{}"
    headers = {"host": f"127.0.0.1:{receiver.port}", "user-agent": "wherry", "content-length": "2", "a": "b"}
    assert receiver.calls[0].headers == headers


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", 200),
        (b"HTTP/1.0 204 OK\r\n\r\n", 204),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", 200),
        (b"HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n", 404),
        (b"HTTP/1.1 200 X\r\nContent-Length: 0\r\n\r\nHTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n", 200),
        (b"HTTP/1.1 500 X\r\nContent-Length: 999\r\n\r\n\x1b[31mline\nmore", 500),
    ],
)
def test_answers_of_every_shape(answer, reply):
    replies, receiver = post(answer, times=2)
    assert replies == [reply] * 2
    assert receiver.connections == 2  # a connection that is closed, or has bytes behind its answer, is not used again


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "closed the connection without an answer"),
        (b"HTTP/1.1 200", "closed the connection in the middle of an answer"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "sent something other than HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 100_000, "sent a head of more than"),
    ],
)
def test_a_reply_that_is_not_valid_is_reported_with_the_reason(answer, why):
    (reply,), _ = post(answer)
    assert isinstance(reply, str)
    assert why in reply
    assert reply.startswith("127.0.0.1:port ")


def test_an_endless_answer_is_cut_off():
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n"
    (reply,), _ = post(head + bytes(4 * BOUNDS.answer_bytes))
    assert reply == 200


def test_a_host_that_does_not_answer_in_time_is_left():
    async def never() -> int:
        await asyncio.sleep(10)
        return 200

    (reply,), _ = post(never(), timeout_s=0.2)
    assert reply == "127.0.0.1:port timed out after 0.2 s"


def test_of_an_answer_that_drips_the_status_counts():
    async def main() -> None:
        async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            while not writer.is_closing():
                writer.write(b".")
                await asyncio.sleep(0.02)

        async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            target = Target.of(f"http://127.0.0.1:{port}/")
            assert (await WebhookSender(Targets(allow_private=True)).post(target, {}, b"", 0.3)).status == 200
            await asyncio.sleep(0.05)

    asyncio.run(main())


def test_a_connection_that_was_closed_meanwhile_is_made_anew():
    async def main() -> None:
        sender = WebhookSender(Targets(allow_private=True))
        async with Receiver() as receiver:
            target = Target.of(receiver.url)
            await sender.post(target, {}, b"1", 1.0)
        async with Receiver(port=receiver.port) as receiver:
            assert (await sender.post(target, {}, b"2", 1.0)).status == 200
            assert [call.body for call in receiver.calls] == [b"2"]
        with pytest.raises(Unreached, match="refused"):
            await sender.post(target, {}, b"3", 1.0)
        sender.close()

    asyncio.run(main())


def test_the_address_that_was_checked_is_the_one_that_is_called():
    """Rebind the name: the name server has another answer the second time, and is not asked a second time."""

    async def main() -> None:
        async with Receiver() as receiver:
            resolver, asked = named(["127.0.0.1"], ["10.0.0.1"])
            sender = WebhookSender(Targets(["127.0.0.1"], resolver=resolver))
            target = Target.of(f"http://rebinds.example:{receiver.port}/")
            assert (await sender.post(target, {}, b"", 1.0)).status == 200
            assert asked == ["rebinds.example"]
            assert receiver.calls[0].headers["host"] == f"rebinds.example:{receiver.port}"
            sender.close()
            with pytest.raises(Unreached, match=r"rebinds\.example is a private address"):
                await sender.post(target, {}, b"", 1.0)

    asyncio.run(main())


def test_another_address_is_tried_if_the_first_does_not_answer():
    async def main() -> None:
        async with Receiver() as receiver:
            resolver, _ = named(["127.0.0.2", "127.0.0.1"])
            sender = WebhookSender(Targets(allow_private=True, resolver=resolver))
            assert (await sender.post(Target.of(f"http://a:{receiver.port}/"), {}, b"", 1.0)).status == 200
            sender.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("trusts", "host", "why"),
    [(True, "localhost", None), (True, "other.example", "not trusted"), (False, "localhost", "not trusted")],
)
def test_tls_is_verified_against_the_name(trusts, host, why):
    async def main() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATES / "first.pem", CERTIFICATES / "first.key")
        receiver = Receiver()
        receiver._writers = set()
        async with await asyncio.start_server(receiver._serve, "127.0.0.1", 0, ssl=context) as server:
            port = server.sockets[0].getsockname()[1]
            tls = ssl.create_default_context(cafile=CERTIFICATES / "authority.pem" if trusts else None)
            sender = WebhookSender(Targets(allow_private=True, resolver=named(["127.0.0.1"])[0]), tls=tls)
            call = sender.post(Target.of(f"https://{host}:{port}/"), {}, b"", 5.0)
            if why is None:
                assert (await call).status == 200
            else:
                with pytest.raises(Unreached, match=why):
                    await call
                assert receiver.calls == []
            sender.close()
            await asyncio.sleep(0.05)

    asyncio.run(main())


@pytest.mark.parametrize("host", ["a..b", "x" * 70, ".", "a.b..", "xn--" + "9" * 59])
def test_a_name_that_is_none_cannot_be_reached(host):
    async def main() -> None:
        for secure in (False, True):
            with pytest.raises(Unreached):
                await WebhookSender(Targets(allow_private=True)).post(Target(host, 9, secure, "/"), {}, b"", 5.0)

    asyncio.run(main())


def test_a_name_server_that_does_not_answer_holds_up_no_exit():
    program = """
import asyncio, socket, time
from wherry.node.webhooks.sender import Unreached, WebhookSender
from wherry.node.webhooks.targets import Target, Targets

socket.getaddrinfo = lambda *_, **__: time.sleep(60)

async def main():
    try:
        await WebhookSender(Targets()).post(Target.of("http://a.example/"), {}, b"", 0.1)
    except Unreached as fault:
        print(fault)

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("a.example timed out after 0.1 s\n", "")


def test_connections_that_wait_are_bounded():
    async def main() -> None:
        sender = WebhookSender(Targets(allow_private=True), calls=2)
        receivers = [Receiver() for _ in range(5)]
        for receiver in receivers:
            await receiver.__aenter__()
            await sender.post(Target.of(receiver.url), {}, b"", 1.0)
        assert len(sender._idle) == 2
        sender.close()
        for receiver in receivers:
            await receiver.__aexit__()

    asyncio.run(main())


def test_a_bound_of_connections_that_is_reached_during_a_call_closes_the_oldest():
    async def main() -> None:
        sender = WebhookSender(Targets(allow_private=True), calls=1)
        came, go_on = asyncio.Event(), asyncio.Event()

        async def late() -> int:
            came.set()
            await go_on.wait()
            return 200

        async with (
            Receiver(lambda call: late() if call.body else 200) as slow,
            Receiver() as first,
            Receiver() as second,
        ):
            await sender.post(Target.of(slow.url), {}, b"", 5.0)
            waits = asyncio.ensure_future(sender.post(Target.of(slow.url), {}, b"late", 5.0))
            await came.wait()
            for receiver in (first, second):
                assert (await sender.post(Target.of(receiver.url), {}, b"", 5.0)).status == 200
            go_on.set()
            assert (await waits).status == 200
            assert len(sender._idle) == 1
            sender.close()

    asyncio.run(main())


def test_the_receiver_itself_distinguishes_calls():
    assert Call("/", {}, b'{"messages": [{"payload": "a"}]}', 1).payloads == ["a"]
