"""Redis Streams with `appendfsync always`."""

from __future__ import annotations

from bench.peers.peer import Peer, age_ms, message, paced

STREAM, GROUP = "bench", "workers"
PIPELINE = 500


class Redis(Peer):
    """XADD in pipelines, XREADGROUP and XACK."""

    name = "Redis Streams"
    promise = "appendfsync always"
    programs = ("redis-server",)
    clients = ("redis",)

    def start(self) -> None:
        self.run(
            *("redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)),
            *("--appendonly", "yes", "--appendfsync", "always", "--save", ""),
            *("--auto-aof-rewrite-percentage", "0"),  # a rewrite would fork in the middle of a run
        )
        self.wait_until(self.accepts)
        import redis

        with redis.Redis(port=self.port) as client:
            client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)

    @staticmethod
    def produce(port: int, count: int, rate: int | None) -> None:
        import redis

        with redis.Redis(port=port) as client:
            if rate is not None:
                for _ in paced(count, rate):
                    client.xadd(STREAM, {"m": message()})
                return
            for base in range(0, count, PIPELINE):
                pipeline = client.pipeline(transaction=False)
                for _ in range(min(PIPELINE, count - base)):
                    pipeline.xadd(STREAM, {"m": message()})
                pipeline.execute()

    @staticmethod
    def consume(port: int, count: int) -> list[float]:
        import redis

        ages: list[float] = []
        with redis.Redis(port=port) as client:
            while count > 0:
                found = client.xreadgroup(GROUP, "one", {STREAM: ">"}, count=PIPELINE, block=10_000)
                for _, entries in found:
                    ages += [age_ms(fields[b"m"]) for _, fields in entries]
                    client.xack(STREAM, GROUP, *(number for number, _ in entries))
                    count -= len(entries)
        return ages
