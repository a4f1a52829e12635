/** Wherry in a page. More is in `docs/browser.md`. */

export interface Options {
  /** Where the broker is, as in `https://mq.example.org`; the origin of the page by default. Never with a key in it. */
  url?: string;
  /** An API key. It travels in the CONNECT frame. */
  key?: string;
  /** A name for people, beside the key. */
  login?: string;
  /** The virtual host; `/` by default. */
  host?: string;
  /** `auto`: a WebSocket, and polling where there is none. */
  transport?: "auto" | "websocket" | "polling";
  /** For a transport and its CONNECTED, in milliseconds; 8,000 by default. */
  connectMs?: number;
  /** The first wait before a reconnect, in milliseconds; it doubles up to `backoffCapMs`, and half of it is random. */
  backoffMs?: number;
  backoffCapMs?: number;
  /** What may be published and not confirmed; one more is refused. 10,000 messages and 16 MiB by default. */
  bufferMessages?: number;
  bufferBytes?: number;
  /** How often a WebSocket is tried where only polling worked twice, in milliseconds; 180,000 by default. */
  probeMs?: number;
  /** For places that have none of their own. */
  WebSocket?: unknown;
  fetch?: typeof fetch;
}

export type State = "connecting" | "open" | "waiting" | "closed";
export type Transport = "websocket" | "polling";
/** A string and bytes go as they are, anything else as JSON. */
export type Body = string | ArrayBuffer | ArrayBufferView | JsonObject | number | boolean | null;
/** An object that JSON can hold: a Blob, a Map, a promise would be `{}` and are refused. */
export type JsonObject = (object | { readonly [name: string]: unknown }) & {
  readonly [Symbol.toStringTag]?: never;
  readonly arrayBuffer?: never;
};
/** Names that the client sets itself are refused: `docs/browser.md` has them. */
export type Headers = Record<string, string | number | boolean | undefined>;

export interface StateDetail {
  state: State;
  transport: Transport | null;
  error?: WherryError;
  /** While waiting: milliseconds until the next attempt. */
  retryMs?: number;
}

export class WherryError extends Error {
  constructor(message: string, more?: { fatal?: boolean; detail?: string });
  /** Whether trying again would not help. */
  readonly fatal: boolean;
}

export class Message<T = unknown> {
  private constructor();
  readonly destination: string;
  readonly headers: Record<string, string>;
  readonly body: Uint8Array;
  readonly id: string;
  /** Whether it was delivered before. */
  readonly redelivered: boolean;
  readonly isSettled: boolean;
  text(): string;
  json(): T;
  /** Ack it. False if that is too late: then it comes again. */
  ack(): boolean;
  /** Nack it: it comes again, or with `requeue: false` is a dead letter. */
  nack(how?: { requeue?: boolean }): boolean;
}

export interface SubscribeOptions {
  /** The same each time the page is opened, for a durable subscription. */
  id?: string;
  /** Nothing is missed while the page is away. Needs an `id`. */
  durable?: boolean;
  /**
   * `handler`: acked when the handler is done, nacked when it throws; one message after the other. The default, but of
   * topics that are not durable. `auto`: settled as soon as it is sent. The others: by `message.ack()`.
   */
  ack?: "handler" | "auto" | "client" | "client-individual";
  /** How many messages may be unsettled; 100 by default, if they are acked. */
  prefetch?: number;
  /** The buffer that this client has: the broker never sends more than fits, and cuts off a client that overruns it. */
  bufferMessages?: number;
  bufferBytes?: number;
  headers?: Headers;
}

export interface Subscription {
  readonly id: string;
  readonly destination: string;
  /** Resolves when the broker has confirmed it, rejects when it is refused or was unsubscribed before. */
  readonly ready: Promise<void>;
  /**
   * No more messages. The handler that runs may finish and ack, within `withinMs`: 5,000 by default. The broker keeps a
   * durable one unless `forget`; without a connection, the broker is asked to on the next one.
   */
  unsubscribe(how?: { forget?: boolean; withinMs?: number }): Promise<void>;
}

export interface ClientEvents {
  state: CustomEvent<StateDetail>;
  error: CustomEvent<WherryError>;
}

export class Client extends EventTarget {
  constructor(options?: Options);
  readonly state: State;
  readonly transport: Transport | null;
  /** Publishes that are not confirmed. */
  readonly pending: number;
  opened(): Promise<Client>;
  /** Resolves when the broker has stored it. What is not confirmed is sent again after a reconnect. */
  publish(destination: string, body?: Body, headers?: Headers): Promise<void>;
  publishJson(destination: string, value: unknown, headers?: Headers): Promise<void>;
  subscribe<T = unknown>(
    destination: string,
    handler: (message: Message<T>) => unknown,
    options?: SubscribeOptions,
  ): Subscription;
  close(how?: { withinMs?: number }): Promise<void>;
  addEventListener<K extends keyof ClientEvents>(
    type: K,
    listener: (event: ClientEvents[K]) => void,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | AddEventListenerOptions,
  ): void;
}

export function connect(options?: Options): Client;
