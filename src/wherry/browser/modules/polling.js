/** STOMP over requests of HTTP, where no WebSocket opens: a transport as in websocket.js. */

import { WherryError } from "./errors.js";
import { sleep } from "./waits.js";

const POLL_MS = 25_000;
const POST_BYTES = 512 << 10;

/** A session that is polled. Positions in bytes make repeats harmless: see docs/browser.md. */
export class PollingTransport {
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
    const transport = new PollingTransport();
    transport.#fetch = fetch;
    transport.#url = `${url}/v1/stomp/sessions/${id}`;
    transport.#token = token;
    transport.#on = on;
    transport.#poll();
    return transport;
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
    await null; // frames of one turn are one request
    while (this.#queue.length && !this.#isOver) {
      const body = this.#joined();
      const answer = await this.#call("POST", `?at=${this.#sent}`, body);
      if (answer === null) break;
      this.#sent += body.length;
    }
    this.#isPosting = false;
  }

  /** As much of the queue as one request takes; a larger frame is sent in parts. */
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

  /** Send one request, again with the same positions while it fails; null when the session is lost. */
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
