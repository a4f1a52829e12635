"""wherry.js in pages of a real Chromium, against a node that serves it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files

import pytest

from tests.browser.packages import stompjs
from tests.stomp.over_http import node as served_node
from tests.stomp.over_http import sessions_of
from wherry.node.config import ServerSection

WITHIN_S = 60
SESSION_S = 60
"""A session that is polled lives so long without a call."""
CONNECT = """async (options) => {
  const { connect } = await import("/wherry.js");
  window.got = [];
  window.states = [];
  window.client = connect(options);
  client.addEventListener("state", ({ detail }) => states.push(detail.state));
  await client.opened();
  return client.transport;
}"""
SUBSCRIBE = """async ([destination, options]) => {
  window.subscription = client.subscribe(destination, (message) => void got.push(message.text()), options);
  await subscription.ready;
}"""
PUBLISH = "([destination, body]) => client.publish(destination, body)"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with served_node(tmp_path_factory.mktemp("page")) as found:
        yield found


@pytest.fixture
def tab(page_factory):
    """Return a maker of pages of the node with a client that is connected."""

    def make(url, options=None, **more):
        page = page_factory(**more)
        page.goto(f"{url}/healthz")
        page.transport = page.evaluate(CONNECT, options or {})
        return page

    return make


def wait(page, condition):
    page.wait_for_function(condition, timeout=WITHIN_S * 1000, polling=50)


@pytest.mark.rows("Q16", "Q9", "K9", "K10", "D26")
def test_what_one_tab_publishes_two_others_are_pushed_and_a_later_one_is_not(home, tab):
    url = home.node.url
    first, second, sender = tab(url), tab(url), tab(url)
    assert {page.transport for page in (first, second, sender)} == {"websocket"}
    for page in (first, second):
        page.evaluate(SUBSCRIBE, ["/topic/news", {}])
    for number in range(20):
        sender.evaluate(PUBLISH, ["/topic/news", f"news {number}"])
    expected = [f"news {number}" for number in range(20)]
    for page in (first, second):
        wait(page, "got.length >= 20")
        assert page.evaluate("got") == expected
    late = tab(url)
    late.evaluate(SUBSCRIBE, ["/topic/news", {}])
    sender.evaluate(PUBLISH, ["/topic/news", "after"])
    wait(late, "got.length >= 1")
    assert late.evaluate("got") == ["after"]


@pytest.mark.rows("Q16")
def test_a_queue_is_shared_and_what_fails_comes_again(home, tab):
    page = tab(home.node.url)
    page.evaluate(
        """async () => {
          window.seen = [];
          client.addEventListener("error", () => seen.push("failed"));
          const jobs = client.subscribe("/queue/jobs", (message) => {
            seen.push([message.json().job, message.redelivered]);
            if (!message.redelivered) throw new Error("not yet");
          });
          await jobs.ready;
          await client.publishJson("/queue/jobs", { job: 7 });
        }"""
    )
    wait(page, "seen.length >= 3")
    assert page.evaluate("seen") == [[7, False], "failed", [7, True]]


@pytest.mark.rows("Q16")
def test_bytes_escapes_and_headers_arrive_as_they_were(home, tab):
    page = tab(home.node.url)
    found = page.evaluate(
        r"""async () => {
          const arrived = new Promise((done) => client.subscribe("/queue/raw", done, { ack: "auto" }));
          const bytes = Uint8Array.from({ length: 256 }, (_, number) => number);
          await client.publish("/queue/raw", bytes, { note: "a:b\\c\nd\re – ü", "content-type": "x/y" });
          const message = await arrived;
          return [Array.from(message.body), message.headers.note, message.headers["content-type"]];
        }"""
    )
    assert found == [list(range(256)), "a:b\\c\nd\re – ü", "x/y"]


@pytest.mark.rows("Q16", "Q9")
def test_manual_acks_a_bad_destination_and_goodbye(home, tab):
    page = tab(home.node.url)
    found = page.evaluate(
        """async () => {
          const seen = [];
          const manual = client.subscribe("/queue/manual", (m) => seen.push(m), { ack: "client-individual" });
          await manual.ready;
          await client.publish("/queue/manual", "one");
          while (!seen.length) await new Promise((done) => setTimeout(done, 10));
          const acked = [seen[0].ack(), seen[0].ack()];
          const refused = await client.publish("/nowhere/at-all", "x").catch((fault) => fault.message);
          await client.publish("/queue/manual", "two");  // it came back by itself
          while (seen.length < 2) await new Promise((done) => setTimeout(done, 10));
          await manual.unsubscribe();
          await client.close();
          const after = await client.publish("/queue/manual", "three").catch((fault) => fault.message);
          return [acked, refused, seen[1].text(), client.state, after];
        }"""
    )
    assert found[0] == [True, False]
    assert found[1].startswith("Unknown destination")
    assert found[2:] == ["two", "closed", "this client is closed"]


@pytest.mark.rows("Q16", "Q10")
def test_a_page_without_websockets_polls(home, tab, page_factory):
    url = home.node.url
    page = page_factory()
    page.add_init_script("window.WebSocket = class { constructor() { throw new Error('blocked') } }")
    page.goto(f"{url}/healthz")
    assert page.evaluate(CONNECT, {}) == "polling"
    page.evaluate(SUBSCRIBE, ["/topic/polled", {}])
    sender = tab(url)
    for number in range(20):
        sender.evaluate(PUBLISH, ["/topic/polled", str(number)])
    wait(page, "got.length >= 20")
    assert page.evaluate("got") == [str(number) for number in range(20)]
    page.evaluate("client.publish('/topic/polled', 'x'.repeat(900_000))")
    wait(page, "got.length >= 21 && got[20].length === 900_000")
    page.evaluate("client.close()")


@pytest.mark.rows("Q16", "Q9", "Q10")
def test_a_page_that_polls_returns_to_a_websocket(home, tab, page_factory):
    page = page_factory()
    page.add_init_script("window.Real = WebSocket; window.WebSocket = class { constructor() { throw new Error() } }")
    page.goto(f"{home.node.url}/healthz")
    assert page.evaluate(CONNECT, {"probeMs": 100}) == "polling"
    page.evaluate(SUBSCRIBE, ["/topic/roads", {}])
    page.evaluate(PUBLISH, ["/topic/roads", "polled"])
    page.evaluate("void (window.WebSocket = Real)")
    wait(page, "client.transport === 'websocket'")
    page.evaluate(PUBLISH, ["/topic/roads", "pushed"])
    wait(page, "got.length >= 2")
    assert page.evaluate("got") == ["polled", "pushed"]
    page.evaluate("client.close()")


@pytest.mark.rows("Q16", "Q10")
def test_a_page_that_is_left_ends_its_session(tmp_path, tab):
    with served_node(tmp_path / "data") as node:
        page = tab(node.node.url, {"transport": "polling"})
        page.evaluate(SUBSCRIBE, ["/topic/left", {}])
        assert len(sessions_of(node).connected) == 1
        page.goto("about:blank")
        until = time.monotonic() + SESSION_S / 2
        while sessions_of(node).connected and time.monotonic() < until:
            page.wait_for_timeout(50)
        assert not sessions_of(node).connected


@contextmanager
def proxy_without_upgrades(port: int) -> Iterator[str]:
    """Run a proxy between a page and a node that refuses upgrades, as proxies do that know no WebSocket."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def serve(client: socket.socket) -> None:
        with client:
            head = client.recv(65_536)
            if b"upgrade: websocket" in head.lower():
                client.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            with socket.create_connection(("127.0.0.1", port)) as node:
                node.sendall(head)
                back = threading.Thread(target=pump, args=(node, client), daemon=True)
                back.start()
                pump(client, node)
                back.join()

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.mark.rows("Q16", "Q10")
def test_a_page_whose_proxy_blocks_websockets_polls(home, tab):
    with proxy_without_upgrades(home.node.port) as url:
        page = tab(url)
        assert page.transport == "polling"
        page.evaluate(SUBSCRIBE, ["/topic/proxied", {}])
        page.evaluate(PUBLISH, ["/topic/proxied", "through"])
        wait(page, "got.length >= 1")
        page.evaluate("client.close()")


