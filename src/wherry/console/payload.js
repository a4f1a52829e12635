// A payload as people read it: JSON as a tree, Avro by its schema, text, or bytes in hex. All of it is text to the page.

import { container, decoded } from "./avro.js";
import { h, put } from "./dom.js";
import { bytes as size } from "./format.js";

const NODES_MAX = 4_000;
const HEX_MAX = 4_096;
const TEXT_MAX = 200_000;

/** Return the payload bytes of a message in the JSON form of HTTP. */
export function bytesOf(message) {
  if (message.payload_base64 !== undefined && message.payload_base64 !== null)
    return Uint8Array.from(atob(message.payload_base64), (char) => char.charCodeAt(0));
  return new TextEncoder().encode(message.payload ?? "");
}

function textOf(bytes) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    return /[\x00-\x08\x0e-\x1f]/.test(text) ? null : text;
  } catch { return null; }
}

const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const EXACT = `number ${Math.random()} `; // before the text of a number that would not survive as a double

function jsonOf(text) {
  if (text === null || !/^\s*[[{"\-\dtfn]/.test(text)) return undefined;
  try {
    const value = JSON.parse(text);
    if (!/\d{16}/.test(text.replaceAll(".", ""))) return value;
    return JSON.parse(text.replace(TOKEN, (token) => (token[0] === '"' || String(Number(token)) === token ? token : JSON.stringify(EXACT + token))));
  } catch { return undefined; }
}

/** Describe a payload in a few words, for a cell. */
export function preview(message) {
  const bytes = bytesOf(message), text = textOf(bytes);
  if (!bytes.length) return "(empty)";
  if (text !== null) return text.replace(/\s+/g, " ").slice(0, 160);
  if (bytes[0] === 0x4f && bytes[1] === 0x62 && bytes[2] === 0x6a && bytes[3] === 1) return `Avro file, ${size(bytes.length)}`;
  if (message.headers?.["avro-schema"]) return `Avro, ${size(bytes.length)}`;
  return `${[...bytes.slice(0, 24)].map(hex).join(" ")} …`;
}

const hex = (byte) => byte.toString(16).padStart(2, "0");

export function hexView(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_MAX); at += 16) {
    const row = bytes.slice(at, at + 16);
    const left = [...row].map(hex).join(" ").padEnd(47);
    const right = [...row].map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${left}  ${right}`);
  }
  if (bytes.length > HEX_MAX) lines.push(`… ${size(bytes.length - HEX_MAX)} more`);
  return h("pre", { class: "hex", tabIndex: 0 }, lines.join("\n"));
}

function leaf(value) {
  if (value === null) return h("span", { class: "j-null" }, "null");
  if (typeof value === "string" && value.startsWith(EXACT)) return h("span", { class: "j-number" }, value.slice(EXACT.length));
  if (typeof value === "string") return h("span", { class: "j-text" }, JSON.stringify(value));
  return h("span", { class: `j-${typeof value}` }, typeof value === "bigint" ? value.toString() : String(value));
}

function tree(value, name, depth, budget) {
  const label = name === null ? null : [h("span", { class: "j-name" }, name), ": "];
  if (budget.left-- <= 0) return h("div", { class: "j-row muted" }, "…");
  if (value === null || typeof value !== "object") return h("div", { class: "j-row" }, label, leaf(value));
  const entries = Array.isArray(value) ? value.map((each, i) => [String(i), each]) : Object.entries(value);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  if (!entries.length) return h("div", { class: "j-row" }, label, open + close);
  const el = h("details", { class: "j-row", open: depth < 3 }, h("summary", {}, label, `${open}${close} `, h("span", { class: "muted" }, entries.length)));
  for (const [key, each] of entries) {
    if (budget.left <= 0) { el.append(h("div", { class: "j-row muted" }, "…")); break; }
    el.append(tree(each, key, depth + 1, budget));
  }
  return el;
}

export const jsonTree = (value) => h("div", { class: "json" }, tree(value, null, 0, { left: NODES_MAX }));

/** Return every way in which a payload can be read, the best one first. */
async function ways(message) {
  const bytes = bytesOf(message), text = textOf(bytes), found = [];
  const schema = message.headers?.["avro-schema"];
  try {
    const records = await container(bytes);
    if (records) found.push(["Avro", () => [h("p", { class: "muted" }, `Object container file, ${records.values.length}${records.more ? "+" : ""} records of ${records.name}`), jsonTree(records.values)]]);
    else if (schema) found.push(["Avro", () => jsonTree(decoded(JSON.parse(schema), bytes))]);
  } catch (fault) { found.push(["Avro", () => h("p", { class: "bad-text" }, `This is not Avro by its schema: ${fault.message}`)]); }
  const json = jsonOf(text);
  if (json !== undefined) found.push(["JSON", () => jsonTree(json)]);
  if (text !== null) found.push(["Text", () => h("pre", { tabIndex: 0 }, text.slice(0, TEXT_MAX) + (text.length > TEXT_MAX ? " …" : ""))]);
  found.push(["Hex", () => hexView(bytes)]);
  return { found, bytes };
}

/** A payload with a tab for each way to read it. */
export function payloadView(message) {
  const view = h("div", { class: "payload-view" }), tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "How to read the payload" });
  const el = h("div", { class: "payload" }, tabs, view);
  ways(message).then(({ found, bytes }) => {
    const show = (at) => {
      [...tabs.children].forEach((each, i) => { if (each.role === "tab") { each.setAttribute("aria-selected", String(i === at)); each.tabIndex = i === at ? 0 : -1; } });
      try { put(view, found[at][1]()); } catch (fault) { put(view, h("p", { class: "bad-text" }, fault.message)); }
    };
    found.forEach(([name], at) => tabs.append(h("button", { type: "button", role: "tab", onclick: () => show(at), onkeydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) { const next = (at + step + found.length) % found.length; show(next); tabs.children[next].focus(); }
    } }, name)));
    tabs.append(h("span", { class: "muted num" }, size(bytes.length)));
    show(0);
  });
  return el;
}
