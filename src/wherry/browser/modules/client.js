/** The client: its connection and its state, what it publishes and subscribes to. */

import { WherryError } from "./errors.js";
import { Parser, encodeFrame, reasonOf, refusalOf } from "./frames.js";
import { jsonOf } from "./messages.js";
import { checked } from "./options.js";
import { Publishes } from "./publishes.js";
import { Subscription } from "./subscription.js";
import { Transports } from "./transports.js";
import { sleep, within } from "./waits.js";

const HEART_BEAT_MS = 10_000;
const DISCONNECT_MS = 1_000;

/** A client that connects now and stays connected until `close()`. */
export function connect(options = {}) {
  return new Client(options);
}

/**
 * connecting ──► open ──► waiting ──► connecting …        closed: by `close()`, or refused for good
 */
export class Client extends EventTarget {
  #options;
  #transports;
  #transport = null;
  #run = 0; // counts connections: what belongs to an earlier one is ignored
  #subscriptions = new Map();
  #publishes;
  #receipts = new Map(); // of frames other than SEND
  #receipt = 0;
  #attempt = 0;
  #receivedAt = 0;
  #timer = null;
  #probeTimer = null;
  #isClosing = false;
  #giveUp = null;
  #opened;

  constructor(options = {}) {
    super();
    this.#options = checked(options);
    this.#transports = new Transports(this.#options);
    this.#publishes = new Publishes(this.#options);
    this.state = "connecting";
    this.#opened = {};
    this.#opened.promise = new Promise((done, failed) => Object.assign(this.#opened, { done, failed }));
    this.#opened.promise.catch(() => undefined);
    globalThis.addEventListener?.("online", this.#reconnectNow);
    globalThis.addEventListener?.("pagehide", this.#hide);
    this.#connect();
  }

  /** The transport that it uses: websocket or polling; null while there is none. */
  get transport() {
    return this.state === "open" ? this.#transport.name : null;
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
      const publish = this.#publishes.add(destination, body, headers, { done, failed });
      if (this.state === "open") this.#publishes.send(publish, this.#run, this.#transport);
    });
  }

  async publishJson(destination, value, headers = {}) {
    const text = typeof value === "string" ? JSON.stringify(value) : jsonOf(value);
    await this.publish(destination, text, { "content-type": "application/json", ...headers });
  }

