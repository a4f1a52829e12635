"""A node as people run it: a process with a port, flags and signals."""

import http.client
import os
import signal
import ssl
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

CERTIFICATES = Path(__file__).parents[1] / "unit/security/certificates"
PATIENCE_S = 30


class Running:
    """A node that was started, and what it printed."""

    def __init__(self, data: Path, *flags: str, **environment: str) -> None:
        command = [sys.executable, "-m", "wherry.node", "--data", str(data), "--port", "0", *flags]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=data.parent,
            env={**os.environ, **environment},
        )
        self.printed = ""

    def __enter__(self) -> "Running":
        assert self.process.stdout is not None
        while "Ctrl-C" not in self.printed:
            line = self.process.stdout.readline()
            if not line:
                pytest.fail(f"the node did not start: {self.end()}")
            self.printed += line
        self.url = self.printed.split()[3]
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.end()

    def end(self) -> tuple[int, str]:
        """Wait for the end: the exit code, and the log."""
        if self.process.stdout is None or self.process.stdout.closed:
            return self.process.returncode, ""
        printed, log = self.process.communicate(timeout=PATIENCE_S)
        self.printed += printed
        return self.process.returncode, log

    def stop(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGTERM)
        return self.end()

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, str]:
        """Send one request; return status and body."""
        place = urlsplit(self.url).netloc
        connection: http.client.HTTPConnection
        if self.url.startswith("https"):
            trust = ssl.create_default_context(cafile=CERTIFICATES / "authority.pem")
            connection = http.client.HTTPSConnection(place, timeout=PATIENCE_S, context=trust)
        else:
            connection = http.client.HTTPConnection(place, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


def refused(data: Path, *flags: str, **environment: str) -> tuple[int, str]:
    """Return the exit code and the last output of a node that should not start."""
    node = Running(data, *flags, **environment)
    code, log = node.end()
    assert node.printed == "", "it started"
    return code, log


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_a_node_serves_stops_at_a_signal_and_continues_where_it_was(data):
    with Running(data) as node:
        assert node.ask("GET", "/healthz")[0] == node.ask("GET", "/readyz")[0] == 200
        assert node.ask("PUT", "/v1/topics/jobs")[0] == 201
        assert node.ask("POST", "/v1/topics/jobs/messages", "hello")[0] == 201
        code, log = node.stop()
        assert code == 0, log
        assert [msgspec.json.decode(line)["message"] for line in log.splitlines()] == [
            *("ready", "asked to stop", "draining", "stopped")
        ]
        assert f"data in {data}" in node.printed
        assert all(word in node.printed for word in ("curl", "python", "publish --create"))
    with Running(data) as node:
        status, body = node.ask("GET", "/v1/topics/jobs")
        assert status == 200
        assert msgspec.json.decode(body)["stats"]["messages"] == 1
        node.process.send_signal(signal.SIGINT)
        assert node.end()[0] == 0


@pytest.mark.parametrize("flags", [[], ["--keys", "on"]])
def test_the_lines_of_the_banner_run_as_printed(data, flags):
    with Running(data, *flags) as node:
        lines = [line for line in node.printed.splitlines() if line.startswith("  ") and "Ctrl-C" not in line]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        subprocess.run(
            ["sh", "-euc", "\n".join(lines).replace("curl", "curl -fsS")],
            check=True,
            timeout=PATIENCE_S,
            cwd=data.parent,
            env={**os.environ, "PATH": path},
            stdout=subprocess.DEVNULL,
        )
        key = {"Authorization": f"Bearer {(data / 'admin.key').read_text().strip()}"} if flags else {}
        assert msgspec.json.decode(node.ask("GET", "/v1/topics/jobs", **key)[1])["stats"]["messages"] == 3


FORGETFUL = """
import atexit, threading
atexit.register(lambda: print(*(each.name for each in threading.enumerate() if each.name == "wherry client")))
import wherry
wherry.connect_sync({url!r}).publish("jobs", ["hello"])
"""


def test_a_program_that_closes_no_client_ends_its_loop_before_the_interpreter_goes(data):
    with Running(data) as node:
        node.ask("PUT", "/v1/topics/jobs")
        code = FORGETFUL.format(url=node.url)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
    assert done.stdout.strip() == ""


def test_pulls_that_wait_do_not_hold_up_a_stop(data):
    with Running(data) as node:
        node.ask("PUT", "/v1/topics/jobs")
        node.ask("PUT", "/v1/topics/jobs/subscriptions/workers")
        node.ask("PUT", "/v1/topics/other")
        node.ask("PUT", "/v1/topics/other/subscriptions/nobody")
        pull = "/v1/topics/jobs/subscriptions/workers/pull?wait_ms=60000"
        publish = "/v1/topics/other/messages?wait=settled"
        answers: dict[str, tuple[int, str]] = {}

        def wait(path: str, body: str | None = None) -> None:
            answers[path] = node.ask("POST", path, body)

        waiting = [threading.Thread(target=wait, args=call) for call in ((pull,), (publish, "hello"))]
        for thread in waiting:
            thread.start()
        until = time.monotonic() + PATIENCE_S
        while '"requests":3' not in node.ask("GET", "/v1")[1] and time.monotonic() < until:
            time.sleep(0.01)
        began = time.monotonic()
        code, log = node.stop()
        for thread in waiting:
            thread.join()
        assert code == 0, log
        assert answers[pull] == (200, '{"messages":[]}')
        status, body = answers[publish]
        assert (status, msgspec.json.decode(body)["fate"]) == (201, "waiting"), (
            "it is stored, and the answer has its fate"
        )
        assert time.monotonic() - began < 5


def test_a_lingering_node_is_not_ready_but_serves_and_a_second_signal_ends_it_at_once(data):
    with Running(data, WHERRY_SERVER_LINGER_S="60") as node:
        node.ask("PUT", "/v1/topics/jobs")
        node.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + PATIENCE_S
        while node.ask("GET", "/readyz")[0] == 200 and time.monotonic() < until:
            time.sleep(0.01)
        status, body = node.ask("GET", "/readyz")
        assert (status, "draining" in body) == (503, True)
        assert node.ask("GET", "/healthz")[0] == 200
        assert node.ask("POST", "/v1/topics/jobs/messages", "hello")[0] == 201
        code, log = node.stop()
        assert code == 128 + signal.SIGTERM
        assert "leaving at once" in log
    with Running(data) as node:
        assert msgspec.json.decode(node.ask("GET", "/v1/topics/jobs")[1])["stats"]["messages"] == 1


def test_a_second_node_on_the_same_directory_is_refused(data):
    with Running(data) as node:
        code, log = refused(data)
        assert code == 1
        assert f"wherry: {data} is in use by process {node.process.pid}" in log
        assert node.stop()[0] == 0


def test_a_port_that_is_taken_is_reported(data, tmp_path):
    with Running(data) as node:
        code, log = refused(tmp_path / "other", "--port", node.url.rpartition(":")[2])
        assert code == 1
        assert "an address to listen on" in log
        assert "in use" in log


@pytest.mark.rows("D27")
def test_an_address_that_others_reach_is_not_served_without_keys(data):
    code, log = refused(data, "--host", "0.0.0.0")
    assert code == 1
    assert "0.0.0.0 can be reached from elsewhere" in log
    assert "--keys on" in log
    assert "--open" in log
    with Running(data, "--host", "0.0.0.0", "--open") as node:
        assert node.ask("GET", "/v1/topics")[0] == 200


@pytest.mark.rows("D27")
def test_the_first_key_opens_everything_and_is_only_in_its_file(data):
    with Running(data, "--keys", "on", "--host", "0.0.0.0") as node:
        file = data / "admin.key"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        token = file.read_text().strip()
        status, body = node.ask("GET", "/v1/topics")
        assert (status, msgspec.json.decode(body)["code"]) == (401, "unauthorized")
        assert node.ask("GET", "/v1/topics", Authorization=f"Bearer {token[:-1]}~")[0] == 401
        assert node.ask("GET", "/v1/topics", Authorization=f"Bearer {token}")[0] == 200
        assert node.ask("GET", "/healthz")[0] == 200
        code, log = node.stop()
        assert code == 0
        assert token[12:] not in node.printed + log
        assert "keys are sent unencrypted" in log
    with Running(data) as node:  # there is a key, so the node requires keys; and no other key is made
        assert node.ask("PUT", "/v1/topics/jobs", Authorization=f"Bearer {token}")[0] == 201
        assert node.ask("PUT", "/v1/topics/jobs")[0] == 401


FAILING = """
import sys
from wherry.model.errors import WriterFailed
from wherry.node import process
from wherry.node.sources import load

def fail(node):
    node.broker.shard.committer.fail(WriterFailed("the sync failed"))
    return "failing"

process.banner = fail
sys.exit(process.run(load(flags={"--data": sys.argv[1], "--port": "0"}).config))
"""


def test_a_node_whose_journal_failed_ends_so_that_a_supervisor_starts_it_again(data):
    command = [sys.executable, "-c", FAILING, str(data)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=data.parent, check=False)
    assert ended.returncode == 1
    assert "the journal failed, so this node stops: the sync failed" in ended.stderr


@pytest.mark.rows("D30", "Q13")
def test_it_speaks_tls(data):
    files = [str(CERTIFICATES / name) for name in ("first.pem", "first.key")]
    with Running(data, "--tls-certificate", files[0], "--tls-key", files[1]) as node:
        assert node.url.startswith("https://")
        assert node.ask("GET", "/readyz")[0] == 200
        assert node.ask("PUT", "/v1/topics/jobs")[0] == 201
        assert node.ask("POST", "/v1/topics/jobs/messages", "x" * 60_000)[0] == 201
        assert node.stop()[0] == 0


@pytest.mark.parametrize(
    ("flags", "environment", "code", "message"),
    [
        (["--log-level", "loud"], {}, 2, "log.level (flag --log-level): got 'loud'"),
        ([], {"WHERRY_SERVER_PROT": "1"}, 2, "did you mean WHERRY_SERVER_PORT?"),
        (["--config", "none.toml"], {}, 2, "none.toml"),
        (["--tls-certificate", "none.pem", "--tls-key", "none.key"], {}, 1, "none.pem"),
        (["--data", "/dev/null"], {}, 1, "a directory"),
    ],
)
def test_a_wrong_configuration_is_reported_in_one_line(data, flags, environment, code, message):
    got, log = refused(data, *flags, **environment)
    assert got == code
    assert message in log
    assert log.startswith("wherry: ")
    assert log.count("\n") == 1
