"""The blocks of docs/webhooks.md run as printed, and agree with the broker."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
import time
from pathlib import Path

import wherry
from tests.integration.hooks import SECRET, serving
from wherry.security.signing import sign

PAGE = (Path(__file__).parents[2] / "docs/webhooks.md").read_text(encoding="utf-8")
(SUBSCRIBE,) = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
RECEIVER, VERIFY = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_receiver_takes_what_the_broker_sends_and_nothing_else(tmp_path):
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        receiver = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-c", RECEIVER.replace("8080", str(port))),
            env={**os.environ, "WEBHOOK_SECRET": SECRET},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(30), serving(tmp_path) as (_, client):
                await client.create_topic("jobs")
                url, retry = f"http://127.0.0.1:{port}/", wherry.Retry(attempts=2, first_ms=100, cap_ms=100)
                for name, secret in (("good", SECRET), ("bad", "not the secret it knows")):
                    webhook = wherry.Webhook(url=url, secret=secret, remove_after=100)
                    await client.subscribe(
                        "jobs", name, webhook=webhook, retry=retry if name == "bad" else wherry.Retry()
                    )
                await client.publish("jobs", ["hello"])
                assert receiver.stdout is not None
                assert await receiver.stdout.readline() == b"0-0 hello\n"
        finally:
            receiver.kill()
            await receiver.wait()

    asyncio.run(main())


def test_the_shell_subscribes(tmp_path):
    async def main() -> None:
        async with asyncio.timeout(30), serving(tmp_path) as (node, client):
            block = SUBSCRIBE.replace("http://127.0.0.1:7070", node.url).replace("curl", "curl -fsS")
            shell = await asyncio.create_subprocess_exec("sh", "-euc", block, stdout=asyncio.subprocess.DEVNULL)
            assert await shell.wait() == 0
            webhook = (await client.subscription("jobs", "shop")).webhook
            assert webhook is not None
            assert (webhook.url, webhook.batch) == ("https://shop.example/hook", 100)

    asyncio.run(main())


def test_the_lines_without_wherry_do_the_same():
    names: dict[str, object] = {}
    exec(VERIFY, names)
    verify = names["verify"]
    assert callable(verify)
    now_s = int(time.time())
    for stamp, body, is_good in ((now_s, b"body", True), (now_s, b"other", False), (now_s - 301, b"body", False)):
        assert verify(SECRET, sign(SECRET, b"body", stamp), body) is is_good
