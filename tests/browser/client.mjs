// wherry.js without a page: what its parser and its settling do, byte by byte, on a socket that the test holds in its hand.
// node client.mjs path/to/wherry.js
import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

const { connect } = await import(pathToFileURL(process.argv[2]));
const encoder = new TextEncoder();
const turn = () => new Promise((done) => setTimeout(done, 5));

class Socket {
  static all = [];
  readyState = 1;
  sent = [];

  constructor(url, protocols) {
    Object.assign(this, { url, protocols });
    Socket.all.push(this);
    setTimeout(() => this.onopen(), 0);
  }

  send(bytes) {
    this.sent.push(new TextDecoder().decode(bytes));
  }

  close() {
    this.readyState = 3;
  }

  says(text, size = Infinity) {
    const bytes = typeof text === "string" ? encoder.encode(text) : text;
    for (let at = 0; at < bytes.length; at += size) this.onmessage({ data: bytes.slice(at, at + size).buffer });
  }

  heard(pattern) {
    return this.sent.filter((frame) => pattern.test(frame));
  }
}

async function fresh(options = {}) {
  Socket.all.length = 0;
  const client = connect({ url: "http://broker.test", WebSocket: Socket, road: "websocket", backoffMs: 1, ...options });
  await turn();
  Socket.all[0].says("CONNECTED\nversion:1.2\n\n\0");
  await client.opened();
  return client;
}

const MESSAGE = "\n\r\nMESSAGE\nsubscription:s\nmessage-id:1\nack:1\nredelivered:false\nnote:a\\cb\\\\c\\nd\n";

const cases = {
  async "frames in pieces of every size, with line ends between and NULs in the body"() {
    for (const size of [1, 2, 3, 7, Infinity]) {
      const client = await fresh();
      const got = [];
      client.subscribe("/topic/a", (message) => void got.push(message), { id: "s", ack: "auto" });
      const text = `${MESSAGE}content-length:5\n\na\0b\0c\0${MESSAGE.replaceAll("\n", "\r\n")}\r\nü\0\n\n`;
      Socket.all[0].says(text, size);
      assert.deepEqual(got.map((message) => message.text()), ["a\0b\0c", "ü"]);
      assert.equal(got[0].headers.note, "a:b\\c\nd");
      assert.equal(got[0].ack(), false);
      await client.close({ withinMs: 0 });
    }
  },

  async "a publish is settled by its receipt and sent again, the same, on the next connection"() {
    const client = await fresh();
    let settled = 0;
    const first = client.publish("/queue/q", "one").then(() => (settled += 1));
    const second = client.publish("/queue/q", "two").then(() => (settled += 1));
    Socket.all[0].says("RECEIPT\nreceipt-id:p1\n\n\0");
    await first;
    assert.deepEqual([settled, client.pending], [1, 1]);
    Socket.all[0].onclose({ code: 1006, reason: "" });
    while (Socket.all.length < 2) await turn();
    await turn();
    Socket.all[1].says("CONNECTED\nversion:1.2\n\n\0");
    await turn();
    const again = Socket.all[1].heard(/^SEND/);
    assert.deepEqual(again, Socket.all[0].heard(/^SEND/).slice(1));
    Socket.all[1].says("RECEIPT\nreceipt-id:p2\n\n\0");
    await second;
    assert.equal(client.pending, 0);
    await client.close({ withinMs: 0 });
  },

  async "an ERROR rejects what it names, and only that"() {
    const client = await fresh();
    const errors = [];
    client.addEventListener("error", ({ detail }) => errors.push(detail.message));
    const bad = client.publish("/nowhere", "x");
    const good = client.publish("/queue/q", "y");
    Socket.all[0].says("ERROR\nmessage:Unknown destination\nreceipt-id:p1\n\n/nowhere\0");
    await assert.rejects(bad, /Unknown destination: \/nowhere/);
    while (Socket.all.length < 2) await turn();
    await turn();
    Socket.all[1].says("CONNECTED\nversion:1.2\n\n\0RECEIPT\nreceipt-id:p2\n\n\0");
    await good;
    assert.equal(errors.length, 1);
    await client.close({ withinMs: 0 });
  },

  async "a key that is refused ends it, and the key is in no URL"() {
    Socket.all.length = 0;
    const client = connect({ url: "http://broker.test", WebSocket: Socket, key: "wk_secret" });
    await turn();
    assert.equal(Socket.all[0].url, "ws://broker.test/ws");
    assert.deepEqual(Socket.all[0].protocols, ["v12.stomp"]);
    assert.match(Socket.all[0].sent[0], /^CONNECT\n[^]*passcode:wk_secret\n/);
    Socket.all[0].says("ERROR\nmessage:Bad CONNECT\n\nAccess refused\0");
    await assert.rejects(client.opened(), /Bad CONNECT: Access refused/);
    assert.equal(client.state, "closed");
    assert.throws(() => connect({ url: "http://wk_secret@broker.test" }), /no secrets/);
    assert.throws(() => connect({ url: "http://broker.test/?key=wk_secret" }), /no secrets/);
  },

  async "what is sent twice since its confirmation was lost is handled once, what comes again for us is not dropped"() {
    const client = await fresh();
    const got = [];
    client.subscribe("/queue/q", (message) => void got.push(message.redelivered), { id: "s" });
    const frame = (tag, again) =>
      `MESSAGE\nsubscription:s\nmessage-id:${tag}\nack:${tag}\nredelivered:${again}\nwherry-publish-id:u\n\nx\0`;
    Socket.all[0].says(frame(1, false) + frame(2, false) + frame(3, true));
    await turn();
    assert.deepEqual(got, [false, true]);
    assert.deepEqual(Socket.all[0].heard(/^ACK\nid:2/).length, 1);
    assert.deepEqual(Socket.all[0].heard(/^ACK/).length, 3);
    await client.close({ withinMs: 0 });
  },

  async "handlers run one after the other"() {
    const client = await fresh();
    const log = [];
    client.subscribe("/queue/q", async (message) => {
      log.push(`begin ${message.text()}`);
      await turn();
      log.push(`end ${message.text()}`);
    }, { id: "s" });
    Socket.all[0].says([1, 2].map((tag) => `MESSAGE\nsubscription:s\nmessage-id:${tag}\nack:${tag}\n\n${tag}\0`).join(""));
    while (log.length < 4) await turn();
    assert.deepEqual(log, ["begin 1", "end 1", "begin 2", "end 2"]);
    await client.close({ withinMs: 0 });
  },

  async "the buffer of publishes is bounded"() {
    const client = await fresh({ bufferMessages: 2, bufferBytes: 10 });
    const held = [client.publish("/queue/q", "12345"), client.publish("/queue/q", "1234")];
    await assert.rejects(client.publish("/queue/q", ""), /too much is not confirmed yet: 2 messages, 9 bytes/);
    client.close({ withinMs: 0 });
    for (const publish of held) await assert.rejects(publish, /closed/);
  },

  async "wrong arguments are named"() {
    const client = await fresh();
    assert.throws(() => client.subscribe("/topic/a", () => 0, { durable: true }), /needs an id/);
    assert.throws(() => client.subscribe("/topic/a", () => 0, { ack: "never" }), /ack is never; allowed/);
    client.subscribe("/topic/a", () => 0, { id: "s" });
    assert.throws(() => client.subscribe("/topic/b", () => 0, { id: "s" }), /subscription s exists/);
    await client.close({ withinMs: 0 });
  },
};

for (const [name, run] of Object.entries(cases)) {
  await run();
  console.log(`ok ${name}`);
}
