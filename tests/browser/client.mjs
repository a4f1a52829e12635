// wherry.js without a page: what its parser and its settling do, byte by byte, on a socket that the test holds in its hand.
// node client.mjs path/to/wherry.js
import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

const { connect, Client } = await import(pathToFileURL(process.argv[2]));
process.on("unhandledRejection", (fault) => {
  console.error("unhandled", fault);
  process.exit(1);
});
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

  breaks() {
    this.onclose({ code: 1006, reason: "" });
  }

  /** Send the receipt that a broker sends to each frame that asks for one. */
  confirms(pattern = /^/) {
    for (const frame of this.framesSent(pattern)) {
      const receipt = /\nreceipt:(.*)\n/.exec(frame)?.[1];
      if (receipt !== undefined) this.deliver(`RECEIPT\nreceipt-id:${receipt}\n\n\0`);
    }
  }

  deliver(text, size = Infinity) {
    const bytes = typeof text === "string" ? encoder.encode(text) : text;
    for (let at = 0; at < bytes.length; at += size) this.onmessage({ data: bytes.slice(at, at + size).buffer });
  }

  framesSent(pattern) {
    return this.sent.filter((frame) => pattern.test(frame));
  }
}

async function fresh(options = {}) {
  Socket.all.length = 0;
  const url = "http://broker.test";
  const client = connect({ url, WebSocket: Socket, transport: "websocket", backoffMs: 1, ...options });
  await turn();
  Socket.all[0].deliver("CONNECTED\nversion:1.2\n\n\0");
  await client.opened();
  return client;
}

/** The next connection of the client, greeted. */
async function again() {
  const before = Socket.all.length;
  Socket.all.at(-1).breaks();
  while (Socket.all.length === before) await turn();
  return greeted();
}

async function greeted() {
  const socket = Socket.all.at(-1);
  while (!socket.framesSent(/^CONNECT/).length) await turn();
  socket.deliver("CONNECTED\nversion:1.2\n\n\0");
  return socket;
}

const message = (tag, { id = tag, redelivered = false } = {}) =>
  `MESSAGE\nsubscription:s\nmessage-id:${tag}\nack:${tag}\nredelivered:${redelivered}\nwherry-publish-id:${id}\n\n${tag}\0`;

async function until(condition) {
  for (let count = 0; count < 2_000; count += 1) {
    if (condition()) return;
    await turn();
  }
  assert.fail(`never: ${condition}`);
}

const MESSAGE = "\n\r\nMESSAGE\nsubscription:s\nmessage-id:1\nack:1\nredelivered:false\nnote:a\\cb\\\\c\\nd\n";

