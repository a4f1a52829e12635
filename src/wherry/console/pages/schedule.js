// Scheduled messages on a timeline to zoom into; each of them can be cancelled or moved.

import { del, get, patch, query as asQuery } from "../api.js";
import { h, put, s } from "../dom.js";
import { ago, count, exact, fromInput, localInput, nodeNow, plural, seg, when } from "../format.js";
import { attempt, button, confirmed, dialog, empty, field, input, loading, page, select, table, toast } from "../parts.js";
import { topicNames } from "./messages.js";
import { preview } from "../payload.js";

const SPAN_MAX = 20 * 31_557_600_000; // twenty years
const LIMIT = 1_000, LISTED = 100, BINS = 60, MARKS_MAX = 80;
const SPANS = [["15 min", 900_000], ["1 h", 3_600_000], ["6 h", 21_600_000], ["1 d", 86_400_000], ["7 d", 604_800_000], ["30 d", 2_592_000_000]];
const HEIGHT = 150, BASE = 122;
const WHEEL_MS = 150; // after the last turn of the wheel the range is loaded
const RELOAD_MS = 2_000; // messages that became due leave the list, this often at most

const HATCH = () => s("pattern", { id: "hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse" }, s("path", { d: "M0 7L7 0" }));

export async function show({ root, query, isShown, onleave }) {
  put(root, loading());
  const topics = await topicNames();
  if (!isShown()) return;
  if (!topics.length) return put(root, page("Schedule"), empty("No topics yet", "Messages with a due time are listed here until they are delivered.", null, h("a", { class: "button primary", href: "#/topics?new=1" }, "New topic")));
  const best = query.get("topic") || (topics.find((each) => each.order === "timeline") || topics[0]).name;
  const topic = select("topic", topics.map((each) => each.name), best), sub = select("subscription", []);
  const state = { from: nodeNow(), span: 3_600_000, rows: [], until: null, topic: "" };
  const svg = s("svg", { class: "timeline", height: HEIGHT, role: "group", "aria-label": "Timeline", tabindex: 0 });
  const list = h("div", { class: "section" }), notice = h("p", { class: "muted num", role: "status" });
  const spans = h("div", { class: "segmented", role: "group", "aria-label": "How much time to show" }, SPANS.map(([name, ms]) => h("button", { type: "button", class: "small", "data-ms": ms, onclick: () => move(nodeNow(), ms) }, name)));
  const tools = h("div", { class: "row" }, spans, button("Earlier", () => move(state.from - state.span / 2, state.span), "small"), button("Later", () => move(state.from + state.span / 2, state.span), "small"), button("Zoom in", () => zoom(0.5, 0.5), "small"), button("Zoom out", () => zoom(2, 0.5), "small"));
  put(root, page("Schedule", "Messages that will be delivered, and when. Click a bar to zoom into it."), h("div", { class: "filters" }, field("Topic", topic), field("Subscription", sub)), h("section", { class: "card section" }, tools, svg, notice), list);

  const x = (at) => 8 + ((at - state.from) / state.span) * ((svg.clientWidth || 600) - 16);
  function setRange(from, span) { state.from = Math.max(0, Math.round(from)); state.span = Math.min(SPAN_MAX, Math.max(1000, Math.round(span))); draw(); }
  function move(from, span) { setRange(from, span); load(); }
  function zoomed(factor, share, go) { const span = state.span * factor; go(state.from + (state.span - span) * share, span); }
  const zoom = (factor, share) => zoomed(factor, share, move);

  function ticks() {
    const steps = [1000, 5000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 10_800_000, 21_600_000, 86_400_000, 604_800_000, 2_592_000_000];
    const step = steps.find((each) => state.span / each <= Math.max(3, (svg.clientWidth || 600) / 110)) || steps.at(-1);
    const shift = new Date(state.from).getTimezoneOffset() * 60_000, found = [];
    for (let at = Math.ceil((state.from - shift) / step) * step + shift; at < state.from + state.span; at += step) found.push(at);
    return found.map((at) => {
      const date = new Date(at), text = step >= 86_400_000 ? date.toLocaleDateString("en-GB", { day: "numeric", month: "short" }) : date.toLocaleTimeString("en-GB", step < 60_000 ? {} : { hour: "2-digit", minute: "2-digit" });
      return [s("line", { class: "tick", x1: x(at), x2: x(at), y1: 6, y2: BASE }), s("text", { x: Math.min(Math.max(x(at), 22), (svg.clientWidth || 600) - 22), y: BASE + 18, "text-anchor": "middle" }, text)];
    });
  }

  function bars() {
    const wide = state.span / BINS, bins = new Array(BINS).fill(0);
    for (const each of state.rows) { const bin = Math.floor((each.at_ms - state.from) / wide); if (bin >= 0 && bin < BINS) bins[bin]++; }
    const most = Math.max(1, ...bins);
    return bins.map((n, i) => n && s("rect", { class: "bar", rx: 2, x: x(state.from + i * wide) + 0.5, width: Math.max(2, x(state.from + wide) - x(state.from) - 1.5), y: BASE - Math.max(3, (n / most) * (BASE - 16)), height: Math.max(3, (n / most) * (BASE - 16)), onclick: () => move(state.from + (i - 1) * wide, wide * 3) }, s("title", {}, `${plural(n, "message")} from ${exact(state.from + i * wide)}`)));
  }

  function marks() {
    const lanes = new Map();
    return state.rows.filter((each) => each.at_ms >= state.from && each.at_ms < state.from + state.span).map((each) => {
      const column = Math.round(x(each.at_ms) / 11), lane = lanes.get(column) || 0;
      lanes.set(column, lane + 1);
      const name = `${each.id}, ${ago(each.at_ms)}`;
      return s("circle", { class: "mark", r: 5.5, cx: x(each.at_ms), cy: BASE - 9 - (lane % 9) * 12, tabindex: 0, role: "button", "aria-label": `Move ${name}`, onclick: () => retime(each), onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); retime(each); } } }, s("title", {}, `${name}\n${preview(each).slice(0, 100)}`));
    });
  }

  function draw() {
    const now = nodeNow(), width = svg.clientWidth || 600, end = state.from + state.span;
    const unknown = state.until !== null && state.until < end ? Math.max(state.until, state.from) : null; // not loaded from here on
    put(svg, HATCH(), ticks(), unknown !== null && s("rect", { class: "unknown", x: x(unknown), width: Math.max(2, x(end) - x(unknown)), y: 6, height: BASE - 6 }, s("title", {}, `Not loaded: what comes after ${exact(unknown)}. Zoom in.`)), s("line", { class: "base", x1: 0, x2: width, y1: BASE, y2: BASE }), state.rows.length > MARKS_MAX ? bars() : marks(),
      now >= state.from && now < state.from + state.span && s("line", { class: "now", x1: x(now), x2: x(now), y1: 0, y2: BASE + 4 }));
    for (const each of spans.children) each.setAttribute("aria-pressed", String(Number(each.dataset.ms) === state.span));
  }

  /** Load the range, by one call at a time. If the question changed meanwhile, drop the answer and load again. */
  let busy = false, stale = false, loadedAt = 0;
  const question = () => JSON.stringify([topic.value, sub.value, state.from, state.span]);
  async function load() {
    stale = busy;
    if (busy || !sub.value) return;
    busy = true;
    const of = question(), name = topic.value;
    const found = await attempt(null, () => get(`/v1/topics/${seg(name)}/subscriptions/${seg(sub.value)}/scheduled${asQuery({ from_ms: Math.max(state.from, nodeNow() + 1), to_ms: Math.max(state.from + state.span, nodeNow() + 2), limit: LIMIT })}`));
    busy = false;
    loadedAt = Date.now();
    if (!isShown()) return;
    if (stale || of !== question()) return load();
    if (found) fill(name, found);
  }

  function fill(name, found) {
    state.topic = name;
    state.rows = found.messages;
    state.until = found.next ? state.rows.at(-1)?.at_ms ?? state.from : null;
    notice.textContent = state.until === null ? `${plural(state.rows.length, "message")} in this range` : `the first ${plural(state.rows.length, "message")} in this range, up to ${exact(state.until)}: what is hatched is not loaded, zoom in to see it`;
    draw();
    const focus = list.contains(document.activeElement) ? document.activeElement : null, held = focus && [focus.closest("tr")?.dataset.id, focus.textContent];
    put(list, state.rows.length
      ? table("Scheduled messages", ["Due", "Exactly", "Id", "Key", { text: "Payload", wide: true }, ""], state.rows.slice(0, LISTED).map((each) => ({ props: { "data-id": each.id }, cells: [when(each.at_ms), exact(each.at_ms), h("a", { class: "mono", href: `#/messages?topic=${seg(name)}&kind=id&what=${seg(each.id)}` }, each.id), each.key ?? "–", h("span", { class: "mono" }, preview(each)), h("span", { class: "acts" }, button("Re-time", () => retime(each), "small"), button("Cancel", () => cancel(each), "small danger"))] })))
      : empty("Nothing is due in this range", "Zoom out, or publish a message with a due time:", `curl -X POST ${location.origin}/v1/topics/${seg(name)}/messages -H 'Content-Type: application/json' -d '{"payload": "later", "due_ms": ${nodeNow() + 600_000}}'`, h("a", { class: "button", href: `#/publish?topic=${seg(name)}` }, "Publish")),
      state.rows.length > LISTED && h("p", { class: "muted" }, `${count(state.rows.length - LISTED)} more: zoom in to see them.`));
    if (held) [...list.querySelectorAll("tr")].find((row) => row.dataset.id === held[0])?.querySelectorAll("button, a").forEach((each) => { if (each.textContent === held[1]) each.focus({ preventScroll: true }); });
  }

  /** Return the path of a message in the topic that it was listed for, which may not be the one chosen now. */
  const pathIn = (of, each) => `/v1/topics/${seg(of)}/messages/${seg(each.id)}`;
  async function cancel(each) {
    const of = state.topic, path = pathIn(of, each);
    if (!(await confirmed("Cancel this message?", `${each.id} of ${of} was due ${ago(each.at_ms)}. It will not be delivered.`, { action: "Cancel it" }))) return;
    await attempt(null, async () => { await del(path); toast(`Cancelled ${each.id}.`); load(); });
  }
  function retime(each) {
    const path = pathIn(state.topic, each);
    const due = input("due", { type: "datetime-local", step: 1, required: true, value: localInput(each.at_ms) });
    const go = h("button", { type: "submit", class: "primary" }, "Move");
    const shift = (ms) => () => { due.value = localInput(fromInput(due.value) + ms); };
    dialog(`Re-time ${each.id}`, (close) => h("form", { onsubmit: (event) => {
      event.preventDefault();
      attempt(go, async () => { await patch(path, { due_ms: fromInput(due.value), ...(each.version ? { version: each.version } : {}) }); toast(`Moved ${each.id}.`); close(); load(); });
    } }, h("p", { class: "muted" }, "Due now: ", exact(each.at_ms)), field("New time", due), h("div", { class: "row" }, button("−1 h", shift(-3_600_000), "small"), button("+10 min", shift(600_000), "small"), button("+1 h", shift(3_600_000), "small"), button("+1 d", shift(86_400_000), "small")), h("footer", {}, button("Keep it", close), go)));
  }

  async function choose() {
    const name = topic.value;
    clear();
    const found = await attempt(null, () => get(`/v1/topics/${seg(name)}/subscriptions`));
    if (!found || !isShown() || name !== topic.value) return;
    put(sub, found.subscriptions.map((each) => h("option", { value: each.config.name }, each.config.name)));
    if (query.get("subscription") && found.subscriptions.some((each) => each.config.name === query.get("subscription"))) sub.value = query.get("subscription");
    if (sub.value) return load();
    put(list, empty("This topic has no subscription", "A schedule lists what a subscription will get.", `curl -X PUT ${location.origin}/v1/topics/${seg(name)}/subscriptions/workers`));
  }
  function clear() {
    state.rows = [];
    state.until = null;
    notice.textContent = "";
    put(list);
    put(sub);
    draw();
  }
  topic.addEventListener("change", choose);
  sub.addEventListener("change", () => { put(list, loading()); load(); });
  let turned = 0;
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && document.activeElement !== svg) return; // else the page scrolls, as everywhere
    event.preventDefault();
    zoomed(event.deltaY > 0 ? 1.25 : 0.8, (event.clientX - svg.getBoundingClientRect().left) / (svg.clientWidth || 600), setRange);
    clearTimeout(turned);
    turned = setTimeout(load, WHEEL_MS);
  }, { passive: false });
  svg.addEventListener("keydown", (event) => {
    const act = { ArrowLeft: () => move(state.from - state.span / 4, state.span), ArrowRight: () => move(state.from + state.span / 4, state.span), "+": () => zoom(0.5, 0.5), "-": () => zoom(2, 0.5) }[event.key];
    if (act && event.target === svg) { event.preventDefault(); act(); }
  });
  const watching = new ResizeObserver(draw);
  watching.observe(svg);
  const passing = setInterval(() => { if (state.rows.length && state.rows[0].at_ms <= nodeNow() && Date.now() - loadedAt > RELOAD_MS) load(); }, 500);
  onleave(() => { watching.disconnect(); clearInterval(passing); clearTimeout(turned); });
  await choose();
}
