/** Which transport to try: a WebSocket first, polling where none opens. */

import { PollingTransport } from "./polling.js";
import { openSocket } from "./websocket.js";

// WebSockets that fail in a row, while polling works, until one is tried every `probeMs` only; sooner before that.
const SOCKET_FAILURES_MAX = 2;
const PROBE_SOON_MS = 5_000;

export class Transports {
  #options;
  #socketFailures = 0;
  #socketTriedAt = 0;

  constructor(options) {
    this.#options = options;
  }

  /**
   * Try the transports in turn until `handshake(open)` resolves for one, or `isGivenUp()`. Resolves to whether a
   * WebSocket should be probed for later, since only polling worked.
   */
  async connect(handshake, isGivenUp) {
    const { transport, url, connectMs } = this.#options;
    const fetch = this.#options.fetch ?? globalThis.fetch.bind(globalThis);
    const socket = (on) => this.#openSocket(on);
    const polling = (on) => PollingTransport.open(fetch, url, on, connectMs);
    let tried = { auto: [socket, polling], websocket: [socket], polling: [polling] }[transport];
    if (transport === "auto" && this.probeInMs() > 0) tried = [polling];
    let why;
    for (const open of tried) {
      try {
        await handshake(open);
        if (open === socket) this.#socketFailures = 0;
        else if (tried.length > 1) this.#socketFailures += 1;
        return open === polling && transport === "auto";
      } catch (fault) {
        why = fault;
        if (fault.fatal || isGivenUp()) break;
      }
    }
    this.#socketFailures = 0; // where nothing works, nothing is known about WebSockets
    throw why;
  }

  /** Until the next WebSocket may be tried, where only polling worked: the network may be another one by then. */
  probeInMs() {
    if (this.#socketFailures === 0) return 0;
    const { probeMs } = this.#options;
    const pauseMs = this.#socketFailures < SOCKET_FAILURES_MAX ? Math.min(PROBE_SOON_MS, probeMs) : probeMs;
    return Math.max(0, this.#socketTriedAt + pauseMs - Date.now());
  }

  /** Whether a WebSocket opens; it is closed again. */
  async probe() {
    const socket = await this.#openSocket({ data: () => undefined, lost: () => undefined }).catch(() => null);
    socket?.close();
    return socket !== null;
  }

  probeFailed() {
    this.#socketFailures += 1;
  }

  /** Try a WebSocket at the next connect, whenever one was tried before. */
  preferSocket() {
    this.#socketTriedAt = 0;
  }

  async #openSocket(on) {
    this.#socketTriedAt = Date.now();
    const { WebSocket, url, connectMs } = this.#options;
    return openSocket(WebSocket ?? globalThis.WebSocket, url, on, connectMs);
  }
}
