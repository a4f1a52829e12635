"""wherry.js and `@stomp/stompjs` in node, against a node of ours: over WebSocket, polling and TLS."""

from __future__ import annotations

import json
import os
import re
import subprocess
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import pytest

from tests.browser.packages import stompjs, tsc
from tests.environments import node as javascript
from tests.stomp.over_http import node
from wherry.node.config import TlsSection
from wherry.wire.http.pages.browser import bundle
from wherry.wire.stomp.codec import BODY_BYTES_MAX, HEAD_BYTES_MAX, HEADERS_MAX

FOLDER = Path(str(files("wherry") / "browser"))
HERE = Path(__file__).parent
PATIENCE_S = 120

OURS = """
const [url, transport] = process.argv.slice(2);
const client = connect({ url, transport });
await client.opened();
const got = [];
const topic = client.subscribe("/topic/t", (message) => void got.push(message.json().number));
await topic.ready;
const queue = client.subscribe("/queue/q", (message) => void got.push(message.text()));
await queue.ready;
await Promise.all(Array.from({ length: 100 }, (_, number) => client.publish("/topic/t", { number })));
await client.publish("/queue/q", "done");
while (got.length < 101) await new Promise((done) => setTimeout(done, 10));
console.log(JSON.stringify([client.transport, got.slice(0, 100), got[100]]));
await client.close();
"""

EDGES = """
const [url, transport] = process.argv.slice(2);
const until = async (condition) => { while (!condition()) await new Promise((done) => setTimeout(done, 10)); };
const client = connect({ url, transport });
const errors = [];
client.addEventListener("error", ({ detail }) => errors.push(detail.message));
await client.opened();
const found = {};

const large = [];
client.subscribe("/queue/large", (message) => void large.push(message.body.length));
await client.publish("/queue/large", new Uint8Array(16 << 20));
await until(() => large.length);
found.large = large[0];
found.larger = await client.publish("/queue/large", new Uint8Array((16 << 20) + 1)).catch((fault) => fault.message);
found.head = await client.publish("/queue/large", "", { a: "x".repeat(65_000) }).then(() => "stored");

const pause = { "x-message-ttl": 50, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work" };
await client.publish("/queue/pause", "old", pause);
const tries = [];
client.subscribe("/queue/work", (message) => {
  if (message.text() === "old") return;
  tries.push(message.redelivered);
  if (tries.length < 3) message.nack({ requeue: false });
}, { headers: { "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "pause" } });
const terms = { "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "pause" };
await client.publish("/queue/work", "new", terms);
await until(() => tries.length === 3);
found.tries = tries;

const done = [];
const jobs = client.subscribe("/queue/jobs", async (message) => {
  await new Promise((next) => setTimeout(next, 5));
  done.push(message.text());
});
await Promise.all(Array.from({ length: 50 }, (_, number) => client.publish("/queue/jobs", `${number}`)));
await until(() => done.length >= 3);
await jobs.unsubscribe();
const first = done.length;
const rest = [];
client.subscribe("/queue/jobs", (message) => void rest.push(message.text()));
await until(() => first + rest.length >= 50);
found.jobs = new Set([...done, ...rest]).size === 50 && done.length === first && first < 50;
found.errors = errors;
await client.close();
console.log(JSON.stringify(found));
"""

FORGET = """
const [url] = process.argv.slice(2);
const sockets = [];
class Socket extends WebSocket {
  constructor(...given) {
    super(...given);
    sockets.push(this);
  }
}
const client = connect({ url, WebSocket: Socket, transport: "websocket" });
const got = [];
const take = (message) => void got.push(message.text());
const owed = () => client.subscribe("/topic/owed", take, { id: "o", durable: true });
const first = owed();
await first.ready;
sockets[0].close();
while (client.state === "open") await new Promise((done) => setTimeout(done, 1));
await first.unsubscribe({ forget: true });
await client.publish("/topic/owed", "unread");
await owed().ready;
await client.publish("/topic/owed", "kept");
while (!got.length) await new Promise((done) => setTimeout(done, 10));
await client.close();
console.log(JSON.stringify([sockets.length, got]));
"""