@pytest.mark.rows("Q16", "Q9")
def test_a_page_from_elsewhere_needs_to_be_named(tmp_path, page_factory, home):
    elsewhere = home.node.url  # another origin, since the node has another port
    with served_node(tmp_path / "data", server=ServerSection(port=0, origins=(elsewhere,))) as node:
        page = page_factory()
        page.goto(f"{elsewhere}/healthz")
        for transport in ("websocket", "polling"):
            found = page.evaluate(
                """async ([url, transport]) => {
                  const { connect } = await import(`${url}/wherry.js`);
                  const client = connect({ url, transport });
                  await client.opened();
                  await client.publish("/queue/far", "x");
                  await client.close();
                  return true;
                }""",
                [node.node.url, transport],
            )
            assert found
        # The other way round no file was named.
        page.goto(f"{node.node.url}/healthz")
        refused = page.evaluate(
            """async (url) => {
              const answer = await fetch(`${url}/v1/stomp/sessions`, { method: "POST" }).catch(() => "blocked");
              const socket = new WebSocket(url.replace("http", "ws") + "/ws");
              const closed = await new Promise((done) => (socket.onclose = ({ code }) => done(code)));
              return [answer, closed];
            }""",
            elsewhere,
        )
        assert refused == ["blocked", 1006]


