// Calls of /v1 with the key of this tab. The key is sent as a header and kept in sessionStorage; it is in no URL.

const PLACE = "wherry.key", DRAFT = "wherry.draft";
const IDLE_MS = 10_000; // a stream without an event for so long, and for three times its usual pause, counts as broken

export class Problem extends Error {
  constructor(status, document) {
    super(document.detail || document.title || `status ${status}`);
    this.status = status;
    this.code = document.code || "unreached";
    this.field = document.field;
  }
}

let askForKey = () => {}, renewKey = async () => false;
export const onLocked = (fn) => (askForKey = fn);
/** Before the user is asked: `fn` gets another key where the one of this tab has expired, and resolves to whether it did. */
export const onExpired = (fn) => (renewKey = fn);
/** Whether there is another key than the one that was sent and refused: one that came meanwhile, or that was got now. */
export const hasAnother = async (sent) => (key() !== sent ? key() !== "" : renewKey());

/** Values that this tab keeps; where the browser forbids that or has no room, only until the page is left. */
const aside = new Map();
export function recall(name) {
  try { return aside.get(name) ?? sessionStorage.getItem(name); } catch { return aside.get(name) ?? null; }
}
export function remember(name, text) {
  aside.delete(name);
  try {
    sessionStorage.removeItem(name);
    if (text) sessionStorage.setItem(name, text);
  } catch { if (text) aside.set(name, text); }
}
export const key = () => recall(PLACE) || "";
export const setKey = (token) => remember(PLACE, token);
/** A message to publish again, between two pages. */
export const draft = () => JSON.parse(recall(DRAFT) || "{}");
export const setDraft = (message) => remember(DRAFT, message && JSON.stringify(message));

const headers = (more) => ({ ...(key() ? { Authorization: `Bearer ${key()}` } : {}), ...more });

async function ask(method, path, body, more = {}) {
  const sent = key();
  const init = { method, headers: headers(more.headers), signal: more.signal, cache: "no-store", credentials: "omit" };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers["Content-Type"] = "application/json";
  }
  let answer;
  try {
    answer = await fetch(path, init);
  } catch (fault) {
    if (fault.name === "AbortError") throw fault;
    throw new Problem(0, { detail: "Nothing answers at this address. Is the process running?" });
  }
  if (!answer.ok) {
    const problem = new Problem(answer.status, await answer.json().catch(() => ({})));
    if (answer.status === 401 && !more.again && (await hasAnother(sent))) return ask(method, path, body, { ...more, again: true });
    if (answer.status === 401 && !more.quiet) askForKey(problem);
    throw problem;
  }
  if (answer.status === 204) return null;
  return (answer.headers.get("Content-Type") || "").includes("json") ? answer.json() : answer.text();
}

export const get = (path, more) => ask("GET", path, undefined, more);
export const post = (path, body = {}, more) => ask("POST", path, body, more);
export const put = (path, body = {}) => ask("PUT", path, body);
export const patch = (path, body = {}) => ask("PATCH", path, body);
export const del = (path) => ask("DELETE", path);

/** Return a query string of those values that are set. */
export function query(values) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(values))
    for (const each of Array.isArray(value) ? value : [value])
      if (each !== undefined && each !== null && each !== "") found.append(name, each);
  const text = found.toString();
  return text ? `?${text}` : "";
}

/** Server-sent events by fetch, since EventSource cannot send a header. Ends with the stream, or when no event came for too long. */
export async function stream(path, onEvent, signal) {
  const silent = new AbortController();
  let timer = 0, reader = null, rest = "", last = 0, usual = 0;
  const restartTimer = () => { clearTimeout(timer); timer = setTimeout(() => silent.abort(), Math.max(IDLE_MS, 3 * usual)); };
  const leave = () => silent.abort();
  signal.addEventListener("abort", leave);
  restartTimer();
  try {
    const answer = await fetch(path, { headers: headers({ Accept: "text/event-stream" }), signal: silent.signal, cache: "no-store", credentials: "omit" });
    if (!answer.ok) throw new Problem(answer.status, await answer.json().catch(() => ({})));
    reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      restartTimer();
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const lines = part.split("\n");
        const kind = lines.find((line) => line.startsWith("event: "))?.slice(7) || "message";
        const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
        if (!data) continue;
        usual = last ? Date.now() - last : 0;
        last = Date.now();
        onEvent(kind, JSON.parse(data));
      }
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", leave);
    reader?.cancel().catch(() => {});
    silent.abort();
  }
}
