"""Bit rot: after a clean stop one bit on the disk is flipped. The broker must notice, or nothing may be different.

The bit may be where nothing is stored (the unused rest of a journal file); then the broker starts, and every message
must be unchanged. Else it refuses to start, or refuses to deliver the damaged block.
"""

from __future__ import annotations

from random import Random

from wherry.broker.broker import Broker
from wherry.model.errors import Corrupt, WherryError
from wherry.sim.world.errors import BootRefused
from wherry.sim.world.world import World

MESSAGES = 40


async def rot(world: World, random: Random) -> None:
    """Publish some messages, stop the broker, flip a bit, start it, and compare."""
    for topic in world.plan.topics:
        bodies = [f"rot {topic.name} {number}".encode() * 20 for number in range(MESSAGES)]
        for body in bodies:
            try:
                await world.call(lambda broker, t=topic.name, b=body: broker.publish(t, [b]))  # type: ignore[misc]
            except WherryError as fault:
                world.note("rot", str(fault))
    before = await world.call(_everything)
    await world.close()
    path, byte = await _flip(world, random)
    try:
        await world.boot()
        after = await world.call(_everything)
    except (BootRefused, Corrupt) as fault:
        world.note("rot found", str(fault))
        return
    left, found = world.history.lives[-2].left, world.digest()
    if after != before or (left is not None and left != found):
        world.history.faults.append(f"rot: a bit flipped in {path} at byte {byte} went unnoticed")


async def _flip(world: World, random: Random) -> tuple[str, int]:
    files = world.disk.open()
    files.lock()
    sizes = await files.list()
    files.unlock()
    path = random.choice([name for name in sizes if world.disk.durable(name)])
    content = world.disk.durable(path) or b""
    used = len(content.rstrip(b"\0")) or len(content)
    byte = random.randrange(used)
    world.disk.flip_bit(path, byte, random.randrange(8))
    world.note("rot", path, byte)
    return path, byte


async def _everything(broker: Broker) -> list[tuple[str, int, int, bytes]]:
    """Return every message of the log."""
    found = []
    for topic in broker.topics():
        for partition in range(topic.partitions):
            batch = await broker.browse(topic.name, partition=partition, limit=100_000)
            rows = zip(batch.column("offset").to_pylist(), batch.column("payload").to_pylist(), strict=True)
            found += [(topic.name, partition, offset, payload) for offset, payload in rows]
    return found
