/** The options of a client, checked. */

import { wrong } from "./errors.js";

const DEFAULTS = {
  transport: "auto",
  host: "/",
  connectMs: 8_000,
  backoffMs: 250,
  backoffCapMs: 15_000,
  bufferMessages: 10_000,
  bufferBytes: 16 << 20,
  probeMs: 180_000,
};
const TRANSPORTS = ["auto", "websocket", "polling"];

/** The options with their defaults, `url` included; throws for what is not allowed. */
export function checked(given) {
  const options = { ...DEFAULTS, ...given };
  if (!TRANSPORTS.includes(options.transport)) {
    throw wrong(`transport is ${options.transport}; allowed: ${TRANSPORTS.join(", ")}`);
  }
  return { ...options, url: urlOf(given.url) };
}

/** Where the broker is. A page in a sandbox or of a file has no origin: its origin is "null". */
function urlOf(given) {
  const origin = globalThis.location?.origin;
  const here = origin === "null" ? undefined : origin;
  if (!(given ?? here)) throw wrong("url is missing: where is the broker?");
  let url;
  try {
    url = new URL(given ?? here, here).href.replace(/^ws/, "http").replace(/\/+$/, "");
  } catch {
    throw wrong("url is not one; allowed: one as in https://mq.example.org");
  }
  if (!/^https?:/.test(url)) throw wrong(`url begins with ${url.split(":")[0]}; allowed: https, http, wss, ws`);
  if (/[?#]|\/\/[^/]*@/.test(url)) throw wrong("a url has no query and no secrets; give `key`");
  return url;
}
