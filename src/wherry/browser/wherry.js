/**
 * Wherry in a page: publish, subscribe, ack, over STOMP 1.2. One module, no dependencies, no build.
 *
 *   import { connect } from "/wherry.js";
 *   const wherry = connect({ key });
 *   wherry.subscribe("/topic/prices", (message) => show(message.json()));
 *   await wherry.publish("/queue/orders", { id: 7 });
 *
 * It takes a WebSocket where it gets one, else it polls. It comes back by itself, subscribes again, and sends again what
 * was not confirmed. Every buffer has a bound.
 */

/** What went wrong; `fatal` if trying again would not help. */
export class WherryError extends Error {
  constructor(message, { fatal = false, detail = "" } = {}) {
    super(detail ? `${message}: ${detail}` : message);
    this.name = "WherryError";
    this.fatal = fatal;
  }
}

/** A client that connects now and stays connected until `close()`. */
export function connect(options = {}) {
  return new Client(options);
}

const DEFAULTS = {
  road: "auto",
  host: "/",
  connectMs: 8_000,
  backoffMs: 250,
  backoffCapMs: 15_000,
  bufferMessages: 10_000,
  bufferBytes: 16 << 20,
  probeMs: 180_000,
};

const HEART_BEAT_MS = 10_000;
const POLL_MS = 25_000;
const POST_BYTES = 512 << 10;
const PREFETCH = 100;
const SEEN_MAX = 10_000;
const PUBLISH_ID = "wherry-publish-id";

// What the broker takes: a frame beyond it would end every connection that it is sent on.
const BODY_BYTES_MAX = 16 << 20;
const HEAD_BYTES_MAX = 64 << 10;
const HEADERS_MAX = 256;

// A publish that connections are lost with: from so many sends on it goes alone, and after the last one it is refused.
const SENDS_TOGETHER = 5;
const SENDS_MAX = 10;

// WebSockets that fail in a row, while polling works, until one is tried every `probeMs` only; sooner before that.
const SOCKET_FAILURES_MAX = 2;
const PROBE_SOON_MS = 5_000;
const PARTING_MS = 1_000;

const ROADS = ["auto", "websocket", "polling"];
const ACK_MODES = ["handler", "auto", "client", "client-individual"];
const OF_SEND = ["destination", "receipt", "content-length", "transaction", PUBLISH_ID];
OF_SEND.push("message-id", "subscription", "ack", "redelivered"); // of a MESSAGE: what is forwarded gets its own
const OF_SUBSCRIBE = ["destination", "id", "ack", "receipt", "content-length", "transaction", "durable"];
const REFUSED = new Set(["Bad CONNECT", "Version mismatch"]);

const encoder = new TextEncoder();
const decoder = new TextDecoder();
const uniqueId = () => Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("-");
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const wrong = (text) => new WherryError(text, { fatal: true });

/** Until a promise is settled, or the time is over. */
async function within(promise, ms) {
  let timer;
  await Promise.race([promise, new Promise((done) => (timer = setTimeout(done, ms)))]).catch(() => undefined);
  clearTimeout(timer);
}

// ------------------------------------------------------------------------------------------------------------- frames

const ESCAPES = { "\\": "\\\\", "\n": "\\n", "\r": "\\r", ":": "\\c" };
const MEANINGS = { "\\\\": "\\", "\\n": "\n", "\\r": "\r", "\\c": ":" };
const escaped = (text) => String(text).replace(/[\\\n\r:]/g, (found) => ESCAPES[found]);
const unescaped = (text) => text.replace(/\\./g, (found) => MEANINGS[found] ?? found);

function encodeFrame(command, headers, body = null) {
  const plain = command === "CONNECT"; // its headers mean what they say
  let head = command + "\n";
  let count = 1; // with content-length
  for (const [name, value] of Object.entries(headers)) {
    if (value === undefined || value === null) continue;
    checkHeader(name, value, plain);
    count += 1;
    head += plain ? `${name}:${value}\n` : `${escaped(name)}:${escaped(value)}\n`;
  }
  if (count > HEADERS_MAX) throw wrong(`${command} has ${count} headers; at most ${HEADERS_MAX} are allowed`);
  const start = encoder.encode(body === null ? `${head}\n` : `${head}content-length:${body.length}\n\n`);
  if (start.length > HEAD_BYTES_MAX) {
    throw wrong(`${command} has ${start.length} bytes of headers; at most ${HEAD_BYTES_MAX} are allowed`);
  }
  body ??= new Uint8Array(0);
  const frame = new Uint8Array(start.length + body.length + 1);
  frame.set(start);
  frame.set(body, start.length);
  return frame;
}

/** What would be no header there, and end the connection. */
function checkHeader(name, value, plain) {
  if (name === "") throw wrong("a header has no name");
  if (!["string", "number", "boolean", "bigint"].includes(typeof value)) {
    throw wrong(`the header ${name} is ${tagOf(value)}; allowed: a string, a number, a boolean`);
  }
  if (`${name}${value}`.includes("\0")) throw wrong(`the header ${name} has a NUL`);
  if (plain && /[\n\r]/.test(`${name}${value}`)) throw wrong(`the header ${name} has a line end`);
}

