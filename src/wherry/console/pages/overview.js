// The broker at a glance: rates, latency, lag, and each topic with its last minute.

import { lineChart, sparkline, stateBar, TIMES } from "../charts.js";
import { h, put, setText } from "../dom.js";
import { bytes, count, decade, duration, rate, seconds, seg, short } from "../format.js";
import { badge, empty, leftOff, liveTable, page } from "../parts.js";

const TILES = [
  ["Published", (t) => rate(t.published)],
  ["Delivered", (t) => rate(t.delivered)],
  ["Settled", (t) => rate(t.settled)],
  ["Ready", (t) => short(t.ready)],
  ["Leased", (t) => short(t.leased)],
  ["Scheduled", (t) => short(t.scheduled)],
  ["Dead letters", (t) => short(t.dead), (t) => t.dead > 0],
  ["Oldest ready", (t) => (t.lagMs ? duration(t.lagMs) : "–"), (t) => t.lagMs > 600_000],
];

export function topicTable() {
  const point = (live, topic) => live.topics.get(topic.name)?.at(-1) || {};
  let now = null;
  const table = liveTable("Topics", [
    { head: "Topic", make: (topic) => h("a", { href: `#/topics/${seg(topic.name)}` }, topic.name) },
    { head: "Last minute", make: (topic) => { const line = sparkline(`Publishes a second of ${topic.name}`); return { el: line.el, update: (row) => line.update((now.topics.get(row.name) || []).map((each) => each.published)) }; } },
    { head: "Published", num: true, text: (row) => rate(point(now, row).published) },
    { head: "Settled", num: true, text: (row) => rate(point(now, row).settled) },
    { head: "State", make: () => { const bar = stateBar(); return { el: bar.el, update: (row) => bar.update(point(now, row)) }; } },
    { head: "Ready", num: true, text: (row) => short(point(now, row).ready) },
    { head: "Leased", num: true, text: (row) => short(point(now, row).leased) },
    { head: "Scheduled", num: true, text: (row) => short(point(now, row).scheduled) },
    { head: "Dead", num: true, make: (topic) => { const link = h("a", { href: `#/dead?topic=${seg(topic.name)}` }); return { el: link, update: (row) => { setText(link, short(row.dead)); link.className = row.dead ? "bad-text" : "muted"; } }; } },
    { head: "Oldest ready", num: true, text: (row) => (point(now, row).lagMs ? duration(point(now, row).lagMs) : "–") },
    { head: "Size", num: true, text: (row) => bytes(row.bytes) },
  ], (row) => row.name);
  const more = h("p", { class: "muted", hidden: true });
  return { el: h("div", { class: "section" }, table.el, more), update(live, keep = () => true) { now = live; table.update(live.figures.topics.filter(keep)); leftOff(more, live.figures); } };
}

export function show({ root, live }) {
  const values = TILES.map(([name]) => h("div", { class: "tile" }, h("dt", {}, name), h("dd", {}, "–")));
  const rates = lineChart({ title: "Messages a second", format: short, floor: 1, series: [{ name: "published", label: "published", tone: "accent" }, { name: "delivered", label: "delivered", tone: "second" }, { name: "settled", label: "settled", tone: "third" }] });
  const latency = lineChart({ title: "Latency, 99th percentile", format: seconds, mark: decade, floor: 0.001, log: true, series: [{ name: "publish99", label: "publish", tone: "accent" }, { name: "delivery99", label: "delivery", tone: "second" }, { name: "settle99", label: "settle", tone: "third" }] });
  const waiting = lineChart({ title: "Waiting", format: short, floor: 10, series: [{ name: "ready", label: "ready", tone: "accent" }, { name: "leased", label: "leased", tone: "second" }, { name: "scheduled", label: "scheduled", tone: "third" }] });
  const lag = lineChart({ title: "Age of the oldest message that is ready", format: (ms) => (ms ? duration(ms) : "0"), floor: 1000, steps: TIMES, series: [{ name: "lagMs", label: "oldest", tone: "accent" }] });
  const node = h("div", { class: "row muted" }), topics = topicTable(), place = h("div", {});
  const trouble = h("div", {});
  put(root, page("Overview", null, h("a", { class: "button", href: "#/publish" }, "Publish")), trouble, h("dl", { class: "tiles" }, values), h("div", { class: "cards charts" }, rates.el, latency.el, waiting.el, lag.el),
    h("section", { class: "section" }, h("header", {}, h("h2", {}, "Topics"), node), place));
  let shown = null;
  live((now) => {
    const latest = now.totals.at(-1);
    if (latest) TILES.forEach(([, text, alarm], i) => { setText(values[i].lastChild, text(latest)); values[i].classList.toggle("alarm", Boolean(alarm?.(latest))); });
    for (const chart of [rates, latency, waiting, lag]) chart.update(now.totals);
    const wanted = now.figures.topics.length ? "table" : "empty";
    if (shown !== wanted) {
      shown = wanted;
      put(place, wanted === "table" ? topics.el : empty("No topics yet", "A topic keeps messages for its subscriptions. Create one here, or from a shell:", `curl -X PUT ${location.origin}/v1/topics/orders -H 'Content-Type: application/json' -d '{"partitions": 4}'`, h("a", { class: "button primary", href: "#/topics?new=1" }, "New topic")));
    }
    if (wanted === "table") topics.update(now);
    const broker = now.figures.broker;
    setText(node, broker ? `${count(broker.connections)} connections · journal ${bytes(broker.journal_bytes)} · cache ${bytes(broker.cache_bytes)} of ${bytes(broker.cache_bytes_max)}` : "Latency and the figures of the node need a key that may consume all topics.");
    const bad = broker?.failed ? "The journal failed: nothing can be stored or confirmed. See the log of the node." : broker?.trouble ? "A flush or a checkpoint fails and is tried again. See the log of the node." : "";
    if (trouble.textContent !== bad) put(trouble, bad && badge(bad, "bad"));
  });
}
