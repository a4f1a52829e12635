"""All scenarios that every client shares: to import this is to have them on the list."""

from tests.amqp.scenarios import connections, consuming, exchanges, extensions, fates, publishing, queues

MODULES = (connections, queues, exchanges, publishing, consuming, fates, extensions)