function checkOwn(headers, reserved, command) {
  for (const name of reserved) {
    if (headers[name] !== undefined) throw wrong(`the header ${name} of ${command} is not yours to give`);
  }
}

/** Bytes, in whatever pieces they come, to frames. */
class Parser {
  #buffer = new Uint8Array(0);
  #head = null;
  #from = 0;

  *feed(data) {
    const joined = new Uint8Array(this.#buffer.length + data.length);
    joined.set(this.#buffer);
    joined.set(data, this.#buffer.length);
    this.#buffer = joined;
    for (let frame = this.#next(); frame !== null; frame = this.#next()) yield frame;
  }

  #next() {
    if (this.#head === null) {
      let at = 0;
      while (at < this.#buffer.length && (this.#buffer[at] === 10 || this.#buffer[at] === 13)) at += 1;
      this.#take(at);
      const end = endOfHead(this.#buffer, Math.max(0, this.#from - 3));
      if (end < 0) {
        this.#from = this.#buffer.length;
        return null;
      }
      this.#head = parseHead(decoder.decode(this.#buffer.subarray(0, end)));
      this.#take(end);
    }
    const length = this.#head.headers["content-length"];
    const end = length === undefined ? this.#buffer.indexOf(0, this.#from) : Number(length);
    if (end < 0 || this.#buffer.length <= end) {
      this.#from = length === undefined ? this.#buffer.length : 0;
      return null;
    }
    const frame = { ...this.#head, body: this.#buffer.slice(0, end) };
    this.#head = null;
    this.#take(end + 1);
    return frame;
  }

  #take(count) {
    this.#buffer = this.#buffer.subarray(count);
    this.#from = count ? 0 : this.#from;
  }
}

/** The place behind the empty line that ends a head; -1 if it is not there. */
function endOfHead(buffer, from) {
  for (let at = buffer.indexOf(10, from); at >= 0; at = buffer.indexOf(10, at + 1)) {
    if (buffer[at + 1] === 10) return at + 2;
    if (buffer[at + 1] === 13 && buffer[at + 2] === 10) return at + 3;
  }
  return -1;
}

function parseHead(text) {
  const [command, ...lines] = text.trimEnd().split(/\r?\n/);
  const headers = Object.create(null);
  for (const line of lines) {
    const colon = line.indexOf(":");
    const [name, value] = [line.slice(0, colon), line.slice(colon + 1)];
    const key = command === "CONNECTED" ? name : unescaped(name);
    headers[key] ??= command === "CONNECTED" ? value : unescaped(value);
  }
  return { command, headers };
}

// -------------------------------------------------------------------------------------------------------------- roads
//
// A road carries bytes: send(bytes), close(); it calls on.data(bytes) and, once, on.lost(error).

function openSocket(Socket, url, on, patienceMs) {
  if (!Socket) throw new WherryError("there is no WebSocket here");
  return new Promise((done, failed) => {
    const socket = new Socket(url.replace(/^http/, "ws") + "/ws", ["v12.stomp"]);
    socket.binaryType = "arraybuffer";
    let isOpen = false;
    let isOver = false;
    const over = (why) => {
      if (isOver) return;
      isOver = true;
      clearTimeout(timer);
      if (isOpen) on.lost(new WherryError(why));
      else failed(new WherryError(why));
    };
    const timer = setTimeout(() => {
      over(`no WebSocket within ${patienceMs} ms`);
      socket.close();
    }, patienceMs);
    socket.onopen = () => {
      clearTimeout(timer);
      if (isOver) return;
      isOpen = true;
      done({
        name: "websocket",
        send: (bytes) => socket.readyState === 1 && socket.send(bytes),
        close: () => {
          isOver = true;
          socket.close();
        },
      });
    };
    socket.onmessage = ({ data }) => {
      if (!isOver) on.data(typeof data === "string" ? encoder.encode(data) : new Uint8Array(data));
    };
    socket.onerror = () => over("the WebSocket failed");
    socket.onclose = ({ code, reason }) => over(`the WebSocket closed (${code}${reason ? `, ${reason}` : ""})`);
  });
}

/** A session that is polled. Places in bytes make repeats harmless: see docs/browser.md. */
class PollingRoad {
  name = "polling";
  #fetch;
  #url;
  #token;
  #on;
  #queue = [];
  #sent = 0;
  #isPosting = false;
  #isOver = false;
  #stop = new AbortController();

  static async open(fetch, url, on, patienceMs) {
    const signal = AbortSignal.timeout(patienceMs);
    const answer = await fetch(`${url}/v1/stomp/sessions`, { method: "POST", cache: "no-store", signal });
    if (!answer.ok) throw new WherryError(`polling was refused (${answer.status})`, { detail: await detailOf(answer) });
    const { id, token } = await answer.json();
    const road = new PollingRoad();
    road.#fetch = fetch;
    road.#url = `${url}/v1/stomp/sessions/${id}`;
    road.#token = token;
    road.#on = on;
    road.#poll();
    return road;
  }

  send(bytes) {
    this.#queue.push(bytes);
    if (!this.#isPosting) this.#post();
  }

  close() {
    this.#isOver = true;
    this.#stop.abort();
    const goodbye = { method: "DELETE", headers: { "Wherry-Session": this.#token }, keepalive: true };
    this.#fetch(this.#url, goodbye).catch(() => undefined);
  }

  async #post() {
    this.#isPosting = true;
    await null; // what is sent in this turn travels together
    while (this.#queue.length && !this.#isOver) {
      const body = this.#joined();
      const answer = await this.#call("POST", `?at=${this.#sent}`, body);
      if (answer === null) break;
      this.#sent += body.length;
    }
    this.#isPosting = false;
  }

  /** As much of the queue as one call takes; a larger frame goes in parts. */
  #joined() {
    const parts = [];
    let size = 0;
    while (this.#queue.length && size < POST_BYTES) {
      const part = this.#queue[0].subarray(0, POST_BYTES - size);
      if (part.length === this.#queue[0].length) this.#queue.shift();
      else this.#queue[0] = this.#queue[0].subarray(part.length);
      parts.push(part);
      size += part.length;
    }
    const body = new Uint8Array(size);
    let at = 0;
    for (const part of parts) {
      body.set(part, at);
      at += part.length;
    }
    return body;
  }

  async #poll() {
    let after = 0;
    while (!this.#isOver) {
      const answer = await this.#call("GET", `?after=${after}&wait_ms=${POLL_MS}`, undefined, true);
      if (answer === null || this.#isOver) return;
      after = Number(answer.next);
      if (answer.body.length) this.#on.data(answer.body);
      if (answer.isOver) this.#lost(new WherryError("the session is over"));
    }
  }

  /** One call, tried again with the same places while it fails; null when the session is lost. */
  async #call(method, query, body, reads = false) {
    const headers = { "Wherry-Session": this.#token };
    if (body) headers["Content-Type"] = "application/octet-stream";
    for (let attempt = 0; !this.#isOver; attempt += 1) {
      let why;
      try {
        const signal = AbortSignal.any([this.#stop.signal, AbortSignal.timeout(POLL_MS + 15_000)]);
        const target = `${this.#url}/frames${query}`;
        const answer = await this.#fetch(target, { method, headers, body, signal, cache: "no-store" });
        if (answer.ok) {
          return {
            body: reads ? new Uint8Array(await answer.arrayBuffer()) : null,
            next: answer.headers.get("wherry-next"),
            isOver: answer.headers.get("wherry-over") === "true",
          };
        }
        why = new WherryError(`${method} was answered ${answer.status}`, { detail: await detailOf(answer) });
        if (answer.status < 500 && answer.status !== 429 && answer.status !== 408) attempt = Infinity;
      } catch (fault) {
        why = new WherryError(`${method} failed`, { detail: String(fault) });
      }
      if (attempt >= 4) {
        this.#lost(why);
        return null;
      }
      await sleep(200 * 2 ** attempt);
    }
    return null;
  }

  #lost(why) {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#stop.abort();
    this.#on.lost(why);
  }
}

async function detailOf(answer) {
  try {
    return (await answer.json()).detail ?? "";
  } catch {
    return "";
  }
}

// ----------------------------------------------------------------------------------------------------------- messages

/** A message. It is acked or nacked once, on the connection that it came by; else it comes again. */
export class Message {
  #settle;

  constructor(frame, settle) {
    this.headers = frame.headers;
    this.body = frame.body;
    this.destination = frame.headers.destination;
    this.id = frame.headers["message-id"];
    this.redelivered = frame.headers.redelivered === "true";
    this.#settle = settle;
  }

  text() {
    return decoder.decode(this.body);
  }

  json() {
    return JSON.parse(this.text());
  }

  /** Done with it. False if that comes too late, or nobody asked. */
  ack() {
    return this.#settled("ACK", {});
  }

  /** Not done: it comes again, or with `{ requeue: false }` is a dead letter. */
  nack({ requeue = true } = {}) {
    return this.#settled("NACK", { requeue });
  }

  #settled(command, headers) {
    const settle = this.#settle;
    this.#settle = null;
    return settle === null || settle === undefined ? false : settle(command, headers);
  }

  get isSettled() {
    return this.#settle === null;
  }
}

/** What `subscribe` gives: it lives through reconnects until `unsubscribe()`. */
class Subscription {
  #client;
  #isInside = false; // whether the handler is being called, up to its first `await`
  #isWorking = false;
  #left = null;
  #line = Promise.resolve();
  #waiting = []; // messages behind the one that is handled
  #run = 0;
  #hand = new Map(); // what is not settled on connection #run: its ack and its publish id, in order
  #seen = new Map(); // publish ids: 0 once acked, else the connection on which it is in hand

  constructor(client, destination, handler, options) {
    this.#client = client;
    this.destination = destination;
    this.handler = handler;
    const { durable = false, id, headers = {}, bufferMessages, bufferBytes, prefetch } = options;
    if (typeof handler !== "function") throw wrong(`the handler is ${tagOf(handler)}; allowed: a function`);
    if (durable && id === undefined) throw wrong("a durable subscription needs an id that stays the same");
    checkOwn(headers, OF_SUBSCRIBE, "SUBSCRIBE");
    this.id = id ?? `wherry-${uniqueId()}`;
    this.ack = options.ack ?? (durable || !destination.startsWith("/topic/") ? "handler" : "auto");
    if (!ACK_MODES.includes(this.ack)) throw wrong(`ack is ${this.ack}; allowed: ${ACK_MODES.join(", ")}`);
    const count = prefetch ?? (this.ack === "auto" ? undefined : Math.min(bufferMessages ?? PREFETCH, PREFETCH));
    this.headers = {
      destination,
      id: this.id,
      ack: this.ack === "handler" ? "client-individual" : this.ack,
      "prefetch-count": count,
      "wherry-buffer-messages": bufferMessages,
      "wherry-buffer-bytes": bufferBytes,
      ...(durable ? { durable: true, "auto-delete": false } : {}),
      ...headers,
    };
    encodeFrame("SUBSCRIBE", this.headers); // what is wrong with them is told here
    /** Resolves when the broker has confirmed it for the first time. */
    this.ready = new Promise((done, failed) => Object.assign(this, { confirmed: done, refused: failed }));
    this.ready.catch(() => undefined);
    this.isDurable = durable && !destination.startsWith("/queue/"); // a queue is nobody's to forget
    this.isOver = false; // no handler begins any more
    this.isGone = false; // and nothing can be settled
    this.isForgotten = false;
    this.run = 0; // the connection on which it was asked for
  }

  /**
   * No more messages. A durable one is kept by the broker unless `{ forget: true }`. The handler that runs may finish and
   * ack within `withinMs`; called by that handler itself it resolves at once, and the rest follows the ack.
   */
  unsubscribe({ forget = false, withinMs = 5_000 } = {}) {
    const isMore = forget && !this.isForgotten && this.isDurable;
    this.isForgotten ||= isMore;
    if (!this.isOver) {
      this.isOver = true;
      this.refused(new WherryError(`${this.id} was unsubscribed`));
      this.#left = within(this.#line, withinMs).then(() => this.#client._leave(this));
    } else if (isMore) this.#left = this.#left.catch(() => undefined).then(() => this.#client._leave(this));
    this.#left.catch(() => undefined);
    return this.#isInside ? Promise.resolve() : this.#left;
  }

  /** Whether nothing would come again if this connection went now. */
  _isIdle(run) {
    return run !== this.#run || this.#hand.size === 0;
  }

  /** `link`: the connection that it came by; `link.settle` is false once that is gone. */
  _arrived(frame, link) {
    if (this.isOver) return; // it goes back with the UNSUBSCRIBE
    if (link.run !== this.#run) {
      this.#run = link.run;
      this.#hand.clear();
      this.#waiting.length = 0; // they come again
    }
    if (this.#isRepeat(frame)) {
      // With `client` an ack would be one of all before it; the next real one is one of this.
      if (this.ack !== "auto" && this.ack !== "client") link.settle("ACK", frame, {});
      return;
    }
    this.#remember(frame);
    const settle = (command, headers) => !this.isGone && this.#settled(command, frame, headers, link);
    const message = new Message(frame, this.ack === "auto" ? undefined : settle);
    if (this.ack !== "handler") return this.#called(message);
    this.#waiting.push({ message, link });
    if (!this.#isWorking) this.#line = this.#work();
  }

  /**
   * A publish that was sent twice, since its confirmation was lost: its other copy is in hand, or was acked. What comes
   * again otherwise (nacked, redriven, from a connection that was lost) is none.
   */
  #isRepeat(frame) {
    const id = frame.headers[PUBLISH_ID];
    if (id === undefined || frame.headers.redelivered === "true") return false;
    const run = this.#seen.get(id);
    return run === 0 || run === this.#run;
  }

  #remember(frame) {
    const id = frame.headers[PUBLISH_ID];
    if (this.ack !== "auto") this.#hand.set(frame.headers.ack, id);
    if (id === undefined) return;
    this.#seen.set(id, this.ack === "auto" ? 0 : this.#run);
    if (this.#seen.size > SEEN_MAX) this.#seen.delete(this.#seen.keys().next().value);
  }

  #settled(command, frame, headers, link) {
    if (!link.settle(command, frame, headers)) return false;
    const mine = frame.headers.ack;
    const all = this.ack === "client" ? [...this.#hand.keys()] : [mine];
    for (const tag of all.slice(0, all.indexOf(mine) + 1)) {
      const id = this.#hand.get(tag);
      this.#hand.delete(tag);
      if (id === undefined) continue;
      if (command === "ACK") this.#seen.set(id, 0);
      else this.#seen.delete(id);
    }
    return true;
  }

  /** One message after the other. */
  async #work() {
    this.#isWorking = true;
    await null; // what came together is heard first
    while (this.#waiting.length && !this.isOver) {
      const { message, link } = this.#waiting.shift();
      if (link.isOpen()) await this.#handled(message);
    }
    this.#waiting.length = 0;
    this.#isWorking = false;
  }

  async #handled(message) {
    try {
      await this.#begun(message);
      if (!message.isSettled) message.ack();
    } catch (fault) {
      if (!message.isSettled) message.nack();
      this.#client._tell("error", new WherryError("a handler failed", { detail: String(fault?.stack ?? fault) }));
    }
  }

  #begun(message) {
    this.#isInside = true;
    try {
      return this.handler(message);
    } finally {
      this.#isInside = false;
    }
  }

  #called(message) {
    new Promise((done) => done(this.handler(message))).catch((fault) => {
      this.#client._tell("error", new WherryError("a handler failed", { detail: String(fault?.stack ?? fault) }));
    });
  }
}

// ------------------------------------------------------------------------------------------------------------- client

/**
 * connecting ──► open ──► waiting ──► connecting …        closed: by `close()`, or refused for good
 */
export class Client extends EventTarget {
  #options;
  #url;
  #road = null;
  #run = 0;
  #subscriptions = new Map();
  #publishes = new Map();
  #publishBytes = 0;
  #receipts = new Map();
  #receipt = 0;
  #attempt = 0;
  #heard = 0;
  #socketFailures = 0;
  #socketTriedAt = 0;
  #isHeldBack = false; // publishes wait until one that goes alone is confirmed
  #timer = null;
  #probeTimer = null;
  #isClosing = false;
  #giveUp = null;
  #opened;

  constructor(options = {}) {
    super();
    this.#options = { ...DEFAULTS, ...options };
    const { road } = this.#options;
    if (!ROADS.includes(road)) throw wrong(`road is ${road}; allowed: ${ROADS.join(", ")}`);
    this.#url = urlOf(options.url);
    this.state = "connecting";
    this.#opened = {};
    this.#opened.promise = new Promise((done, failed) => Object.assign(this.#opened, { done, failed }));
    this.#opened.promise.catch(() => undefined);
    globalThis.addEventListener?.("online", this.#hurry);
    globalThis.addEventListener?.("pagehide", this.#hide);
    this.#connect();
  }

  /** Which road it takes: websocket or polling; null while there is none. */
  get road() {
    return this.state === "open" ? this.#road.name : null;
  }

  /** Publishes that are not confirmed. */
  get pending() {
    return this.#publishes.size;
  }

  /** Resolves at the first connection; rejects if it is refused for good. */
  opened() {
    return this.#opened.promise;
  }

  /**
   * Publish, durably unless `persistent: "false"`. Resolves when the broker has stored it. A string or bytes go as they
   * are, anything else as JSON. What is not confirmed when a connection breaks is sent again on the next one.
   */
  publish(destination, body = "", headers = {}) {
    return new Promise((done, failed) => {
      if (this.state === "closed") throw new WherryError("this client is closed");
      checkOwn(headers, OF_SEND, "SEND");
      const [bytes, type] = bodyOf(body);
      if (bytes.length > BODY_BYTES_MAX) {
        throw wrong(`the body has ${bytes.length} bytes; at most ${BODY_BYTES_MAX} are allowed`);
      }
      const { bufferMessages, bufferBytes } = this.#options;
      if (this.#publishes.size >= bufferMessages || this.#publishBytes + bytes.length > bufferBytes) {
        const held = `${this.#publishes.size} messages, ${this.#publishBytes} bytes`;
        throw new WherryError("too much is not confirmed yet", { detail: held });
      }
      const receipt = `p${(this.#receipt += 1)}`;
      const said = { persistent: "true", "content-type": type, [PUBLISH_ID]: uniqueId(), ...headers };
      const frame = encodeFrame("SEND", { destination, ...said, receipt }, bytes);
      const publish = { frame, size: bytes.length, done, failed, sends: 0, run: 0 };
      this.#publishes.set(receipt, publish);
      this.#publishBytes += publish.size;
      if (this.state === "open" && !this.#isHeldBack) this.#send(publish);
    });
  }

  async publishJson(destination, value, headers = {}) {
    const text = typeof value === "string" ? JSON.stringify(value) : jsonOf(value);
    await this.publish(destination, text, { "content-type": "application/json", ...headers });
  }

  /**
   * Hand messages to `handler`, one after the other with `ack: "handler"`: acked when it is done, nacked when it throws.
   * With `durable` and an `id` nothing is missed while the page is away.
   */
  subscribe(destination, handler, options = {}) {
    if (this.state === "closed") throw new WherryError("this client is closed");
    const subscription = new Subscription(this, destination, handler, options);
    if (this.#subscriptions.has(subscription.id)) throw new WherryError(`subscription ${subscription.id} exists`);
    this.#subscriptions.set(subscription.id, subscription);
    if (this.state === "open") this.#subscribe(subscription);
    return subscription;
  }

  /** Say goodbye, once what was published is confirmed or `withinMs` are over. */
  async close({ withinMs = 5_000 } = {}) {
    const until = Date.now() + withinMs;
    while (this.#publishes.size && this.state !== "closed" && Date.now() < until) await sleep(20);
    this.#isClosing = true;
    if (this.state === "open") await within(this.#ask("DISCONNECT", {}), Math.min(withinMs, PARTING_MS));
    this.#end(new WherryError("this client is closed", { fatal: true }));
  }

  // -------------------------------------------------------------------------------------------------- the connection

  async #connect() {
    const run = (this.#run += 1);
    this.#turn("connecting");
    try {
      await this.#open(run);
    } catch (fault) {
      if (run === this.#run) this.#lost(run, fault);
    }
  }

  /** The first road that leads to a CONNECTED. */
  async #open(run) {
    const { road, connectMs } = this.#options;
    const fetch = this.#options.fetch ?? globalThis.fetch.bind(globalThis);
    const socket = (on) => this.#socket(on);
    const polling = (on) => PollingRoad.open(fetch, this.#url, on, connectMs);
    let roads = { auto: [socket, polling], websocket: [socket], polling: [polling] }[road];
    if (road === "auto" && this.#probeInMs() > 0) roads = [polling];
    let why;
    for (const each of roads) {
      try {
        await this.#greet(run, each, connectMs);
        if (each === socket) this.#socketFailures = 0;
        else if (roads.length > 1) this.#socketFailures += 1;
        if (each === polling && road === "auto" && run === this.#run) this.#probeLater(run);
        return;
      } catch (fault) {
        why = fault;
        if (fault.fatal || run !== this.#run) break;
      }
    }
    this.#socketFailures = 0; // nothing works: that says nothing of WebSockets
    throw why;
  }

  async #socket(on) {
    this.#socketTriedAt = Date.now();
    return openSocket(this.#options.WebSocket ?? globalThis.WebSocket, this.#url, on, this.#options.connectMs);
  }

  /** Until the next WebSocket may be tried, where only polling worked: the network may be another one by then. */
  #probeInMs() {
    if (this.#socketFailures === 0) return 0;
    const { probeMs } = this.#options;
    const pauseMs = this.#socketFailures < SOCKET_FAILURES_MAX ? Math.min(PROBE_SOON_MS, probeMs) : probeMs;
    return Math.max(0, this.#socketTriedAt + pauseMs - Date.now());
  }

  /** While it polls: go back to a WebSocket once one opens and nothing is under way that would come twice. */
  #probeLater(run) {
    this.#probeTimer = setTimeout(async () => {
      const road = await this.#socket({ data: () => undefined, lost: () => undefined }).catch(() => null);
      road?.close();
      if (run !== this.#run) return;
      if (road === null) this.#socketFailures += 1;
      else if (this.#isIdle()) return this.#changeRoad(run);
      this.#probeLater(run);
    }, Math.max(this.#probeInMs(), 10));
    this.#probeTimer.unref?.();
  }

  /** What is on the way arrives before the receipt; what is published meanwhile is sent on the next connection. */
  async #changeRoad(run) {
    await within(this.#ask("DISCONNECT", {}), PARTING_MS);
    if (run !== this.#run) return;
    this.#socketTriedAt = 0; // so it is tried at once
    this.#lost(run, new WherryError("a WebSocket opens again"));
    this.#hurry();
  }

  #isIdle() {
    if (this.#publishes.size || this.#receipts.size) return false;
    return [...this.#subscriptions.values()].every((each) => each._isIdle(this.#run));
  }

  /** Open a road and say CONNECT; what comes behind the CONNECTED is heard in the same turn. */
  #greet(run, open, patienceMs) {
    return new Promise((done, failed) => {
      const parser = new Parser();
      let road = null;
      let timer = null;
      let isOpen = false;
      const refuse = (why) => {
        clearTimeout(timer);
        road?.close();
        failed(why);
      };
      const heard = (frame) => {
        if (isOpen) this.#frame(run, frame);
        else if (frame.command === "CONNECTED") {
          isOpen = true;
          clearTimeout(timer);
          this.#road = road;
          this.#isOpen(run);
          done();
        } else if (frame.command === "ERROR") refuse(refusalOf(frame));
      };
      const on = {
        data: (bytes) => {
          this.#heard = Date.now();
          for (const frame of parser.feed(bytes)) if (run === this.#run) heard(frame);
        },
        lost: (why) => (isOpen ? this.#lost(run, why) : refuse(why)),
      };
      this.#giveUp = refuse;
      open(on).then((opened) => {
        road = opened;
        if (run !== this.#run) return refuse(new WherryError("given up"));
        timer = setTimeout(() => refuse(new WherryError(`no CONNECTED within ${patienceMs} ms`)), patienceMs);
        road.send(this.#connectFrame());
      }).catch(refuse);
    });
  }

  #connectFrame() {
    const { host, key, login } = this.#options;
    const who = key === undefined ? {} : { login: login ?? "wherry.js", passcode: key };
    const beats = `0,${HEART_BEAT_MS}`; // ours would be late in a hidden tab; that we live, the road itself tells
    return encodeFrame("CONNECT", { "accept-version": "1.2", host, "heart-beat": beats, ...who });
  }

  #isOpen(run) {
    this.state = "open";
    this.#heard = Date.now();
    const opened = Date.now();
    this.#timer = setInterval(() => {
      if (Date.now() - opened > HEART_BEAT_MS) this.#attempt = 0;
      const silent = Date.now() - this.#heard;
      if (this.#road.name === "websocket" && silent > 2.5 * HEART_BEAT_MS) {
        this.#lost(run, new WherryError(`nothing was heard for ${silent} ms`));
      }
    }, HEART_BEAT_MS / 2);
    this.#timer.unref?.();
    for (const subscription of this.#subscriptions.values()) if (!subscription.isOver) this.#subscribe(subscription);
    this.#sendAll();
    this.#opened.done(this);
    this.#turn("open"); // last: what its listeners say is sent as they say it
  }

  #lost(run, why) {
    if (run !== this.#run || this.state === "closed") return;
    if (why.fatal || this.#isClosing) return this.#end(why);
    this.#refuseOldest(run, why);
    this.#drop();
    this.#run += 1;
    const { backoffMs, backoffCapMs } = this.#options;
    const most = Math.min(backoffCapMs, backoffMs * 2 ** this.#attempt);
    const retryMs = Math.round(most * (0.5 + Math.random() / 2));
    this.#attempt = Math.min(this.#attempt + 1, 30);
    this.#timer = setTimeout(() => this.#connect(), retryMs); // before its listeners, who may close it
    this.#turn("waiting", { error: why, retryMs });
  }

  /** The broker takes them in order: it is the oldest that a connection was lost with, if one of them is to blame. */
  #refuseOldest(run, why) {
    const [receipt, oldest] = this.#publishes.entries().next().value ?? [];
    if (oldest?.run !== run || oldest.sends < SENDS_MAX) return;
    const text = `the connection was lost each of the ${oldest.sends} times that it was sent`;
    this.#settle(receipt).failed(new WherryError(text, { fatal: true, detail: why.message }));
  }

  #drop() {
    if (this.#road === null) this.#giveUp?.(new WherryError("given up"));
    clearInterval(this.#timer);
    clearTimeout(this.#timer);
    clearTimeout(this.#probeTimer);
    this.#road?.close();
    this.#road = null;
    this.#isHeldBack = false;
    for (const { failed } of this.#receipts.values()) failed(new WherryError("the connection was lost"));
    this.#receipts.clear();
  }

  #hurry = () => {
    if (this.state !== "waiting") return;
    clearTimeout(this.#timer);
    this.#connect();
  };

  /** A session that is polled would live on without its page. A page that is shown again comes back. */
  #hide = () => {
    if (this.road === "polling") this.#lost(this.#run, new WherryError("the page was left"));
  };

  #end(why) {
    if (this.state === "closed") return;
    this.#run += 1;
    this.#drop();
    globalThis.removeEventListener?.("online", this.#hurry);
    globalThis.removeEventListener?.("pagehide", this.#hide);
    this.#turn("closed", { error: why });
    this.#opened.failed(why);
    for (const { failed } of this.#publishes.values()) failed(why);
    for (const { refused } of this.#subscriptions.values()) refused(why);
    this.#publishes.clear();
    this.#publishBytes = 0;
    this.#subscriptions.clear();
  }

  #turn(state, more = {}) {
    this.state = state;
    this._tell("state", { state, road: this.road, ...more });
  }

  _tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  // --------------------------------------------------------------------------------------------------------- frames

  #send(publish) {
    publish.sends += 1;
    publish.run = this.#run;
    this.#road.send(publish.frame);
  }

  /** What is not sent on this connection. One that several connections were lost with goes alone. */
  #sendAll() {
    this.#isHeldBack = false;
    for (const publish of this.#publishes.values()) {
      if (publish.run !== this.#run) this.#send(publish);
      this.#isHeldBack = publish.sends > SENDS_TOGETHER;
      if (this.#isHeldBack) return;
    }
  }

  /** A frame with a receipt. Rejects when the connection is lost before it came. */
  #ask(command, headers) {
    return new Promise((done, failed) => {
      const receipt = `r${(this.#receipt += 1)}`;
      const frame = encodeFrame(command, { ...headers, receipt });
      this.#receipts.set(receipt, { done, failed });
      this.#road.send(frame);
    });
  }

  #subscribe(subscription) {
    subscription.run = this.#run;
    this.#ask("SUBSCRIBE", subscription.headers).then(subscription.confirmed, (fault) => {
      if (!fault.fatal) return; // it is subscribed to again
      this.#subscriptions.delete(subscription.id);
      subscription.refused(fault);
    });
  }

  /** Its id is free again when this resolves: until then messages of it may come. */
  async _leave(subscription) {
    subscription.isGone = true;
    const { id, destination, durable, "x-queue-name": queue } = subscription.headers;
    const left = () => (subscription.isForgotten ? { id, destination, durable, "x-queue-name": queue } : { id });
    const isKnown = this.#subscriptions.get(id) === subscription;
    try {
      while (this.state !== "closed") {
        const isHere = isKnown && this.state === "open" && subscription.run === this.#run;
        if (!isHere && !subscription.isForgotten) return; // a connection that is lost has unsubscribed
        if (this.state !== "open") await this.#nextState();
        else if (await this.#isLeft(left())) return;
      }
      if (subscription.isForgotten) throw new WherryError(`${id} is not forgotten: this client is closed`);
    } finally {
      if (this.#subscriptions.get(id) === subscription) this.#subscriptions.delete(id);
    }
  }

  /** UNSUBSCRIBE; with `durable` the broker forgets the queue too. False if the connection was lost meanwhile. */
  async #isLeft(headers) {
    try {
      await this.#ask("UNSUBSCRIBE", headers);
      return true;
    } catch (fault) {
      if (fault.fatal) throw fault;
      return false;
    }
  }

  #nextState() {
    return new Promise((done) => this.addEventListener("state", done, { once: true }));
  }

  #frame(run, frame) {
    if (frame.command === "MESSAGE") this.#message(run, frame);
    else if (frame.command === "RECEIPT") this.#confirmed(frame.headers["receipt-id"]);
    else if (frame.command === "ERROR") this.#failed(run, frame);
  }

  #message(run, frame) {
    const subscription = this.#subscriptions.get(frame.headers.subscription);
    subscription?._arrived(frame, {
      run,
      isOpen: () => run === this.#run && this.state === "open",
      settle: (command, { headers: { ack } }, headers) => {
        if (run !== this.#run || this.state !== "open") return false;
        this.#road.send(encodeFrame(command, { id: ack, ...headers }));
        return true;
      },
    });
  }

  #confirmed(receipt) {
    this.#settle(receipt)?.done();
    if (this.#isHeldBack) this.#sendAll();
    const asked = this.#receipts.get(receipt);
    this.#receipts.delete(receipt);
    asked?.done();
  }

  #settle(receipt) {
    const publish = this.#publishes.get(receipt);
    if (publish === undefined) return undefined;
    this.#publishes.delete(receipt);
    this.#publishBytes -= publish.size;
    return publish;
  }

  /** ERROR ends a session. Whose fault it names is not tried again; what else was under way is. */
  #failed(run, frame) {
    const said = new WherryError(frame.headers.message ?? "ERROR", { detail: reasonOf(frame) });
    const receipt = frame.headers["receipt-id"];
    const refusal = new WherryError(said.message, { fatal: true });
    this.#settle(receipt)?.failed(refusal);
    const asked = this.#receipts.get(receipt);
    this.#receipts.delete(receipt);
    asked?.failed(refusal);
    this._tell("error", said);
    this.#lost(run, said);
  }
}

function refusalOf(frame) {
  const text = frame.headers.message ?? "refused";
  return new WherryError(text, { fatal: REFUSED.has(text), detail: reasonOf(frame) });
}

/** What an ERROR says beside its `message`. */
function reasonOf(frame) {
  const said = [decoder.decode(frame.body).trim(), frame.headers.explanation];
  return said.filter(Boolean).join("; ");
}

function bodyOf(body) {
  if (typeof body === "string") return [encoder.encode(body), "text/plain"];
  if (body instanceof Uint8Array) return [body, undefined];
  if (body instanceof ArrayBuffer) return [new Uint8Array(body), undefined];
  if (ArrayBuffer.isView(body)) return [new Uint8Array(body.buffer, body.byteOffset, body.byteLength), undefined];
  return [encoder.encode(jsonOf(body)), "application/json"];
}

/** A Blob, a Map, a promise and their like would be `{}`: they are refused. */
function jsonOf(value) {
  const isJson = ["Object", "Array", "Null", "Number", "Boolean"].includes(tagOf(value));
  if (!isJson && typeof value?.toJSON !== "function") {
    throw wrong(`the body is ${tagOf(value)}; allowed: a string, bytes, or what JSON can say`);
  }
  return JSON.stringify(value);
}

/** What a value is, in one word, as in Map. */
function tagOf(value) {
  return Object.prototype.toString.call(value).slice(8, -1);
}

/** Where the broker is. A page in a sandbox or of a file has no origin: it says "null". */
function urlOf(given) {
  const origin = globalThis.location?.origin;
  const here = origin === "null" ? undefined : origin;
  if (!(given ?? here)) throw wrong("url is missing: where is the broker?");
  let url;
  try {
    url = new URL(given ?? here, here).href.replace(/^ws/, "http").replace(/\/+$/, "");
  } catch {
    throw wrong("url is none; allowed: one as in https://mq.example.org");
  }
  if (!/^https?:/.test(url)) throw wrong(`url begins with ${url.split(":")[0]}; allowed: https, http, wss, ws`);
  if (/[?#]|\/\/[^/]*@/.test(url)) throw wrong("a url has no query and no secrets; give `key`");
  return url;
}
