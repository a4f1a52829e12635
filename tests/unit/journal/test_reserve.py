"""Space set aside for a checkpoint: as much as one takes, and not for ever what the largest one took."""

from random import Random

from wherry.journal.disk.reserve import PATH, SpaceReserve
from wherry.sim.world.disk import DiskFaults, SimDisk
from wherry.sim.world.loop import run

LEAST = 8 << 10


def test_the_reserve_grows_and_shrinks_with_what_is_wanted():
    async def main():
        disk = SimDisk(Random(1), DiskFaults(stalls=0.0), capacity_bytes=1 << 20)
        files = disk.open()
        files.lock()

        async def size() -> int:
            return (await files.list())[PATH]

        reserve = SpaceReserve(files, LEAST)
        for wanted, there in [(None, LEAST), (256 << 10, 256 << 10), (200 << 10, 256 << 10), (None, 256 << 10)]:
            await reserve.keep(wanted)
            assert await size() == there
        after = SpaceReserve(files, LEAST)
        await after.keep()
        assert await size() == 256 << 10  # the size of the next checkpoint is not known yet
        assert await after.spare_bytes() == (256 << 10) - 2 * LEAST
        free = disk.free_bytes()
        await after.keep(20 << 10)
        assert await size() == 20 << 10
        assert disk.free_bytes() == free + (236 << 10)
        await after.keep(0)
        assert await size() == LEAST
        files.unlock()

    run(main())
