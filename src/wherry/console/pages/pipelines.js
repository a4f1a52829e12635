// Spark: the subscriptions that its queries commit their progress to, and how to run a pipeline.

import { get } from "../api.js";
import { h, put } from "../dom.js";
import { count, duration, rate, seg, short } from "../format.js";
import { badge, copyLine, liveTable, page } from "../parts.js";

/** Return whether a subscription is one of Spark: its progress moves although no message is delivered to a consumer. */
const isSpark = (sub, point) => /^(spark|archive|pipeline)/.test(sub.name) || (!sub.consumers && !sub.delivered && point.settled > 0);

/** How often the queries are asked for: their drivers report after each micro-batch, at most. */
const ASK_MS = 2_000;
const TONES = { running: "good", idle: "good", failed: "bad", silent: "warn" };

/** A cell with the state of a query, changed in place. */
const stateOf = (el) => ({ el, update: (row) => { if (el.textContent !== row.state) put(el, badge(row.state, TONES[row.state])); } });

export function show({ root, live, isShown }) {
  const queries = liveTable("Queries of Spark", [
    { head: "Query", text: (row) => row.name },
    { head: "State", make: () => stateOf(h("span", {})) },
    { head: "Topics", text: (row) => row.topics.join(", ") },
    { head: "Micro-batch", num: true, text: (row) => (row.batch < 0 ? "–" : count(row.batch)) },
    { head: "took", num: true, text: (row) => duration(row.batch_ms) },
    { head: "Rows", num: true, text: (row) => count(row.rows) },
    { head: "Speed", num: true, text: (row) => rate(row.rows_per_s) },
    { head: "Not read", num: true, text: (row) => short(row.lag) },
    { head: "Oldest not read", num: true, text: (row) => (row.lag && row.lag_ms !== null ? duration(row.lag_ms) : "–") },
  ], (row) => row.id);
  const running = h("div", {}, h("p", { class: "muted" }, "No query reports itself to this node. One line in the driver does: it works in any session of Spark."), copyLine("wherry.spark.report_queries(spark)"));
  const rows = liveTable("Subscriptions of Spark", [
    { head: "Subscription", text: (row) => row.name },
    { head: "Topic", make: (row) => h("a", { href: `#/topics/${seg(row.topic)}` }, row.topic) },
    { head: "Not read", num: true, text: (row) => short(row.lag) },
    { head: "Oldest not read", num: true, text: (row) => (row.lag ? duration(row.lag_ms) : "–") },
    { head: "Committed", num: true, text: (row) => rate(row.point.settled || 0) },
    { head: "So far", num: true, text: (row) => count(row.counters.acked || 0) },
  ], (row) => JSON.stringify([row.topic, row.name]));
  const place = h("div", {});
  put(root, page("Pipelines", "Queries of Spark that read topics, and how far each of them is."), h("section", { class: "section" }, h("h2", {}, "Queries of Spark"), running), h("section", { class: "section" }, h("h2", {}, "Subscriptions of Spark"), place),
    h("section", { class: "card section" }, h("h2", {}, "What runs where"), h("p", { class: "muted" }, "A pipeline runs in Spark, not in this node. The node knows the progress that its queries commit, which is shown above. Queries that report themselves are shown above with their micro-batches."), copyLine("wherry pipeline run pipeline.toml")));
  let shown = null, asked = 0, listed = false;
  const ask = async () => {
    asked = Date.now();
    const { queries: found } = await get("/v1/queries", { quiet: true }).catch(() => ({ queries: [] }));
    if (!isShown() || !(listed || found.length)) return;
    if (!listed) put(running, queries.el);
    listed = true;
    queries.update(found);
  };
  live((now) => {
    if (Date.now() - asked > ASK_MS) ask();
    const found = now.figures.topics.flatMap((topic) => topic.subscriptions.map((each) => ({ ...each, topic: topic.name, point: now.subs.get(JSON.stringify([topic.name, each.name]))?.at(-1) || {} })).filter((each) => isSpark(each, each.point)));
    const wanted = found.length ? "table" : "empty";
    if (shown !== wanted) { shown = wanted; put(place, wanted === "table" ? rows.el : h("p", { class: "muted" }, "No query of Spark has committed progress here: there is no subscription that begins with “spark”, “archive” or “pipeline”, and none that moves without a consumer.")); }
    if (wanted === "table") rows.update(found);
  });
}
