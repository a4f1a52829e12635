"""Three nodes and one topic that flows: what is published at A reaches clients at A, B and C, each once.

$ python examples/mesh_of_three.py
client 1 published 3 messages at a: flow
client 2 at a got: tea, bread, salt
client 4 at b got: tea, bread, salt
client 5 at c got: tea, bread, salt
node c is stopped; client 3 published at b all the same: flow
node c is back, and client 5 got: sugar
"""

import asyncio
import socket
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import wherry


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


async def serve(home: Path, name: str, urls: dict[str, str]) -> asyncio.subprocess.Process:
    """Start a node that knows the addresses of the other two."""
    peers = [url for other, url in urls.items() if other != name]
    config = home / f"{name}.toml"
    off = "".join(f"[{wire}]\nenabled = false\n" for wire in ("flight", "amqp", "stomp"))
    config.write_text(f'[mesh]\nnode = "{name}"\npeers = {peers}\n{off}')
    port = urls[name].rpartition(":")[2]
    words = ("-m", "wherry.node", "--config", str(config), "--port", port, "--data", str(home / name))
    node = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert node.stdout is not None
    while b"Ctrl-C" not in await node.stdout.readline():
        pass
    return node


async def stop(node: asyncio.subprocess.Process) -> None:
    if node.returncode is None:
        node.terminate()
    await node.wait()


async def get(client: wherry.Client, name: str, count: int) -> str:
    """Return the next messages of a subscriber, acked."""
    got: list[str] = []
    while len(got) < count:
        batch = await client.pull("foo", name, wait_ms=1_000)
        got += [payload.decode() for payload in batch.payloads()]
        if len(batch):
            await batch.ack()
    return ", ".join(got)


async def connected(clients: dict[str, wherry.Client]) -> None:
    """Wait until each node has subscribed at the other two."""
    while sum([len((await client.mesh())["backlogs"]) for client in clients.values()]) < 6:  # noqa: ASYNC110
        await asyncio.sleep(0.1)


async def main() -> None:
    urls = {name: f"http://127.0.0.1:{port}" for name, port in zip("abc", free_ports(3), strict=True)}
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        nodes, clients = {}, {}
        for name, url in urls.items():
            nodes[name] = await serve(home, name, urls)
            stack.push_async_callback(stop, nodes[name])
            clients[name] = await stack.enter_async_context(wherry.connect(url))
            await clients[name].create_topic("foo", mesh="flow")
        for node, client in (("a", "client 2"), ("b", "client 4"), ("c", "client 5")):
            await clients[node].subscribe("foo", client)
        await connected(clients)

        done = await clients["a"].publish("foo", ["tea", "bread", "salt"])
        print(f"client 1 published {len(done)} messages at a: {done.mesh}")
        for node, client in (("a", "client 2"), ("b", "client 4"), ("c", "client 5")):
            print(f"{client} at {node} got: {await get(clients[node], client, 3)}")

        await stop(nodes["c"])
        done = await clients["b"].publish("foo", ["sugar"])
        print(f"node c is stopped; client 3 published at b all the same: {done.mesh}")
        nodes["c"] = await serve(home, "c", urls)
        stack.push_async_callback(stop, nodes["c"])
        print(f"node c is back, and client 5 got: {await get(clients['c'], 'client 5', 1)}")


if __name__ == "__main__":
    asyncio.run(main())
