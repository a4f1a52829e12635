/** STOMP 1.2 as bytes: frames that are sent, frames that are received. */

import { WherryError, wrong } from "./errors.js";
import { decoder, encoder, tagOf } from "./values.js";

// Bounds of the broker: a frame beyond them would end every connection that it is sent on.
export const BODY_BYTES_MAX = 16 << 20;
const HEAD_BYTES_MAX = 64 << 10;
const HEADERS_MAX = 256;

/** A header of SEND that is the same when a publish is sent again, so that its second copy is known. */
export const PUBLISH_ID = "wherry-publish-id";

const REFUSED = new Set(["Bad CONNECT", "Version mismatch"]);

const ESCAPES = { "\\": "\\\\", "\n": "\\n", "\r": "\\r", ":": "\\c" };
const MEANINGS = { "\\\\": "\\", "\\n": "\n", "\\r": "\r", "\\c": ":" };
const escaped = (text) => String(text).replace(/[\\\n\r:]/g, (found) => ESCAPES[found]);
const unescaped = (text) => text.replace(/\\./g, (found) => MEANINGS[found] ?? found);

export function encodeFrame(command, headers, body = null) {
  const plain = command === "CONNECT"; // its headers are not escaped
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

/** Throw for a header that the broker would end the connection for. */
function checkHeader(name, value, plain) {
  if (name === "") throw wrong("a header has no name");
  if (!["string", "number", "boolean", "bigint"].includes(typeof value)) {
    throw wrong(`the header ${name} is ${tagOf(value)}; allowed: a string, a number, a boolean`);
  }
  if (`${name}${value}`.includes("\0")) throw wrong(`the header ${name} has a NUL`);
  if (plain && /[\n\r]/.test(`${name}${value}`)) throw wrong(`the header ${name} has a line end`);
}

export function checkOwn(headers, reserved, command) {
  for (const name of reserved) {
    if (headers[name] !== undefined) throw wrong(`the header ${name} of ${command} is not yours to give`);
  }
}

/** Parses frames from bytes that come in pieces of any size. */
export class Parser {
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

/** The position behind the empty line that ends a head; -1 if it is not there. */
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

/** The error that an ERROR in answer to a CONNECT stands for. */
export function refusalOf(frame) {
  const text = frame.headers.message ?? "refused";
  return new WherryError(text, { fatal: REFUSED.has(text), detail: reasonOf(frame) });
}

/** What an ERROR contains beside its `message`. */
export function reasonOf(frame) {
  const texts = [decoder.decode(frame.body).trim(), frame.headers.explanation];
  return texts.filter(Boolean).join("; ");
}
