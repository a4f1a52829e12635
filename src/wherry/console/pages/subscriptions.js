// Subscriptions and their consumers: which keep up, which are slow, which were cut off and why.

import { del, get } from "../api.js";
import { h, put } from "../dom.js";
import { bytes, count, duration, rate, seg, short, when } from "../format.js";
import { attempt, badge, button, confirmed, empty, field, input, leftOff, liveTable, loading, page, table, toast } from "../parts.js";
import { subscriptionForm } from "../topic-form.js";

const SLOW_MS = 60_000, BEHIND_MS = 5_000;
const SORT_MS = 15_000; // rows change places this often at most, so that the table does not jump

/**
 * Return how a subscription keeps up, as words and a tone: by its ready messages, its consumers, and its ready messages
 * half a minute ago. Scheduled messages do not count. Where the age of the oldest ready message is not known (null), a
 * subscription is slow if it would need more than a minute for its ready messages.
 */
export function standing(live, topic, sub) {
  const points = live.subs.get(JSON.stringify([topic, sub.name])) || [];
  if (!sub.ready && !sub.leased) return ["keeping up", "good"];
  if (!sub.consumers) return ["no consumer", "bad"];
  const then = points.at(-31), old = sub.ready_ms;
  if (then && (old === null || old > BEHIND_MS) && sub.ready > then.ready + 10 && sub.ready > then.ready * 1.1) return ["falling behind", "bad"];
  const pace = points.slice(-30).reduce((sum, each) => sum + each.delivered, 0) / 30;
  if (sub.ready && (old === null ? then?.ready > 0 && sub.ready > (pace * SLOW_MS) / 1000 : old > SLOW_MS)) return ["slow", "warn"];
  return ["keeping up", "good"];
}

export function show({ root, live, query }) {
  const search = input("search", { type: "search", placeholder: "topic or subscription", "data-search": "", value: query.get("name") || "" });
  const rows = liveTable("Subscriptions", [
    { head: "Subscription", make: (row) => h("span", {}, h("button", { type: "button", class: "plain small name", "aria-expanded": "false", onclick: (event) => open(row, event.currentTarget.closest("tr")) }, row.name), !row.durable && badge("ephemeral")) },
    { head: "Topic", make: (row) => h("a", { href: `#/topics/${seg(row.topic)}` }, row.topic) },
    { head: "Standing", make: () => { const el = h("span", {}); return { el, update: (row) => { if (el.textContent !== row.standing[0]) put(el, badge(...row.standing)); } }; } },
    { head: "Consumers", num: true, text: (row) => count(row.consumers) },
    { head: "Delivered", num: true, text: (row) => rate(row.point.delivered || 0) },
    { head: "Settled", num: true, text: (row) => rate(row.point.settled || 0) },
    { head: "Failed", num: true, text: (row) => short(row.counters.failed || 0) },
    { head: "Unsettled", num: true, text: (row) => short(row.lag) },
    { head: "Oldest ready", num: true, text: (row) => (row.ready && row.ready_ms !== null ? duration(row.ready_ms) : "–") },
    { head: "Leased", num: true, text: (row) => short(row.leased) },
    { head: "Dead", num: true, text: (row) => short(row.dead) },
  ], (row) => JSON.stringify([row.topic, row.name]), { onrow: (row, line) => open(row, line) });
  const place = h("div", {}), more = h("p", { class: "muted", hidden: true }), cut = h("div", {}), refused = h("div", {});
  put(root, page("Subscriptions", "Each subscription gets every message of its topic; its consumers share them."),
    h("div", { class: "filters" }, field("Search", search)), place, more,
    h("section", { class: "section" }, h("h2", {}, "Cut off"), cut), h("section", { class: "section" }, h("h2", {}, "Bounds that were hit"), refused));
  let last = null, shown = null, sorted = 0, places = new Map();

  function draw() {
    if (!last) return;
    const all = last.figures.topics.flatMap((topic) => topic.subscriptions.map((each) => ({ ...each, topic: topic.name, standing: standing(last, topic.name, each), point: last.subs.get(JSON.stringify([topic.name, each.name]))?.at(-1) || {} })));
    const wanted = all.length ? "table" : "empty";
    if (shown !== wanted) {
      shown = wanted;
      put(place, wanted === "table" ? rows.el : empty("No subscriptions yet", "Create one on the page of a topic, or from a shell:", `curl -X PUT ${location.origin}/v1/topics/orders/subscriptions/workers`));
    }
    leftOff(more, last.figures);
    const text = search.value.toLowerCase();
    const id = (each) => JSON.stringify([each.topic, each.name]), worst = { bad: 0, warn: 1, good: 2 };
    if (Date.now() - sorted > SORT_MS || all.some((each) => !places.has(id(each)))) {
      sorted = Date.now();
      places = new Map(all.toSorted((a, b) => worst[a.standing[1]] - worst[b.standing[1]] || (a.topic + a.name < b.topic + b.name ? -1 : 1)).map((each, i) => [id(each), i]));
    }
    if (wanted === "table") rows.update(all.filter((each) => `${each.topic} ${each.name}`.toLowerCase().includes(text)).sort((a, b) => places.get(id(a)) - places.get(id(b))));
    const gone = last.figures.topics.flatMap((topic) => topic.removals.map((each) => ({ ...each, topic: topic.name }))).sort((a, b) => b.at_ms - a.at_ms).slice(0, 100);
    const removals = JSON.stringify(gone);
    if (cut.shown !== removals) {
      cut.shown = removals;
      put(cut, gone.length ? table("Cut off", ["Subscription", "Topic", "When", { text: "Why", wide: true }], gone.map((each) => [each.subscription, each.topic, when(each.at_ms), each.why])) : h("p", { class: "muted" }, "No subscription was cut off. One that falls further behind than its buffer allows, or whose webhook cannot be reached, is removed and listed here."));
    }
    const hits = [...last.figures.topics.flatMap((topic) => Object.entries(topic.refused).map(([code, n]) => [topic.name, "publishes refused", code, n])), ...(last.figures.broker?.tallies || []).filter((each) => /refused|cut_off|removals/.test(each.name)).map((each) => ["(the node)", each.about.replace(/,? (since the start|by (why|the bound)).*$/, ""), Object.values(each.labels).join(", "), each.value])];
    const refusals = JSON.stringify(hits);
    if (refused.shown !== refusals) {
      refused.shown = refusals;
      put(refused, hits.length ? table("Bounds that were hit", ["Topic", "What", "Bound", { text: "Since the start", num: true }], hits.map(([topic, what, code, n]) => [topic, what, code, count(n)])) : h("p", { class: "muted" }, "No publish and no request was refused since the node started."));
    }
  }
  search.addEventListener("input", draw);
  live((now) => { last = now; draw(); });

  function open(row, line) {
    const opener = line.querySelector(".name");
    if (line.extra) { line.extra.remove(); line.extra = null; opener?.setAttribute("aria-expanded", "false"); return; }
    const box = h("td", { colSpan: 11 }, loading());
    line.extra = h("tr", { class: "extra" }, box);
    line.after(line.extra);
    opener?.setAttribute("aria-expanded", "true");
    detail(row, box);
  }
}

