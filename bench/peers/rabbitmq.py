"""RabbitMQ with a quorum queue: a confirm means that the message is on disk."""

from __future__ import annotations

import os
import socket
from typing import Any

from bench.peers.peer import Peer, age_ms, free_port, message, paced

QUEUE = "bench"
PREFETCH = 500
IN_FLIGHT = 500


class RabbitMq(Peer):
    """basic.publish with confirms in flight, basic.consume with acks of multiples, through pika."""

    name = "RabbitMQ quorum queue, pika"
    promise = "publisher confirms"
    programs = ("rabbitmq-server",)
    clients = ("pika",)
    plugins = ""

    def settings(self) -> str:
        """Return more lines of its configuration."""
        return ""

    def start(self) -> None:
        self.folder.chmod(0o777)
        conf = self.folder / "rabbitmq.conf"
        conf.write_text(f"listeners.tcp.1 = 127.0.0.1:{self.port}\nloopback_users = none\n{self.settings()}")
        (self.folder / "plugins").write_text(f"[{self.plugins}].\n")
        env = {
            **os.environ,
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": f"bench{self.port}@{socket.gethostname()}",
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(conf.with_suffix("")),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
        }
        # The wrapper of the distribution would change to a user of its own; the program behind it keeps its user.
        program = "/usr/lib/rabbitmq/bin/rabbitmq-server"
        self.run(program if os.access(program, os.X_OK) else "rabbitmq-server", env=env, start_new_session=True)
        self.wait_until(self._serves, 120)

    def _serves(self) -> bool:
        import pika

        if not self.accepts():
            return False
        try:
            with pika.BlockingConnection(parameters(self.port)) as connection:
                channel = connection.channel()
                channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
        except (pika.exceptions.AMQPError, OSError):
            return False
        return True

    def stop(self) -> None:
        """Stop the process group: the shell that started the server, and the server's machine in it."""
        if self.server is not None and self.server.poll() is None:
            os.killpg(self.server.pid, 15)
        super().stop()

    @staticmethod
    def produce(port: int, count: int, rate: int | None) -> None:
        import pika

        confirmed = 0
        sent = 0

        def on_open(connection: Any) -> None:
            connection.channel(on_open_callback=on_channel)

        def on_channel(channel: Any) -> None:
            channel.confirm_delivery(lambda frame: on_confirm(channel, frame), callback=lambda _: send(channel))

        def send(channel: Any) -> None:
            nonlocal sent
            limit = IN_FLIGHT if rate is None else 1
            while sent < count and sent - confirmed < limit:
                next(pace)
                channel.basic_publish("", QUEUE, message(), properties)
                sent += 1

        def on_confirm(channel: Any, frame: Any) -> None:
            nonlocal confirmed
            tag = frame.method.delivery_tag
            confirmed = max(confirmed, tag)
            if confirmed == count:
                channel.connection.close()
            else:
                send(channel)

        pace = paced(count, rate)
        properties = pika.BasicProperties(delivery_mode=2)
        connection = pika.SelectConnection(parameters(port), on_open_callback=on_open)
        connection.add_on_close_callback(lambda *_: connection.ioloop.stop())
        connection.ioloop.start()

    @staticmethod
    def consume(port: int, count: int) -> list[float]:
        return consumed(port, QUEUE, count)


def consumed(port: int, queue: str, count: int) -> list[float]:
    """Consume from a queue, and ack multiples; return the ages of the messages."""
    import pika

    ages: list[float] = []
    with pika.BlockingConnection(parameters(port)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        unacked = 0
        for method, _, body in channel.consume(queue, inactivity_timeout=0.005):
            if method is not None:
                ages.append(age_ms(body))
                unacked += 1
                last = method.delivery_tag
            if unacked and (unacked >= PREFETCH // 2 or method is None or len(ages) == count):
                channel.basic_ack(last, multiple=True)
                unacked = 0
            if len(ages) == count:
                break
    return ages


def parameters(port: int) -> Any:
    """Return how pika connects: without heart-beats, since a side that is busy must not be taken for dead."""
    import pika

    return pika.ConnectionParameters("127.0.0.1", port, heartbeat=0, socket_timeout=30)
