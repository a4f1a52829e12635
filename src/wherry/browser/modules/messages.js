/** Messages: bodies as bytes on the way out, and what a handler gets. */

import { wrong } from "./errors.js";
import { decoder, encoder, tagOf } from "./values.js";

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

  /** Ack it. False if that is too late, or the broker expects no ack. */
  ack() {
    return this.#settled("ACK", {});
  }

  /** Nack it: it comes again, or with `{ requeue: false }` is a dead letter. */
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

/** The body of a message as bytes, and its content type. */
export function bodyOf(body) {
  if (typeof body === "string") return [encoder.encode(body), "text/plain"];
  if (body instanceof Uint8Array) return [body, undefined];
  if (body instanceof ArrayBuffer) return [new Uint8Array(body), undefined];
  if (ArrayBuffer.isView(body)) return [new Uint8Array(body.buffer, body.byteOffset, body.byteLength), undefined];
  return [encoder.encode(jsonOf(body)), "application/json"];
}

/** A Blob, a Map, a promise and their like would be `{}`: they are refused. */
export function jsonOf(value) {
  const isJson = ["Object", "Array", "Null", "Number", "Boolean"].includes(tagOf(value));
  if (!isJson && typeof value?.toJSON !== "function") {
    throw wrong(`the body is ${tagOf(value)}; allowed: a string, bytes, or a value of JSON`);
  }
  return JSON.stringify(value);
}
