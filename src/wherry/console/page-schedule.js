// What comes when: a timeline to zoom into, and each message with a way to cancel it or to move it.

import { del, get, patch, query as asQuery } from "./api.js";
import { h, put, s } from "./dom.js";
import { ago, count, exact, fromInput, localInput, plural, seg, when } from "./format.js";
import { attempt, button, confirmed, dialog, empty, field, input, loading, page, select, table, toast } from "./parts.js";
import { topicNames } from "./page-messages.js";
import { preview } from "./payload.js";

const LIMIT = 1_000, LISTED = 100, BINS = 60, MARKS_MAX = 80;
const SPANS = [["15 min", 900_000], ["1 h", 3_600_000], ["6 h", 21_600_000], ["1 d", 86_400_000], ["7 d", 604_800_000], ["30 d", 2_592_000_000]];
const HEIGHT = 150, BASE = 122;

export async function show({ root, query, here, onleave }) {
  put(root, loading());
  const topics = await topicNames();
  if (!here()) return;
  if (!topics.length) return put(root, page("Schedule"), empty("No topics yet", "Messages with a due time stand here before they are handed over.", null, h("a", { class: "button primary", href: "#/topics?new=1" }, "New topic")));
  const best = query.get("topic") || (topics.find((each) => each.order === "timeline") || topics[0]).name;
  const topic = select("topic", topics.map((each) => each.name), best), sub = select("subscription", []);
  const state = { from: Date.now(), span: 3_600_000, rows: [], more: false };
  const svg = s("svg", { class: "timeline", height: HEIGHT, role: "group", "aria-label": "Timeline", tabindex: 0 });
  const list = h("div", { class: "section" }), said = h("p", { class: "muted num", role: "status" });
  const spans = h("div", { class: "segmented", role: "group", "aria-label": "How much time to show" }, SPANS.map(([name, ms]) => h("button", { type: "button", class: "small", "data-ms": ms, onclick: () => move(Date.now(), ms) }, name)));
  const tools = h("div", { class: "row" }, spans, button("Earlier", () => move(state.from - state.span / 2, state.span), "small"), button("Later", () => move(state.from + state.span / 2, state.span), "small"), button("Zoom in", () => zoom(0.5, 0.5), "small"), button("Zoom out", () => zoom(2, 0.5), "small"));
  put(root, page("Schedule", "What will be handed over, and when. Click a bar to zoom into it."), h("div", { class: "filters" }, field("Topic", topic), field("Subscription", sub)), h("section", { class: "card section" }, tools, svg, said), list);

  const x = (at) => 8 + ((at - state.from) / state.span) * ((svg.clientWidth || 600) - 16);
  function move(from, span) { state.from = Math.max(0, Math.round(from)); state.span = Math.max(1000, Math.round(span)); load(); }
  function zoom(factor, share) { const span = state.span * factor; move(state.from + (state.span - span) * share, span); }

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
    const now = Date.now(), width = svg.clientWidth || 600;
    put(svg, ticks(), s("line", { class: "base", x1: 0, x2: width, y1: BASE, y2: BASE }), state.rows.length > MARKS_MAX ? bars() : marks(),
      now >= state.from && now < state.from + state.span && s("line", { class: "now", x1: x(now), x2: x(now), y1: 0, y2: BASE + 4 }));
    for (const each of spans.children) each.setAttribute("aria-pressed", String(Number(each.dataset.ms) === state.span));
  }

  async function load() {
    if (!sub.value) return;
    draw();
    const found = await attempt(null, () => get(`/v1/topics/${seg(topic.value)}/subscriptions/${seg(sub.value)}/scheduled${asQuery({ from_ms: Math.max(state.from, Date.now() + 1), to_ms: state.from + state.span, limit: LIMIT })}`));
    if (!found || !here()) return;
    state.rows = found.messages;
    state.more = Boolean(found.next);
    said.textContent = `${state.more ? "the first " : ""}${plural(state.rows.length, "message")} in this range`;
    draw();
    put(list, state.rows.length
      ? table("Scheduled messages", ["Due", "Exactly", "Id", "Key", { text: "Payload", wide: true }, ""], state.rows.slice(0, LISTED).map((each) => [when(each.at_ms), new Date(each.at_ms).toLocaleString("en-GB"), h("a", { class: "mono", href: `#/messages?topic=${seg(topic.value)}&kind=id&what=${seg(each.id)}` }, each.id), each.key ?? "–", h("span", { class: "mono" }, preview(each)), h("span", { class: "acts" }, button("Re-time", () => retime(each), "small"), button("Cancel", () => cancel(each), "small danger"))]))
      : empty("Nothing is due in this range", "Look at more time, or publish a message with a due time:", `curl -X POST ${location.origin}/v1/topics/${seg(topic.value)}/messages -H 'Content-Type: application/json' -d '{"payload": "later", "due_ms": ${Date.now() + 600_000}}'`, h("a", { class: "button", href: `#/publish?topic=${seg(topic.value)}` }, "Publish")),
      state.rows.length > LISTED && h("p", { class: "muted" }, `${count(state.rows.length - LISTED)} more: zoom in to see them.`));
  }

  const path = (each) => `/v1/topics/${seg(topic.value)}/messages/${seg(each.id)}`;
  async function cancel(each) {
    if (!(await confirmed("Cancel this message?", `${each.id} was to come ${ago(each.at_ms)}. It will not be handed over.`, { action: "Cancel it" }))) return;
    await attempt(null, async () => { await del(path(each)); toast(`Cancelled ${each.id}.`); load(); });
  }
  function retime(each) {
    const due = input("due", { type: "datetime-local", step: 1, required: true, value: localInput(each.at_ms) });
    const go = h("button", { type: "submit", class: "primary" }, "Move");
    const shift = (ms) => () => { due.value = localInput(fromInput(due.value) + ms); };
    dialog(`Re-time ${each.id}`, (close) => h("form", { onsubmit: (event) => {
      event.preventDefault();
      attempt(go, async () => { await patch(path(each), { due_ms: fromInput(due.value), ...(each.version ? { version: each.version } : {}) }); toast(`Moved ${each.id}.`); close(); load(); });
    } }, h("p", { class: "muted" }, "Due now: ", exact(each.at_ms)), field("New time", due), h("div", { class: "row" }, button("−1 h", shift(-3_600_000), "small"), button("+10 min", shift(600_000), "small"), button("+1 h", shift(3_600_000), "small"), button("+1 d", shift(86_400_000), "small")), h("footer", {}, button("Keep it", close), go)));
  }

  async function choose() {
    const found = await attempt(null, () => get(`/v1/topics/${seg(topic.value)}/subscriptions`));
    if (!found || !here()) return;
    put(sub, found.subscriptions.map((each) => h("option", { value: each.config.name }, each.config.name)));
    if (query.get("subscription") && found.subscriptions.some((each) => each.config.name === query.get("subscription"))) sub.value = query.get("subscription");
    state.rows = [];
    said.textContent = "";
    draw();
    if (sub.value) return load();
    put(list, empty("Nobody subscribes to this topic", "A schedule is what a subscription will be handed.", `curl -X PUT ${location.origin}/v1/topics/${seg(topic.value)}/subscriptions/workers`));
  }
  topic.addEventListener("change", choose);
  sub.addEventListener("change", load);
  svg.addEventListener("wheel", (event) => { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, (event.clientX - svg.getBoundingClientRect().left) / (svg.clientWidth || 600)); }, { passive: false });
  svg.addEventListener("keydown", (event) => {
    const act = { ArrowLeft: () => move(state.from - state.span / 4, state.span), ArrowRight: () => move(state.from + state.span / 4, state.span), "+": () => zoom(0.5, 0.5), "-": () => zoom(2, 0.5) }[event.key];
    if (act && event.target === svg) { event.preventDefault(); act(); }
  });
  const watching = new ResizeObserver(draw);
  watching.observe(svg);
  onleave(() => watching.disconnect());
  await choose();
}
