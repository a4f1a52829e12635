"""The process that runs scenarios in the environment of a client.

`python -m tests.amqp.clients.driver CLIENT URL`, then one JSON line for each scenario: `{"run": name}` on stdin,
`{"failed": null}` or `{"failed": "the traceback"}` on stdout.
"""

from __future__ import annotations

import json
import reprlib
import sys
import traceback
from importlib import import_module

from tests.amqp.clients.port import Address, Client
from tests.amqp.scenarios import everything
from tests.amqp.scenarios.registry import SCENARIOS, Scene

CLIENTS = {
    "pika": ("tests.amqp.clients.pika_client", "Pika", "tests.amqp.clients.pika_own"),
    "aio-pika": ("tests.amqp.clients.aio_pika_client", "AioPika", "tests.amqp.clients.aio_pika_own"),
    "kombu": ("tests.amqp.clients.py_amqp_client", "PyAmqp", "tests.amqp.clients.kombu_own"),
    "amqplib": ("tests.amqp.clients.amqplib_client", "AmqpLib", "tests.amqp.clients.amqplib_own"),
}


def values_around(fault: Exception) -> str:
    """Return the values of the names of a scenario when it failed."""
    frames = [frame for frame, _ in traceback.walk_tb(fault.__traceback__) if frame.f_globals is not globals()]
    return (
        "".join(f"  {name} = {reprlib.repr(value)}\n" for name, value in frames[0].f_locals.items()) if frames else ""
    )


def run(client: Client, address: Address, name: str) -> str | None:
    """Run a scenario; return how it failed, or None."""
    scene = Scene(client, address)
    try:
        SCENARIOS[name].run(scene)
    except Exception as fault:
        return traceback.format_exc() + values_around(fault)
    finally:
        scene.end()
    return None


def main() -> None:
    """Run each scenario that a line of input asks for, until the input ends."""
    name, url = sys.argv[1:]
    assert everything.MODULES
    answers, sys.stdout = sys.stdout, sys.stderr
    module, kind, own = CLIENTS[name]
    client: Client = getattr(import_module(module), kind)()
    import_module(own)
    for line in sys.stdin:
        failed = run(client, Address.of(url), json.loads(line)["run"])
        print(json.dumps({"failed": failed}), file=answers, flush=True)


if __name__ == "__main__":
    main()
