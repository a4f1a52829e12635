// Numbers, sizes, times and names as people read them.

import { h } from "./dom.js";

const whole = new Intl.NumberFormat("en");
/** By how much the clock of the node is ahead of ours. Less than two seconds counts as delay of the network. */
let ahead = 0;
export function setClock(at) {
  const found = at - Date.now();
  if (Math.abs(found - ahead) > 2000) ahead = Math.abs(found) > 2000 ? found : 0;
}
/** Return the time of the node. */
export const nodeNow = () => Date.now() + ahead;

const MINUTE = 60_000, HOUR = 60 * MINUTE, DAY = 24 * HOUR;

export const count = (n) => whole.format(Math.round(n || 0));

/** Return 1,234 as it is and 12,345 as 12.3k: never more than six characters. */
export function short(n) {
  const size = Math.abs(n || 0);
  if (size < 10_000) return size && size < 10 && size % 1 ? (n).toFixed(1) : whole.format(Math.round(n || 0));
  for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (size >= unit) return `${(n / unit).toFixed(size / unit < 100 ? 1 : 0)}${letter}`;
  return String(n);
}

export const rate = (n) => `${n && n < 10 ? n.toFixed(1) : short(n)}/s`;

export function bytes(n) {
  const size = n || 0;
  for (const [unit, name] of [[1 << 30, "GiB"], [1 << 20, "MiB"], [1 << 10, "KiB"]])
    if (size >= unit) return `${(size / unit).toFixed(size / unit < 10 ? 1 : 0)} ${name}`;
  return `${size} B`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms`;
  return duration(value * 1000);
}

/** Return a power of ten as the label of an axis: 100 s, 1 s, 10 ms. */
export function decade(value) {
  const [size, unit] = value > 0.5 ? [value, "s"] : value > 0.0005 ? [value * 1e3, "ms"] : [value * 1e6, "µs"];
  return `${whole.format(Number(size.toPrecision(3)))} ${unit}`;
}

export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < MINUTE) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  if (ms < 10 * MINUTE) return `${(Math.floor(ms / 6_000) / 10).toFixed(ms % MINUTE < 6_000 ? 0 : 1)} min`;
  if (ms < HOUR) return `${Math.floor(ms / MINUTE)} min`;
  if (ms < 2 * DAY) return `${(ms / HOUR).toFixed(ms < 10 * HOUR ? 1 : 0)} h`;
  return `${Math.round(ms / DAY)} d`;
}

export function ago(at, now = nodeNow()) {
  const gap = now - at;
  if (Math.abs(gap) < 1500) return "just now";
  return gap > 0 ? `${duration(gap)} ago` : `in ${duration(-gap)}`;
}

/** Return 16 Nov 2026, 00:11:54, in the time zone of the browser, which is named below the list of pages. */
export const exact = (ms) => new Date(ms).toLocaleString("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit" });
export const zone = () => Intl.DateTimeFormat().resolvedOptions().timeZone || "local time";
export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

/** An element with a time: how long ago as its text, the exact time on hover. The text is kept up to date. */
export function when(ms) {
  if (ms === null || ms === undefined) return h("span", { class: "muted" }, "–");
  const date = new Date(ms);
  return h("time", { dateTime: isNaN(date) ? "" : date.toISOString(), title: `${exact(ms)} · ${ms}`, "data-at": ms }, ago(ms));
}

setInterval(() => {
  for (const each of document.querySelectorAll("time[data-at]")) {
    const text = ago(Number(each.dataset.at));
    if (each.textContent !== text) each.textContent = text;
  }
}, 1000);

/** Return the value of an <input type=datetime-local>, in the time zone of the browser. */
export function localInput(ms) {
  const date = new Date(ms - new Date(ms).getTimezoneOffset() * MINUTE);
  return date.toISOString().slice(0, 19);
}
export const fromInput = (text) => (text ? new Date(text).getTime() : undefined);

/** Return a name as a segment of a path. */
export const seg = (name) => encodeURIComponent(name).replace(/\./g, (dot) => (/^\.+$/.test(name) ? "%2E" : dot));
export const plural = (n, one, many = one + "s") => `${count(n)} ${n === 1 ? one : many}`;
