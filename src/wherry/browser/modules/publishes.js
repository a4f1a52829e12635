/** Publishes that are not confirmed: bounded, in order, and sent again on the next connection. */

import { WherryError, wrong } from "./errors.js";
import { BODY_BYTES_MAX, PUBLISH_ID, checkOwn, encodeFrame } from "./frames.js";
import { bodyOf } from "./messages.js";
import { uniqueId } from "./values.js";

const OF_SEND = ["destination", "receipt", "content-length", "transaction", PUBLISH_ID];
OF_SEND.push("message-id", "subscription", "ack", "redelivered"); // of a MESSAGE: what is forwarded gets its own

// A publish that connections are lost with: after so many sends it is sent alone, and after the last it is refused.
const SENDS_TOGETHER = 5;
const SENDS_MAX = 10;

export class Publishes {
  #options;
  #unconfirmed = new Map(); // by receipt
  #bytes = 0;
  #count = 0;
  #isHeldBack = false; // whether others wait until a publish that is sent alone is confirmed

  constructor(options) {
    this.#options = options;
  }

  get size() {
    return this.#unconfirmed.size;
  }

  /** Add a publish, of which `done` or `failed` is called once; throws if it is wrong, or beyond the bounds. */
  add(destination, body, headers, { done, failed }) {
    checkOwn(headers, OF_SEND, "SEND");
    const [bytes, type] = bodyOf(body);
    if (bytes.length > BODY_BYTES_MAX) {
      throw wrong(`the body has ${bytes.length} bytes; at most ${BODY_BYTES_MAX} are allowed`);
    }
    const { bufferMessages, bufferBytes } = this.#options;
    if (this.size >= bufferMessages || this.#bytes + bytes.length > bufferBytes) {
      throw new WherryError("too much is not confirmed yet", { detail: `${this.size} messages, ${this.#bytes} bytes` });
    }
    const receipt = `p${(this.#count += 1)}`;
    const all = { persistent: "true", "content-type": type, [PUBLISH_ID]: uniqueId(), ...headers };
    const frame = encodeFrame("SEND", { destination, ...all, receipt }, bytes);
    const publish = { frame, size: bytes.length, done, failed, sends: 0, run: 0 };
    this.#unconfirmed.set(receipt, publish);
    this.#bytes += publish.size;
    return publish;
  }

  /** Send a new publish on connection `run`, unless it has to wait for one that is sent alone. */
  send(publish, run, transport) {
    if (this.#isHeldBack) return;
    publish.sends += 1;
    publish.run = run;
    transport.send(publish.frame);
  }

  /** Send what was not sent on connection `run`. A publish that several connections were lost with is sent alone. */
  sendAll(run, transport) {
    this.#isHeldBack = false;
    for (const publish of this.#unconfirmed.values()) {
      if (publish.run !== run) this.send(publish, run, transport);
      if (publish.sends > SENDS_TOGETHER) {
        this.#isHeldBack = true;
        return;
      }
    }
  }

  /** The connection is lost: nothing waits for a publish on it. */
  lost() {
    this.#isHeldBack = false;
  }

  /** The broker has stored the publish of this receipt, if it is one; those held back behind it are sent. */
  confirmed(receipt, run, transport) {
    this.#take(receipt)?.done();
    if (this.#isHeldBack) this.sendAll(run, transport);
  }

  /** The broker has refused the publish of this receipt, if it is one. */
  refused(receipt, why) {
    this.#take(receipt)?.failed(why);
  }

  /** The broker takes them in order: if a publish is why connections are lost, it is the oldest one. */
  refuseOldest(run, why) {
    const [receipt, oldest] = this.#unconfirmed.entries().next().value ?? [];
    if (oldest?.run !== run || oldest.sends < SENDS_MAX) return;
    const text = `the connection was lost each of the ${oldest.sends} times that it was sent`;
    this.refused(receipt, new WherryError(text, { fatal: true, detail: why.message }));
  }

  /** Refuse all of them: the client is closed. */
  end(why) {
    for (const { failed } of this.#unconfirmed.values()) failed(why);
    this.#unconfirmed.clear();
    this.#bytes = 0;
  }

  #take(receipt) {
    const publish = this.#unconfirmed.get(receipt);
    if (publish === undefined) return undefined;
    this.#unconfirmed.delete(receipt);
    this.#bytes -= publish.size;
    return publish;
  }
}
