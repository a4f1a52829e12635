"""stomp.py over a WebSocket, unchanged."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.environments import python_with
from tests.stomp.over_http import node

SCRIPT = """
import json, sys, threading, time
import stomp

class Listener(stomp.ConnectionListener):
    def __init__(self):
        self.got, self.errors, self.receipts, self.gone = [], [], set(), threading.Event()
    def on_message(self, frame):
        self.got.append([frame.body, frame.headers["destination"]])
    def on_error(self, frame):
        self.errors.append(frame.headers["message"])
    def on_receipt(self, frame):
        self.receipts.add(frame.headers["receipt-id"])
    def on_disconnected(self):
        self.gone.set()

def until(holds):
    for _ in range(1_000):
        if holds():
            return
        time.sleep(0.02)
    raise SystemExit("it never came to that")

path, binary = sys.argv[2], sys.argv[3] == "binary"
listener = Listener()
connection = stomp.WSConnection(
    [("127.0.0.1", int(sys.argv[1]))], vhost="/", ws_path=path, heartbeats=(1000, 1000), binary_mode=binary
)
connection.set_listener("", listener)
connection.connect("guest", "guest", wait=True)
connection.subscribe("/queue/py", id="1", ack="auto", headers={"receipt": "s"})
until(lambda: "s" in listener.receipts)
for number in range(50):
    connection.send("/queue/py", f"{number} ü", headers={"receipt": f"p{number}"})
until(lambda: len(listener.got) == 50 and "p49" in listener.receipts)
time.sleep(2.5)  # two heart-beats each way
assert connection.is_connected()
connection.disconnect(receipt="bye")
assert listener.gone.wait(20)
print(json.dumps([[body for body, _ in listener.got], sorted({place for _, place in listener.got}), listener.errors]))
"""


@pytest.mark.rows("Q9")
@pytest.mark.parametrize(("path", "mode"), [("/ws", "text"), ("/stomp", "binary")])
def test_stomp_py_over_websocket(tmp_path, path, mode):
    with node(tmp_path / "data") as home:
        command = [python_with("stomp.py-9"), "-c", SCRIPT, str(home.node.port), path, mode]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    bodies, places, errors = json.loads(done.stdout)
    assert bodies == [f"{number} ü" for number in range(50)]
    assert (places, errors) == (["/queue/py"], [])
