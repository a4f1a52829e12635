"""What people would use instead, behind one interface: start a server, produce and consume through its Python client.

Each runs with the promise that Wherry gives: a confirm means that the message is on disk.
"""

from __future__ import annotations

from bench.peers.beanstalkd import Beanstalkd
from bench.peers.jetstream import JetStream
from bench.peers.peer import Peer
from bench.peers.rabbitmq import RabbitMq
from bench.peers.redis import Redis
from bench.peers.wherry import WherryBatches, WherryColumns, WherryLone, WherryLoneHttp, WherryMessages

PEERS: dict[str, type[Peer]] = {
    "columns": WherryColumns,
    "batches": WherryBatches,
    "messages": WherryMessages,
    "redis": Redis,
    "rabbitmq": RabbitMq,
    "jetstream": JetStream,
}

LONE: dict[str, type[Peer]] = {
    "lone": WherryLone,
    "lone_http": WherryLoneHttp,
    "redis": Redis,
    "beanstalkd": Beanstalkd,
    "rabbitmq": RabbitMq,
    "jetstream": JetStream,
}
"""Those that are measured one message at a time, paced and each confirmed."""
