/** A subscription: messages to its handler, acks back, and no publish handled twice. */

import { WherryError, wrong } from "./errors.js";
import { PUBLISH_ID, checkOwn, encodeFrame } from "./frames.js";
import { Message } from "./messages.js";
import { tagOf, uniqueId } from "./values.js";
import { within } from "./waits.js";

const PREFETCH = 100;
const SEEN_MAX = 10_000;
const ACK_MODES = ["handler", "auto", "client", "client-individual"];
const OF_SUBSCRIBE = ["destination", "id", "ack", "receipt", "content-length", "transaction", "durable"];

/** What `subscribe` returns: it lives through reconnects until `unsubscribe()`. */
export class Subscription {
  #client;
  #isInside = false; // whether the handler is being called, up to its first `await`
  #isWorking = false;
  #left = null;
  #handling = Promise.resolve();
  #waiting = []; // messages behind the one that is handled
  #run = 0;
  #unsettled = new Map(); // by ack, the publish ids of connection #run, in order
  #seen = new Map(); // publish ids: 0 once acked, else the connection on which it is not settled yet

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
    encodeFrame("SUBSCRIBE", this.headers); // throws here for what is wrong with them
    /** Resolves when the broker has confirmed it for the first time. */
    this.ready = new Promise((done, failed) => Object.assign(this, { confirmed: done, refused: failed }));
    this.ready.catch(() => undefined);
    this.isDurable = durable && !destination.startsWith("/queue/"); // a queue belongs to all its consumers
    this.isOver = false; // no handler begins any more
    this.isGone = false; // nor can anything be settled
    this.isForgotten = false;
    this.run = 0; // the connection on which it was asked for
  }

  /**
   * End the subscription. The broker keeps a durable one unless `{ forget: true }`. A handler that runs may finish and
   * ack within `withinMs`; called by that handler itself, this resolves at once, and UNSUBSCRIBE follows the ack.
   */
  unsubscribe({ forget = false, withinMs = 5_000 } = {}) {
    const isMore = forget && !this.isForgotten && this.isDurable;
    this.isForgotten ||= isMore;
    if (!this.isOver) {
      this.isOver = true;
      this.refused(new WherryError(`${this.id} was unsubscribed`));
      this.#left = within(this.#handling, withinMs).then(() => this.#client._leave(this));
    } else if (isMore) this.#left = this.#left.catch(() => undefined).then(() => this.#client._leave(this));
    this.#left.catch(() => undefined);
    return this.#isInside ? Promise.resolve() : this.#left;
  }

  /** Whether no message would be delivered again if this connection were lost now. */
  _isIdle(run) {
    return run !== this.#run || this.#unsettled.size === 0;
  }

  /** Take a message. `link` is the connection that it came by; `link.settle` returns false once that is lost. */
  _arrived(frame, link) {
    if (this.isOver) return; // the UNSUBSCRIBE gives it back
    if (link.run !== this.#run) {
      this.#run = link.run;
      this.#unsettled.clear();
      this.#waiting.length = 0; // they come again
    }
    if (this.#isRepeat(frame)) {
      // With `client` an ack would include all messages before it; the next ack of the handler includes this one.
      if (this.ack !== "auto" && this.ack !== "client") link.settle("ACK", frame, {});
      return;
    }
    this.#remember(frame);
    const settle = (command, headers) => !this.isGone && this.#settled(command, frame, headers, link);
    const message = new Message(frame, this.ack === "auto" ? undefined : settle);
    if (this.ack !== "handler") return this.#called(message);
    this.#waiting.push({ message, link });
    if (!this.#isWorking) this.#handling = this.#work();
  }

  /**
   * Whether a message is the second copy of a publish whose confirmation was lost: the first is not settled yet, or was
   * acked. A message that was nacked, is redriven, or comes again after a lost connection is not one.
   */
  #isRepeat(frame) {
    const id = frame.headers[PUBLISH_ID];
    if (id === undefined || frame.headers.redelivered === "true") return false;
    const run = this.#seen.get(id);
    return run === 0 || run === this.#run;
  }

  #remember(frame) {
    const id = frame.headers[PUBLISH_ID];
    if (this.ack !== "auto") this.#unsettled.set(frame.headers.ack, id);
    if (id === undefined) return;
    this.#seen.set(id, this.ack === "auto" ? 0 : this.#run);
    if (this.#seen.size > SEEN_MAX) this.#seen.delete(this.#seen.keys().next().value);
  }

  #settled(command, frame, headers, link) {
    if (!link.settle(command, frame, headers)) return false;
    const mine = frame.headers.ack;
    const all = this.ack === "client" ? [...this.#unsettled.keys()] : [mine];
    for (const tag of all.slice(0, all.indexOf(mine) + 1)) {
      const id = this.#unsettled.get(tag);
      this.#unsettled.delete(tag);
      if (id === undefined) continue;
      if (command === "ACK") this.#seen.set(id, 0);
      else this.#seen.delete(id);
    }
    return true;
  }

  /** Handle the waiting messages, one after the other. */
  async #work() {
    this.#isWorking = true;
    await null; // messages that came together are parsed first
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
      this.#client._report("error", new WherryError("a handler failed", { detail: String(fault?.stack ?? fault) }));
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
      this.#client._report("error", new WherryError("a handler failed", { detail: String(fault?.stack ?? fault) }));
    });
  }
}
