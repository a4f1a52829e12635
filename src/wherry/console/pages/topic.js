// One topic: its settings, its charts, its partitions and subscriptions.

import { del, get } from "../api.js";
import { lineChart } from "../charts.js";
import { h, put, setText } from "../dom.js";
import { bytes, count, duration, plural, rate, seg, short } from "../format.js";
import { attempt, badge, button, confirmed, empty, facts, failed, liveTable, loading, page, table, toast } from "../parts.js";
import { subscriptionForm, topicForm } from "../topic-form.js";
import { standing } from "./subscriptions.js";

const PARTITIONS = 50;

export async function show({ root, names, live, isShown, reload }) {
  const name = names[1], path = `/v1/topics/${seg(name)}`;
  put(root, loading());
  const { config } = await get(path);
  if (!isShown()) return;
  const remove = async () => {
    if (!(await confirmed(`Delete ${name}?`, "Its messages, subscriptions and dead letters are deleted too. This cannot be undone.", { name }))) return;
    await attempt(null, async () => { await del(path); toast(`Deleted ${name}.`); location.hash = "#/topics"; });
  };
  const series = [{ name: "published", label: "published", tone: "accent" }, { name: "delivered", label: "delivered", tone: "second" }, { name: "settled", label: "settled", tone: "third" }];
  const rates = lineChart({ title: "Messages a second", format: short, floor: 1, spanMs: 60_000, series });
  const waiting = lineChart({ title: "Waiting", format: short, floor: 10, spanMs: 60_000, series: [{ name: "ready", label: "ready", tone: "accent" }, { name: "leased", label: "leased", tone: "second" }, { name: "scheduled", label: "scheduled", tone: "third" }] });
  const partitions = h("div", {}), subscriptions = h("div", {});
  const setUp = facts([
    ["Order", config.order], ["Mesh", config.mesh === "flow" ? "flow: passed on to peers" : "safe: this node alone"], ["Partitions", count(config.partitions)], ["Persistent", config.persistent ? "yes" : "no, in memory"],
    ["Keeps", config.keep === "settled" ? "until settled" : config.keep === "age" ? duration(config.keep_ms) : bytes(config.keep_bytes)],
    ["Messages at most", config.messages_max === null ? "no bound" : count(config.messages_max)], ["Bytes at most", config.bytes_max === null ? "no bound" : bytes(config.bytes_max)],
    ["What does not fit", config.overflow], ["Largest payload", bytes(config.payload_bytes_max)],
    ...Object.entries(config.labels || {}).slice(0, 20),
  ]);
  const link = (to, label) => h("a", { class: "button", href: `#/${to}?topic=${seg(name)}` }, label);
  const figures = h("p", { class: "muted num" });
  put(root,
    page(name, null, link("messages", "Browse"), link("publish", "Publish"), link("schedule", "Schedule"), link("dead", "Dead letters"), button("Change", () => topicForm(config, reload)), button("Delete", remove, "danger")),
    figures, h("div", { class: "cards charts" }, rates.el, waiting.el), h("div", { class: "card" }, setUp),
    h("section", { class: "section" }, h("header", {}, h("h2", {}, "Subscriptions"), h("button", { class: "small", type: "button", "data-new": "", onclick: () => subscriptionForm(name, null) }, "New subscription")), subscriptions),
    h("section", { class: "section" }, h("header", {}, h("h2", {}, "Partitions"), button("Refresh", () => fill(), "small")), partitions));

  async function fill(first = 0) {
    try {
      const found = (await get(`${path}/partitions?first=${first}&limit=${PARTITIONS}`)).partitions;
      const subs = [...new Set(found.flatMap((each) => Object.keys(each.lag)))].slice(0, 6);
      const heads = ["Partition", "First offset", "Next offset", "Not finished", ...subs.map((each) => `Not settled: ${each}`)].map((text, i) => ({ text, num: i > 0 }));
      put(partitions, table("Partitions", heads, found.map((each) => [h("a", { href: `#/messages?topic=${seg(name)}&partition=${each.partition}` }, `Partition ${each.partition}`), count(each.first_offset), count(each.next_offset), count(each.messages), ...subs.map((sub) => (sub in each.lag ? count(each.lag[sub]) : "–"))])),
        config.partitions > PARTITIONS && h("div", { class: "row" }, button("Earlier", () => fill(Math.max(0, first - PARTITIONS)), "small"), h("span", { class: "muted num" }, `${first} to ${first + found.length - 1} of ${count(config.partitions)}`), button("Later", () => first + PARTITIONS < config.partitions && fill(first + PARTITIONS), "small")));
    } catch (fault) { failed(partitions, fault); }
  }
  fill();
  const rows = subscriptionTable(name);
  let shown = null;
  live((now) => {
    const points = now.topics.get(name) || [], topic = now.figures.topics.find((each) => each.name === name);
    rates.update(points);
    waiting.update(points);
    if (!topic) return;
    setText(figures, `${plural(topic.messages, "message")}, ${bytes(topic.bytes)} · ${count(topic.counters.published || 0)} published so far · ${plural(topic.dead, "dead letter")}`);
    const wanted = topic.subscriptions.length ? "table" : "empty";
    if (shown !== wanted) {
      shown = wanted;
      put(subscriptions, wanted === "table" ? rows.el : empty("No subscriptions yet", "Messages wait until there is a subscription. Create one, then pull from it:", `curl -X PUT ${location.origin}${path}/subscriptions/workers`));
    }
    if (wanted === "table") rows.update(topic.subscriptions.map((each) => ({ ...each, topic: name, standing: standing(now, name, each), point: now.subs.get(JSON.stringify([name, each.name]))?.at(-1) || {} })));
  });
}

function subscriptionTable(topic) {
  return liveTable("Subscriptions", [
    { head: "Subscription", make: (row) => h("a", { href: `#/subscriptions?topic=${seg(topic)}&name=${seg(row.name)}` }, row.name) },
    { head: "Standing", make: () => { const el = h("span", {}); return { el, update: (row) => { if (el.textContent !== row.standing[0]) put(el, badge(...row.standing)); } }; } },
    { head: "Consumers", num: true, text: (row) => count(row.consumers) },
    { head: "Delivered", num: true, text: (row) => rate(row.point.delivered || 0) },
    { head: "Ready", num: true, text: (row) => short(row.ready) },
    { head: "Leased", num: true, text: (row) => short(row.leased) },
    { head: "Scheduled", num: true, text: (row) => short(row.scheduled) },
    { head: "Dead", num: true, text: (row) => short(row.dead) },
    { head: "Unsettled", num: true, text: (row) => short(row.lag) },
    { head: "Oldest ready", num: true, text: (row) => (row.ready && row.ready_ms !== null ? duration(row.ready_ms) : "–") },
  ], (row) => row.name);
}