const cases = {
  async "frames in pieces of every size, with line ends between and NULs in the body"() {
    for (const size of [1, 2, 3, 7, Infinity]) {
      const client = await fresh();
      const got = [];
      client.subscribe("/topic/a", (message) => void got.push(message), { id: "s", ack: "auto" });
      const text = `${MESSAGE}content-length:5\n\na\0b\0c\0${MESSAGE.replaceAll("\n", "\r\n")}\r\nü\0\n\n`;
      Socket.all[0].deliver(text, size);
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
    Socket.all[0].deliver("RECEIPT\nreceipt-id:p1\n\n\0");
    await first;
    assert.deepEqual([settled, client.pending], [1, 1]);
    Socket.all[0].onclose({ code: 1006, reason: "" });
    while (Socket.all.length < 2) await turn();
    await turn();
    Socket.all[1].deliver("CONNECTED\nversion:1.2\n\n\0");
    await turn();
    const again = Socket.all[1].framesSent(/^SEND/);
    assert.deepEqual(again, Socket.all[0].framesSent(/^SEND/).slice(1));
    Socket.all[1].deliver("RECEIPT\nreceipt-id:p2\n\n\0");
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
    Socket.all[0].deliver("ERROR\nmessage:Unknown destination\nreceipt-id:p1\n\n/nowhere\0");
    await assert.rejects(bad, /Unknown destination: \/nowhere/);
    while (Socket.all.length < 2) await turn();
    await turn();
    Socket.all[1].deliver("CONNECTED\nversion:1.2\n\n\0RECEIPT\nreceipt-id:p2\n\n\0");
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
    Socket.all[0].deliver("ERROR\nmessage:Bad CONNECT\n\nAccess refused\0");
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
    Socket.all[0].deliver(frame(1, false) + frame(2, false) + frame(3, true));
    await turn();
    assert.deepEqual(got, [false, true]);
    assert.deepEqual(Socket.all[0].framesSent(/^ACK\nid:2/).length, 1);
    assert.deepEqual(Socket.all[0].framesSent(/^ACK/).length, 3);
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
    Socket.all[0].deliver([1, 2].map((tag) => `MESSAGE\nsubscription:s\nmessage-id:${tag}\nack:${tag}\n\n${tag}\0`).join(""));
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

  async "what a listener of open publishes is sent once"() {
    Socket.all.length = 0;
    const client = connect({ url: "http://broker.test", WebSocket: Socket, transport: "websocket", backoffMs: 1 });
    const early = client.publish("/queue/q", "early");
    client.addEventListener("state", ({ detail }) => {
      if (detail.state !== "open") return;
      client.subscribe("/topic/a", () => 0, { id: `s${Socket.all.length}` });
      client.publish("/queue/q", "late").catch(() => undefined);
    });
    early.catch(() => undefined);
    await turn();
    const first = await greeted();
    assert.deepEqual(first.framesSent(/^SEND/).map((frame) => frame.slice(-6, -1)), ["early", "\nlate"]);
    assert.equal(first.framesSent(/^SUBSCRIBE/).length, 1);
    const second = await again();
    assert.equal(second.framesSent(/^SEND/).length, 3);
    assert.equal(second.framesSent(/^SUBSCRIBE/).length, 2);
    await client.close({ withinMs: 0 });
  },

  async "a close in a listener of waiting closes the client"() {
    const client = await fresh();
    client.addEventListener("state", ({ detail }) => void (detail.state === "waiting" && client.close()));
    Socket.all[0].breaks();
    assert.equal(client.state, "closed");
    for (let count = 0; count < 5; count += 1) await turn();
    assert.deepEqual([client.state, Socket.all.length], ["closed", 1]);
  },

  async "what is redriven after a nack, or comes by the next connection, is handed over; what was acked is not"() {
    const client = await fresh();
    const got = [];
    const each = async (message) => {
      got.push(message.text());
      if (message.text() === "1") message.nack({ requeue: false });
      if (message.text() === "4") await new Promise(() => undefined);
    };
    client.subscribe("/queue/q", each, { id: "s" });
    Socket.all[0].deliver(message(1, { id: "a" }));
    await until(() => Socket.all[0].framesSent(/^NACK/).length === 1);
    Socket.all[0].deliver(message(2, { id: "a" }));
    await until(() => Socket.all[0].framesSent(/^ACK\nid:2/).length === 1);
    Socket.all[0].deliver(message(3, { id: "a" }) + message(4, { id: "b" }) + message(5, { id: "b" }));
    await until(() => got.length === 3);
    assert.deepEqual(got, ["1", "2", "4"]);
    assert.deepEqual(Socket.all[0].framesSent(/^ACK/).length, 3);
    await client.close({ withinMs: 0 });
  },

  async "what was in hand when a connection was lost is no repeat, what was acked is one"() {
    const client = await fresh();
    const got = [];
    client.subscribe("/queue/q", (message) => void got.push(message), { id: "s", ack: "client-individual" });
    Socket.all[0].deliver(message(1, { id: "a" }) + message(2, { id: "b" }));
    assert.equal(got[0].ack(), true);
    const next = await again();
    next.deliver(message(3, { id: "a" }) + message(4, { id: "b" }));
    assert.deepEqual(got.map((message) => message.text()), ["1", "2", "4"]);
    assert.equal(next.framesSent(/^ACK\nid:3/).length, 1);
    assert.equal(got[1].ack(), false);
    await client.close({ withinMs: 0 });
  },

  async "with ack client a repeat is not acked by itself, and an ack counts for all before it"() {
    const client = await fresh();
    const got = [];
    client.subscribe("/queue/q", (message) => void got.push(message), { id: "s", ack: "client" });
    Socket.all[0].deliver(message(1, { id: "a" }) + message(2, { id: "b" }) + message(3, { id: "a" }));
    assert.equal(got.length, 2);
    assert.deepEqual(Socket.all[0].framesSent(/^ACK/), []);
    got[1].ack();
    const next = await again();
    next.deliver(message(4, { id: "a" }) + message(5, { id: "c" }) + message(6, { id: "d" }));
    assert.deepEqual(got.map((message) => message.text()), ["1", "2", "5", "6"]);
    got[3].nack();
    next.deliver(message(7, { id: "c" }));
    assert.equal(got.length, 5);
    await client.close({ withinMs: 0 });
  },

  async "unsubscribe lets the running handler ack, begins no other, and then nothing is settled"() {
    const client = await fresh();
    const begun = [];
    let finish;
    const jobs = client.subscribe("/queue/q", (message) => {
      begun.push(message.text());
      return new Promise((done) => (finish = done));
    }, { id: "s" });
    Socket.all[0].deliver(message(1) + message(2) + message(3));
    await until(() => begun.length === 1);
    const left = jobs.unsubscribe();
    await assert.rejects(jobs.ready, /s was unsubscribed/);
    Socket.all[0].deliver(message(4));
    await turn();
    assert.deepEqual(Socket.all[0].framesSent(/^UNSUBSCRIBE/), []);
    finish();
    await until(() => Socket.all[0].framesSent(/^UNSUBSCRIBE/).length === 1);
    assert.deepEqual(Socket.all[0].sent.slice(-2).map((frame) => frame.split("\n")[0]), ["ACK", "UNSUBSCRIBE"]);
    assert.throws(() => client.subscribe("/queue/q", () => 0, { id: "s" }), /subscription s exists/);
    Socket.all[0].deliver(message(5));
    Socket.all[0].confirms(/^UNSUBSCRIBE/);
    await left;
    assert.deepEqual(begun, ["1"]);
    assert.equal(Socket.all[0].framesSent(/^ACK/).length, 1);
    client.subscribe("/queue/q", () => 0, { id: "s" });
    await client.close({ withinMs: 0 });
  },

  async "unsubscribe by the handler itself waits for no handler, and its ack is sent first"() {
    const client = await fresh();
    let isDone = false;
    const jobs = client.subscribe("/queue/q", async () => {
      await jobs.unsubscribe();
      isDone = true;
    }, { id: "s" });
    Socket.all[0].deliver(message(1) + message(2));
    await until(() => Socket.all[0].framesSent(/^UNSUBSCRIBE/).length === 1);
    assert.equal(isDone, true);
    assert.deepEqual(Socket.all[0].framesSent(/^ACK/).length, 1);
    assert.match(Socket.all[0].sent.at(-2), /^ACK\nid:1/);
    await client.close({ withinMs: 0 });
  },

  async "unsubscribe is bounded, settles nothing afterwards, and a connection that is lost is no failure"() {
    const client = await fresh();
    const got = [];
    const jobs = client.subscribe("/queue/q", (message) => (got.push(message), new Promise(() => 0)), { id: "s" });
    Socket.all[0].deliver(message(1));
    await until(() => got.length === 1);
    const left = jobs.unsubscribe({ withinMs: 5 });
    await until(() => Socket.all[0].framesSent(/^UNSUBSCRIBE/).length === 1);
    assert.equal(got[0].ack(), false);
    assert.deepEqual(Socket.all[0].framesSent(/^ACK/), []);
    const next = await again();
    await left;
    assert.deepEqual(next.framesSent(/SUBSCRIBE/), []);
    await client.close({ withinMs: 0 });
  },

  async "what waits behind a slow handler is dropped with its connection"() {
    const client = await fresh();
    const begun = [];
    let finish;
    client.subscribe("/queue/q", (message) => {
      begun.push(message.text());
      return new Promise((done) => (finish = done));
    }, { id: "s" });
    Socket.all[0].deliver(message(1) + message(2) + message(3));
    await until(() => begun.length === 1);
    const next = await again();
    finish();
    await turn();
    assert.deepEqual(begun, ["1"]);
    next.deliver(message(4, { id: 1, redelivered: true }) + message(5, { id: 2 }));
    await until(() => begun.length === 2);
    finish();
    await until(() => begun.length === 3);
    finish();
    await until(() => next.framesSent(/^ACK/).length === 2);
    assert.deepEqual(begun, ["1", "4", "5"]);
    assert.deepEqual(Socket.all[0].framesSent(/^ACK/), []);
    await client.close({ withinMs: 0 });
  },

  async "a forget while there is no connection is sent on the next one"() {
    const client = await fresh({ backoffMs: 50 });
    const owed = client.subscribe("/topic/a", () => 0, { id: "s", durable: true });
    const plain = client.subscribe("/topic/a", () => 0, { id: "t" });
    Socket.all[0].confirms(/^SUBSCRIBE/);
    await owed.ready;
    Socket.all[0].breaks();
    assert.equal(client.state, "waiting");
    await plain.unsubscribe();
    let isForgotten = false;
    const forgotten = owed.unsubscribe({ forget: true }).then(() => (isForgotten = true));
    await until(() => Socket.all.length === 2);
    const next = await greeted();
    await until(() => next.framesSent(/^UNSUBSCRIBE/).length === 1);
    assert.equal(isForgotten, false);
    assert.match(next.framesSent(/^UNSUBSCRIBE/)[0], /\nid:s\ndestination:\/topic\/a\ndurable:true\n/);
    assert.deepEqual(next.framesSent(/^SUBSCRIBE/), []);
    next.confirms(/^UNSUBSCRIBE/);
    await forgotten;
    const late = client.subscribe("/topic/a", () => 0, { id: "s", durable: true });
    Socket.all.at(-1).breaks();
    const never = late.unsubscribe({ forget: true });
    client.close({ withinMs: 0 });
    await assert.rejects(never, /not forgotten: this client is closed/);
    await assert.rejects(late.ready, /unsubscribed/);
  },

  async "a publish that every connection is lost with is sent alone, is refused in the end, and the others arrive"() {
    const client = await fresh({ backoffCapMs: 2 });
    const bad = client.publish("/queue/q", "bad");
    const good = ["one", "two"].map((body) => client.publish("/queue/q", body));
    let refused = null;
    bad.catch((fault) => (refused = fault.message));
    for (let sends = 1; sends < 10; sends += 1) {
      const socket = await again();
      assert.equal(refused, null);
      assert.equal(socket.framesSent(/^SEND/).length, sends < 5 ? 3 : 1);
    }
    const last = await again();
    await assert.rejects(bad, /the connection was lost each of the 10 times that it was sent: the WebSocket closed/);
    assert.deepEqual(last.framesSent(/\none\0$/).length, 1);
    last.confirms(/\none\0$/);
    await good[0];
    last.confirms(/\ntwo\0$/);
    await good[1];
    const after = client.publish("/queue/q", "after");
    last.confirms(/\nafter\0$/);
    await after;
    await client.close({ withinMs: 0 });
  },

  async "what no frame can carry is refused, with its bound"() {
    const client = await fresh({ bufferBytes: 64 << 20 });
    const publish = (body, headers) => client.publish("/queue/q", body, headers);
    await assert.rejects(publish(new Uint8Array((16 << 20) + 1)), /16777217 bytes; at most 16777216 are allowed/);
    await assert.rejects(publish("x", { note: "x".repeat(1 << 16) }), /bytes of headers; at most 65536 are allowed/);
    const many = Object.fromEntries(Array.from({ length: 256 }, (_, number) => [`h${number}`, number]));
    await assert.rejects(publish("x", many), /headers; at most 256 are allowed/);
    await assert.rejects(publish("x", { note: "a\0b" }), /the header note has a NUL/);
    await assert.rejects(publish("x", { "": "a" }), /a header has no name/);
    await assert.rejects(publish("x", { note: {} }), /the header note is Object; allowed/);
    for (const name of ["destination", "content-length", "receipt", "wherry-publish-id", "message-id", "subscription", "ack"]) {
      await assert.rejects(publish("x", { [name]: "1" }), new RegExp(`the header ${name} of SEND is not yours to give`));
    }
    for (const body of [new Blob(["x"]), new Map(), new Set(), Promise.resolve(), () => 0, 7n, Symbol("x")]) {
      await assert.rejects(publish(body), /the body is (Blob|Map|Set|Promise|Function|BigInt|Symbol); allowed/);
    }
    await assert.rejects(client.publishJson("/queue/q", undefined), /the body is Undefined; allowed/);
    assert.deepEqual([client.pending, Socket.all[0].framesSent(/^SEND/)], [0, []]);
    for (const body of [{ a: 1 }, [1], null, 7, false, new Date(0)]) publish(body).catch(() => undefined);
    client.publishJson("/queue/q", "text").catch(() => undefined);
    const bodies = Socket.all[0].framesSent(/^SEND/).map((frame) => frame.slice(frame.indexOf("\n\n") + 2, -1));
    assert.deepEqual(bodies, ['{"a":1}', "[1]", "null", "7", "false", '"1970-01-01T00:00:00.000Z"', '"text"']);
    await client.close({ withinMs: 0 });
  },

  async "where a page has no origin, or the url is none, that is an error"() {
    assert.throws(() => new Client(), /url is missing/);
    globalThis.location = { origin: "null" };
    assert.throws(() => connect(), /url is missing/);
    assert.throws(() => connect({ url: "/broker" }), /url is not one; allowed/);
    const client = connect({ url: "wss://broker.test/", WebSocket: Socket });
    await client.close({ withinMs: 0 });
    delete globalThis.location;
    assert.throws(() => connect({ url: "ftp://broker.test" }), /url begins with ftp; allowed: https/);
    const pigeon = { url: "http://broker.test", transport: "pigeon" };
    assert.throws(() => connect(pigeon), /transport is pigeon; allowed: auto/);
  },

  async "a page that polls returns to a WebSocket, tries one now and then, and ends its session when it is left"() {
    let isBlocked = true;
    let tries = 0;
    class Blocked extends Socket {
      constructor(...given) {
        super(...given);
        tries += 1;
        if (isBlocked) this.onopen = () => undefined;
        if (isBlocked) setTimeout(() => this.onerror(), 0);
      }
      set onopen(call) {
        this.opens = isBlocked ? () => undefined : call;
      }
      get onopen() {
        return this.opens;
      }
    }
    const calls = [];
    const sessions = async (url, { method, signal }) => {
      calls.push(`${method} ${new URL(url).pathname}`);
      if (method === "POST" && url.endsWith("/sessions")) return Response.json({ id: "x", token: "t" });
      if (method !== "GET") return Response.json({});
      const next = new URL(url).searchParams.get("after") === "0" ? CONNECTED : "";
      if (next) return new Response(next, { headers: { "wherry-next": `${next.length}` } });
      return new Promise((_, failed) => signal.addEventListener("abort", () => failed(signal.reason)));
    };
    const CONNECTED = "CONNECTED\nversion:1.2\n\n\0";
    const listeners = {};
    globalThis.addEventListener = (name, call) => (listeners[name] = call);
    globalThis.removeEventListener = (name) => delete listeners[name];
    Socket.all.length = 0;
    const client = connect({ url: "http://broker.test", WebSocket: Blocked, fetch: sessions, backoffMs: 1, probeMs: 20 });
    await client.opened();
    assert.equal(client.transport, "polling");
    await until(() => tries >= 4); // while it polls
    assert.equal(client.transport, "polling");
    listeners.pagehide();
    assert.equal(calls.at(-1), "DELETE /v1/stomp/sessions/x");
    await until(() => client.transport === "polling");
    isBlocked = false;
    await until(() => Socket.all.some((socket) => socket.framesSent(/^CONNECT/).length));
    Socket.all.find((socket) => socket.framesSent(/^CONNECT/).length).deliver(CONNECTED);
    assert.equal(client.transport, "websocket");
    await client.close({ withinMs: 0 });
    assert.deepEqual(listeners, {});
    delete globalThis.addEventListener;
    delete globalThis.removeEventListener;
  },
};

for (const [name, run] of Object.entries(cases)) {
  await run();
  console.log(`ok ${name}`);
}
