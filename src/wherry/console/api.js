// Calls of /v1 with the key of this tab. The key is sent as a header and kept in sessionStorage; it is in no URL.

const PLACE = "wherry.key";

export class Problem extends Error {
  constructor(status, document) {
    super(document.detail || document.title || `status ${status}`);
    this.status = status;
    this.code = document.code || "unreached";
    this.field = document.field;
  }
}

let askForKey = () => {};
export const onLocked = (fn) => (askForKey = fn);
export const key = () => sessionStorage.getItem(PLACE) || "";
export function setKey(token) {
  if (token) sessionStorage.setItem(PLACE, token);
  else sessionStorage.removeItem(PLACE);
}

const headers = (more) => ({ ...(key() ? { Authorization: `Bearer ${key()}` } : {}), ...more });

async function ask(method, path, body, more = {}) {
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
    throw new Problem(0, { detail: "The broker cannot be reached. Is it running?" });
  }
  if (!answer.ok) {
    const problem = new Problem(answer.status, await answer.json().catch(() => ({})));
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

/** A query string of what is set. */
export function query(values) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(values))
    for (const each of Array.isArray(value) ? value : [value])
      if (each !== undefined && each !== null && each !== "") found.append(name, each);
  const text = found.toString();
  return text ? `?${text}` : "";
}

/** Server-sent events by fetch, since EventSource cannot send a header. Ends when the stream does. */
export async function stream(path, onEvent, signal) {
  const answer = await fetch(path, { headers: headers({ Accept: "text/event-stream" }), signal, cache: "no-store", credentials: "omit" });
  if (!answer.ok) throw new Problem(answer.status, await answer.json().catch(() => ({})));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n");
      const kind = lines.find((line) => line.startsWith("event: "))?.slice(7) || "message";
      const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data) onEvent(kind, JSON.parse(data));
    }
  }
}