  /**
   * Call `handler` with messages. With `ack: "handler"` one after the other: acked when it is done, nacked if it throws.
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

  /** Disconnect, once what was published is confirmed or `withinMs` are over. */
  async close({ withinMs = 5_000 } = {}) {
    const until = Date.now() + withinMs;
    while (this.#publishes.size && this.state !== "closed" && Date.now() < until) await sleep(20);
    this.#isClosing = true;
    if (this.state === "open") await within(this.#ask("DISCONNECT", {}), Math.min(withinMs, DISCONNECT_MS));
    this.#end(new WherryError("this client is closed", { fatal: true }));
  }

  // -------------------------------------------------------------------------------------------------- the connection

  async #connect() {
    const run = (this.#run += 1);
    this.#setState("connecting");
    try {
      const probes = await this.#transports.connect((open) => this.#handshake(run, open), () => run !== this.#run);
      if (probes && run === this.#run) this.#probeLater(run);
    } catch (fault) {
      if (run === this.#run) this.#lost(run, fault);
    }
  }

  /** While it polls: change to a WebSocket once one opens and nothing is under way that would come twice. */
  #probeLater(run) {
    this.#probeTimer = setTimeout(async () => {
      const opens = await this.#transports.probe();
      if (run !== this.#run) return;
      if (!opens) this.#transports.probeFailed();
      else if (this.#isIdle()) return this.#changeTransport(run);
      this.#probeLater(run);
    }, Math.max(this.#transports.probeInMs(), 10));
    this.#probeTimer.unref?.();
  }

  /** Messages on the way arrive before the receipt; what is published meanwhile is sent on the next connection. */
  async #changeTransport(run) {
    await within(this.#ask("DISCONNECT", {}), DISCONNECT_MS);
    if (run !== this.#run) return;
    this.#transports.preferSocket();
    this.#lost(run, new WherryError("a WebSocket opens again"));
    this.#reconnectNow();
  }

  #isIdle() {
    if (this.#publishes.size || this.#receipts.size) return false;
    return [...this.#subscriptions.values()].every((each) => each._isIdle(this.#run));
  }

  /** Open a transport and send CONNECT; frames that come with the CONNECTED are handled in the same turn. */
  #handshake(run, open) {
    const { connectMs } = this.#options;
    return new Promise((done, failed) => {
      const parser = new Parser();
      let transport = null;
      let timer = null;
      let isOpen = false;
      const refuse = (why) => {
        clearTimeout(timer);
        transport?.close();
        failed(why);
      };
      const received = (frame) => {
        if (isOpen) this.#frame(run, frame);
        else if (frame.command === "CONNECTED") {
          isOpen = true;
          clearTimeout(timer);
          this.#transport = transport;
          this.#begin(run);
          done();
        } else if (frame.command === "ERROR") refuse(refusalOf(frame));
      };
      const on = {
        data: (bytes) => {
          this.#receivedAt = Date.now();
          for (const frame of parser.feed(bytes)) if (run === this.#run) received(frame);
        },
        lost: (why) => (isOpen ? this.#lost(run, why) : refuse(why)),
      };
      this.#giveUp = refuse;
      open(on).then((opened) => {
        transport = opened;
        if (run !== this.#run) return refuse(new WherryError("given up"));
        timer = setTimeout(() => refuse(new WherryError(`no CONNECTED within ${connectMs} ms`)), connectMs);
        transport.send(this.#connectFrame());
      }).catch(refuse);
    });
  }

  #connectFrame() {
    const { host, key, login } = this.#options;
    const who = key === undefined ? {} : { login: login ?? "wherry.js", passcode: key };
    const beats = `0,${HEART_BEAT_MS}`; // ours would be late in a hidden tab, and a lost transport is noticed
    return encodeFrame("CONNECT", { "accept-version": "1.2", host, "heart-beat": beats, ...who });
  }

  #begin(run) {
    this.state = "open";
    this.#receivedAt = Date.now();
    const opened = Date.now();
    this.#timer = setInterval(() => {
      if (Date.now() - opened > HEART_BEAT_MS) this.#attempt = 0;
      const silent = Date.now() - this.#receivedAt;
      if (this.#transport.name === "websocket" && silent > 2.5 * HEART_BEAT_MS) {
        this.#lost(run, new WherryError(`nothing was received for ${silent} ms`));
      }
    }, HEART_BEAT_MS / 2);
    this.#timer.unref?.();
    for (const subscription of this.#subscriptions.values()) if (!subscription.isOver) this.#subscribe(subscription);
    this.#publishes.sendAll(this.#run, this.#transport);
    this.#opened.done(this);
    this.#setState("open"); // last: what its listeners publish is sent in its order
  }

  #lost(run, why) {
    if (run !== this.#run || this.state === "closed") return;
    if (why.fatal || this.#isClosing) return this.#end(why);
    this.#publishes.refuseOldest(run, why);
    this.#drop();
    this.#run += 1;
    const { backoffMs, backoffCapMs } = this.#options;
    const most = Math.min(backoffCapMs, backoffMs * 2 ** this.#attempt);
    const retryMs = Math.round(most * (0.5 + Math.random() / 2));
    this.#attempt = Math.min(this.#attempt + 1, 30);
    this.#timer = setTimeout(() => this.#connect(), retryMs); // before its listeners are called, which may close it
    this.#setState("waiting", { error: why, retryMs });
  }

  #drop() {
    if (this.#transport === null) this.#giveUp?.(new WherryError("given up"));
    clearInterval(this.#timer);
    clearTimeout(this.#timer);
    clearTimeout(this.#probeTimer);
    this.#transport?.close();
    this.#transport = null;
    this.#publishes.lost();
    for (const { failed } of this.#receipts.values()) failed(new WherryError("the connection was lost"));
    this.#receipts.clear();
  }

  #reconnectNow = () => {
    if (this.state !== "waiting") return;
    clearTimeout(this.#timer);
    this.#connect();
  };

  /** A session that is polled would live on without its page. A page that is shown again connects again. */
  #hide = () => {
    if (this.transport === "polling") this.#lost(this.#run, new WherryError("the page was left"));
  };

  #end(why) {
    if (this.state === "closed") return;
    this.#run += 1;
    this.#drop();
    globalThis.removeEventListener?.("online", this.#reconnectNow);
    globalThis.removeEventListener?.("pagehide", this.#hide);
    this.#setState("closed", { error: why });
    this.#opened.failed(why);
    this.#publishes.end(why);
    for (const { refused } of this.#subscriptions.values()) refused(why);
    this.#subscriptions.clear();
  }

  #setState(state, more = {}) {
    this.state = state;
    this._report("state", { state, transport: this.transport, ...more });
  }

  _report(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  // --------------------------------------------------------------------------------------------------------- frames

  /** A frame with a receipt. Rejects when the connection is lost before it came. */
  #ask(command, headers) {
    return new Promise((done, failed) => {
      const receipt = `r${(this.#receipt += 1)}`;
      const frame = encodeFrame(command, { ...headers, receipt });
      this.#receipts.set(receipt, { done, failed });
      this.#transport.send(frame);
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
        this.#transport.send(encodeFrame(command, { id: ack, ...headers }));
        return true;
      },
    });
  }

  #confirmed(receipt) {
    this.#publishes.confirmed(receipt, this.#run, this.#transport);
    this.#take(receipt)?.done();
  }

  #take(receipt) {
    const asked = this.#receipts.get(receipt);
    this.#receipts.delete(receipt);
    return asked;
  }

  /** ERROR ends a session. The frame that it names is not sent again; what else was under way is. */
  #failed(run, frame) {
    const error = new WherryError(frame.headers.message ?? "ERROR", { detail: reasonOf(frame) });
    const receipt = frame.headers["receipt-id"];
    const refusal = new WherryError(error.message, { fatal: true });
    this.#publishes.refused(receipt, refusal);
    this.#take(receipt)?.failed(refusal);
    this._report("error", error);
    this.#lost(run, error);
  }
}