THEIRS = """
const [brokerURL, version] = process.argv.slice(2);
const stompVersions = new Versions([version]);
const client = new Client({ brokerURL, stompVersions, heartbeatIncoming: 1000, heartbeatOutgoing: 1000 });
await new Promise((done, failed) => {
  client.onConnect = done;
  client.onStompError = (frame) => failed(new Error(frame.headers.message + frame.body));
  client.activate();
});
const receipt = (id) => new Promise((done) => client.watchForReceipt(id, done));
const got = [];
const take = (message) => { got.push([message.body, message.headers.kind ?? null]); message.ack(); };
const subscribed = receipt("subscribed");
client.subscribe("/queue/js", take, { id: "s", ack: "client-individual", receipt: "subscribed" });
await subscribed;
const transaction = client.begin();
const send = { destination: "/queue/js", headers: { transaction: transaction.id, kind: "in one" } };
client.publish({ ...send, body: "1" });
client.publish({ ...send, body: "2" });
transaction.commit();
client.publish({ destination: "/queue/js", binaryBody: new TextEncoder().encode("ü"), headers: { receipt: "sent" } });
await receipt("sent");
while (got.length < 3) await new Promise((done) => setTimeout(done, 10));
const beats = Date.now() + 2500;  // two heart-beats each way
while (Date.now() < beats) await new Promise((done) => setTimeout(done, 100));
console.log(JSON.stringify([client.connected, client.connectedVersion, got]));
await client.deactivate();
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with node(tmp_path_factory.mktemp("js")) as found:
        yield found


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    pair = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    where = ["-days", "2", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*pair, *where, *subject], check=True, capture_output=True)
    with node(folder / "data", tls=TlsSection(certificate=str(certificate), key=str(key))) as found:
        yield found, certificate


def run(folder: Path, script: str, *arguments: str, trusts: Path | None = None):
    """Return what a script prints, as JSON."""
    file = folder / "script.mjs"
    file.write_text(script)
    trust = {} if trusts is None else {"NODE_EXTRA_CA_CERTS": str(trusts)}
    done = subprocess.run(
        [javascript(), str(file), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, **trust},
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


def ours(script: str = OURS) -> str:
    return f'import {{ connect }} from "{(FOLDER / "wherry.js").as_uri()}";\n{script}'


def theirs() -> str:
    return f'import {{ Client, Versions }} from "{(stompjs() / "esm6" / "index.js").as_uri()}";\n{THEIRS}'


@pytest.mark.rows("Q16", "Q9", "Q10")
@pytest.mark.parametrize(("transport", "taken"), [("auto", "websocket"), ("polling", "polling")])
def test_wherry_js_in_node(home, tmp_path, transport, taken):
    assert run(tmp_path, ours(), home.node.url, transport) == [taken, list(range(100)), "done"]


@pytest.mark.rows("Q16", "Q9", "Q10")
@pytest.mark.parametrize("transport", ["websocket", "polling"])
def test_the_largest_body_a_retry_by_dead_letters_and_a_goodbye_with_messages_on_the_way(home, tmp_path, transport):
    found = run(tmp_path, ours(EDGES), home.node.url, transport)
    assert (found["large"], found["head"]) == (BODY_BYTES_MAX, "stored")
    assert found["larger"] == f"the body has {BODY_BYTES_MAX + 1} bytes; at most {BODY_BYTES_MAX} are allowed"
    assert found["tries"] == [False, False, False]
    assert (found["jobs"], found["errors"]) == (True, [])


@pytest.mark.rows("Q16", "Q9")
def test_a_durable_subscription_is_forgotten_on_the_next_connection(home, tmp_path):
    assert run(tmp_path, ours(FORGET), home.node.url) == [2, ["kept"]]


@pytest.mark.rows("Q16")
def test_the_bounds_of_the_client_are_those_of_the_broker():
    module = bundle().decode()
    for name, value in (("BODY_BYTES_MAX", BODY_BYTES_MAX), ("HEAD_BYTES_MAX", HEAD_BYTES_MAX)):
        found = re.search(rf"^const {name} = (\d+) << (\d+);", module, re.MULTILINE)
        assert found is not None
        assert int(found[1]) << int(found[2]) == value
    assert f"const HEADERS_MAX = {HEADERS_MAX};" in module


@pytest.mark.rows("Q16", "Q9", "Q10", "Q13")
@pytest.mark.parametrize(("transport", "taken"), [("auto", "websocket"), ("polling", "polling")])
def test_wherry_js_over_tls(secure, tmp_path, transport, taken):
    found, certificate = secure
    assert run(tmp_path, ours(), found.node.url, transport, trusts=certificate) == [taken, list(range(100)), "done"]


@pytest.mark.rows("Q16", "Q9")
@pytest.mark.parametrize("stomp", ["1.0", "1.1", "1.2"])
def test_stompjs_over_websocket(home, tmp_path, stomp):
    url = home.node.url.replace("http", "ws") + "/ws"
    connected, spoken, got = run(tmp_path, theirs(), url, stomp)
    assert (connected, spoken) == (True, stomp)
    assert got == [["1", "in one"], ["2", "in one"], ["ü", None]]


@pytest.mark.rows("Q16", "Q9", "Q13")
def test_stompjs_over_tls(secure, tmp_path):
    found, certificate = secure
    url = found.node.url.replace("https", "wss") + "/stomp"
    connected, spoken, got = run(tmp_path, theirs(), url, "1.2", trusts=certificate)
    assert (connected, spoken, len(got)) == (True, "1.2", 3)


@pytest.mark.rows("Q16")
@pytest.mark.parametrize("as_one_file", [False, True])
def test_the_client_settles_parses_and_comes_back(tmp_path, as_one_file):
    script = HERE.parent / "browser" / "client.mjs"
    one_file = tmp_path / "wherry.mjs"
    one_file.write_bytes(bundle())
    command = [javascript(), str(script), str(one_file if as_one_file else FOLDER / "wherry.js")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.count("ok ") == len(re.findall(r"^  async \"", script.read_text(), re.MULTILINE))


@pytest.mark.rows("Q16")
def test_the_types_are_true_for_a_program_that_installed_the_package(tmp_path):
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "wherry").symlink_to(FOLDER)
    sample = tmp_path / "types.mts"
    sample.write_text((HERE.parent / "browser" / "types.mts").read_text())
    rules = ["--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom"]
    command = [javascript(), str(tsc()), *rules, str(sample)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.rows("Q16")
def test_the_folder_is_a_package_of_npm():
    package = json.loads((FOLDER / "package.json").read_text())
    assert version("wherry").startswith(package["version"])
    assert "dependencies" not in package
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted([*package["files"], "package.json"])
    declared = r"^export (?:class|function) (\w+)"
    types = re.findall(declared, (FOLDER / "wherry.d.ts").read_text(), re.MULTILINE)
    exported = re.findall(r"^export \{ (.*) \} from", (FOLDER / "wherry.js").read_text(), re.MULTILINE)
    assert sorted(types) == sorted(", ".join(exported).split(", "))
    assert sorted(types) == sorted(re.findall(declared, bundle().decode(), re.MULTILINE))


@pytest.mark.rows("Q16")
def test_the_one_file_that_a_node_serves_has_every_module_once_and_imports_nothing():
    served = bundle().decode()
    for module in (FOLDER / "modules").iterdir():
        start = module.read_text().partition("\n\n")[0]
        assert served.count(start) == 1, module.name
    assert re.search(r"^(import|export .* from) ", served, re.MULTILINE) is None