@pytest.mark.rows("Q16", "Q9")
def test_a_page_that_has_the_folder_of_the_package_needs_no_build(tmp_path, page_factory):
    quiet = partial(QuietFiles, directory=str(files("wherry") / "browser"))
    with ThreadingHTTPServer(("127.0.0.1", 0), quiet) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        origin = f"http://127.0.0.1:{web.server_port}"
        with served_node(tmp_path / "data", server=ServerSection(port=0, origins=(origin,))) as node:
            page = page_factory()
            page.goto(f"{origin}/package.json")
            assert page.evaluate(CONNECT, {"url": node.node.url}) == "websocket"
            page.evaluate(SUBSCRIBE, ["/topic/own", {}])
            page.evaluate(PUBLISH, ["/topic/own", "from modules"])
            wait(page, "got.length >= 1")
            page.evaluate("client.close()")
        web.shutdown()


class QuietFiles(SimpleHTTPRequestHandler):
    """The files of a folder, as any web server has them."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.rows("Q16", "Q9")
def test_a_node_that_is_killed_loses_nothing_that_was_confirmed_and_pages_come_back(killable, tab):
    reader, sender = tab(killable.url), tab(killable.url)
    owed = {"id": "page-7", "durable": True}
    reader.evaluate(SUBSCRIBE, ["/topic/owed", owed])
    sender.evaluate(
        """() => {
          window.confirmed = [];
          window.sent = 0;
          window.failed = [];
          window.sending = setInterval(() => {
            const body = String(sent++);
            client.publish("/topic/owed", body).then(() => confirmed.push(body), (fault) => failed.push(String(fault)));
          }, 2);
        }"""
    )
    for _ in range(3):
        wait(sender, f"confirmed.length >= {sender.evaluate('confirmed.length') + 100}")
        killable.kill()
        wait(sender, "client.state !== 'open'")
        killable.start()
        wait(sender, "client.state === 'open'")
    sender.evaluate("clearInterval(sending)")
    wait(sender, "client.pending === 0")
    sent = sender.evaluate("sent")
    assert sender.evaluate("failed") == []
    assert sorted(map(int, sender.evaluate("confirmed"))) == list(range(sent))
    wait(reader, f"new Set(got).size >= {sent}")
    assert sorted(set(map(int, reader.evaluate("got")))) == list(range(sent))
    assert "waiting" in reader.evaluate("states")
    print(f"{sent} messages, {len(reader.evaluate('got')) - sent} of them came twice, 3 kills")


@pytest.mark.rows("Q16")
def test_what_came_while_the_page_was_closed_is_there_when_it_is_opened_again(home, tab):
    url, owed = home.node.url, {"id": "page-8", "durable": True}
    page, sender = tab(url), tab(url)
    page.evaluate(SUBSCRIBE, ["/topic/away", owed])
    page.close()
    for number in range(10):
        sender.evaluate(PUBLISH, ["/topic/away", str(number)])
    again = tab(url)
    again.evaluate(SUBSCRIBE, ["/topic/away", owed])
    wait(again, "got.length >= 10")
    assert again.evaluate("got") == [str(number) for number in range(10)]


@pytest.mark.rows("Q16", "Q10")
def test_a_polling_page_comes_back_too(killable, tab):
    page = tab(killable.url, {"transport": "polling"})
    page.evaluate(SUBSCRIBE, ["/topic/back", {"id": "page-9", "durable": True}])
    killable.kill()
    wait(page, "client.state !== 'open'")
    page.evaluate("void (window.late = client.publish('/topic/back', 'published while it was down'))")
    killable.start()
    wait(page, "client.state === 'open'")
    page.evaluate("late")
    wait(page, "got.length >= 1")
    page.evaluate("client.close()")


@pytest.mark.rows("Q16", "Q9")
def test_stompjs_works_unchanged_in_a_page(home, page_factory):
    page = page_factory()
    page.goto(f"{home.node.url}/healthz")
    page.add_script_tag(path=str(stompjs() / "bundles" / "stomp.umd.js"))
    found = page.evaluate(
        """async (brokerURL) => {
          const client = new StompJs.Client({ brokerURL, heartbeatIncoming: 1000, heartbeatOutgoing: 1000 });
          await new Promise((done, failed) => {
            client.onConnect = done;
            client.onStompError = (frame) => failed(new Error(frame.headers.message));
            client.activate();
          });
          const message = await new Promise((done) => {
            const news = { destination: "/topic/js", body: "from stompjs ü", headers: { a: "b:c" } };
            client.watchForReceipt("sub", () => client.publish(news));
            client.subscribe("/topic/js", (got) => { got.ack(); done(got); }, { ack: "client", receipt: "sub" });
          });
          const found = [message.body, message.headers.a, client.connectedVersion];
          await client.deactivate();
          return found;
        }""",
        home.node.url.replace("http", "ws") + "/ws",
    )
    assert found == ["from stompjs ü", "b:c", "1.2"]