async function detail(row, box) {
  const path = `/v1/topics/${seg(row.topic)}/subscriptions/${seg(row.name)}`;
  const found = await attempt(null, () => Promise.all([get(`${path}/consumers`), get(path)]));
  if (!found) return put(box, h("p", { class: "muted" }, "This cannot be shown."));
  const [{ consumers }, { config }] = found;
  const remove = async () => {
    if (!(await confirmed(`Delete ${row.name}?`, "Its progress and its dead letters are deleted too.", { name: row.name }))) return;
    await attempt(null, async () => { await del(path); toast(`Deleted ${row.name}.`); });
  };
  const dismiss = (name) => attempt(null, async () => { await del(`${path}/consumers/${seg(name)}`); toast(`${name} left; the messages that it held wait again.`); detail(row, box); });
  const full = (each) => each.out_messages >= each.buffer_messages || each.out_bytes >= each.buffer_bytes;
  const share = (each) => Math.round(100 * Math.max(each.out_messages / each.buffer_messages, each.out_bytes / each.buffer_bytes));
  put(box, h("div", { class: "section" },
    h("p", { class: "muted" }, `Lease ${duration(config.lease_ms)} · ${config.retry.attempts === null ? "retries for ever" : `${config.retry.attempts} attempts`} · partitions ${config.assignment}${config.key_order ? " · keys in order" : ""}${config.buffer_messages === null ? "" : ` · cut off beyond ${count(config.buffer_messages)} messages`}${config.webhook ? ` · pushed to ${config.webhook.url}` : ""}`),
    consumers.length
      ? table("Consumers", ["Consumer", "Standing", { text: "Holds", num: true }, { text: "Buffer used", num: true }, "Partitions", ""], consumers.map((each) => [each.name, full(each) ? badge("buffer full", "warn") : badge(each.out_messages ? "busy" : "idle", each.out_messages ? "accent" : ""), `${count(each.out_messages)} · ${bytes(each.out_bytes)}`, `${share(each)} %`, each.partitions.length > 8 ? `${each.partitions.slice(0, 8).join(", ")} … (${each.partitions.length})` : each.partitions.join(", ") || "–", button("Dismiss", () => dismiss(each.name), "small")]))
      : empty("No consumer is connected", "Pull from this subscription:", `curl -X POST '${location.origin}${path}/pull?wait_ms=10000'`),
    h("div", { class: "row" }, button("Change", () => subscriptionForm(row.topic, config, () => detail(row, box)), "small"), button("Refresh", () => detail(row, box), "small"), h("a", { class: "button small", href: `#/schedule?topic=${seg(row.topic)}&subscription=${seg(row.name)}` }, "Schedule"), button("Delete", remove, "small danger"))));
}
