"""What identifies a client: which token was refused, and how often a provider is asked when all of them are."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from itertools import count

import pytest

import wherry
from wherry.client.link.address import Address
from wherry.client.link.credential import Credential


class Turning:
    """A source whose token the test changes, and what was rejected."""

    def __init__(self) -> None:
        self.now, self.rejected = "first", list[str]()

    async def token(self) -> str:
        return self.now

    def reject(self, token: str) -> None:
        self.rejected.append(token)

    def renew_in_s(self) -> float:
        return 1.0


def test_a_refusal_is_of_the_token_that_was_sent_not_of_the_last_that_another_call_took():
    async def main() -> None:
        source = Turning()
        credential = Credential(Address.parse("http://127.0.0.1:1"), source)
        lines, token = await credential.lines()
        source.now = "second"
        await credential.lines()  # of another call, while the first waits for its answer
        other = await credential.other_lines(token)
        assert "first" in lines
        assert "second" in other
        assert source.rejected == ["first"]
        assert await credential.other_lines("second") == "", "there is no other"

    asyncio.run(main())


async def refusing(asked: Counter[str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Be a provider, and a broker that refuses every token."""
    port = writer.get_extra_info("sockname")[1]
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    path = head.split()[1]
    status, issuer = 200, f"http://127.0.0.1:{port}/r"
    answer = {"issuer": issuer, "jwks_uri": f"{issuer}/keys", "token_endpoint": f"{issuer}/token"}
    if path == "/r/token":
        asked["token"] += 1
        answer = {"access_token": f"t{asked['token']}", "token_type": "Bearer", "expires_in": 3_600}  # type: ignore[dict-item]
    elif not path.startswith("/r/"):
        asked["broker"] += 1
        status, answer = 401, {"code": "unauthorized", "detail": "no"}
    body = json.dumps(answer).encode()
    kind = "application/json" if status == 200 else "application/problem+json"
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(body)}", "Connection: close"]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await writer.drain()
    writer.close()


def test_a_broker_that_refuses_every_token_makes_no_storm_at_the_provider():
    async def main() -> None:
        asked, now = Counter[str](), [1_000.0]
        server = await asyncio.start_server(lambda reader, writer: refusing(asked, reader, writer), "127.0.0.1", 0)
        base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        source = wherry.ClientCredentials(f"{base}/r", "shop", "secret", clock=lambda: now[0])
        fetched = []
        async with wherry.connect(base, key=source, wire="http") as client:
            for _ in range(120):
                try:
                    await client.topics()
                except wherry.WherryError:
                    fetched.append(asked["token"])
                now[0] += 1.0
        assert len(fetched) == 120, "each call is refused"
        assert asked["broker"] >= 120
        assert fetched[0] == 1, "a token that was just fetched is kept"
        assert asked["token"] == 6, "after 2, 4, 8, 16, 32 seconds"
        server.close()

    asyncio.run(main())


def test_a_token_that_was_good_for_long_is_replaced_at_once():
    async def main() -> None:
        asked, now = Counter[str](), [1_000.0]
        server = await asyncio.start_server(lambda reader, writer: refusing(asked, reader, writer), "127.0.0.1", 0)
        base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        source = wherry.ClientCredentials(f"{base}/r", "shop", "secret", clock=lambda: now[0])
        for number in range(1, 4):
            assert await source.token() == f"t{number}"
            now[0] += 200
            source.reject("another")
            source.reject(f"t{number}")
        server.close()

    asyncio.run(main())


def test_a_function_is_asked_for_another_token_less_and_less_often_while_they_are_refused():
    async def main() -> None:
        now, asked = [1_000.0], count()
        credential = Credential(Address.parse("http://127.0.0.1:1"), lambda: f"t{next(asked)}", lambda: now[0])
        others: list[int] = []
        for second in range(240):
            now[0] = 1_000.0 + second
            others += [second for _ in range(5) if await credential.other_lines("refused")]
        assert others == [0, 2, 6, 14, 30, 62, 122, 182]
        now[0] = 1_000.0 + 182 + 200
        assert await credential.other_lines("refused")
        now[0] += 2.0
        assert await credential.other_lines("refused"), "after a good while the pauses are short again"

    asyncio.run(main())


def test_a_broker_that_refuses_every_token_of_a_function_asks_for_a_second_one_only_after_a_pause():
    async def main() -> None:
        asked, given = Counter[str](), count(1)
        server = await asyncio.start_server(lambda reader, writer: refusing(asked, reader, writer), "127.0.0.1", 0)
        base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with wherry.connect(base, key=lambda: f"t{next(given)}", wire="http") as client:
            client_calls = 0
            for _ in range(20):
                with pytest.raises(wherry.WherryError):
                    await client.topics()
                client_calls += 1
        # Each call brings a token; a second try comes with the first refusal alone, or with few of them.
        assert client_calls < asked["broker"] < client_calls + 5
        server.close()
        await server.wait_closed()

    asyncio.run(main())
