// Spark: the subscriptions that its queries commit their progress to, and how to run a pipeline.

import { h, put } from "../dom.js";
import { count, duration, rate, seg, short } from "../format.js";
import { copyLine, liveTable, page } from "../parts.js";

/** Return whether a subscription is one of Spark: its progress moves although no message is delivered to a consumer. */
const isSpark = (sub, point) => /^(spark|archive|pipeline)/.test(sub.name) || (!sub.consumers && !sub.delivered && point.settled > 0);

export function show({ root, live }) {
  const rows = liveTable("Subscriptions of Spark", [
    { head: "Subscription", text: (row) => row.name },
    { head: "Topic", make: (row) => h("a", { href: `#/topics/${seg(row.topic)}` }, row.topic) },
    { head: "Not read", num: true, text: (row) => short(row.lag) },
    { head: "Oldest not read", num: true, text: (row) => (row.lag ? duration(row.lag_ms) : "–") },
    { head: "Committed", num: true, text: (row) => rate(row.point.settled || 0) },
    { head: "So far", num: true, text: (row) => count(row.counters.acked || 0) },
  ], (row) => JSON.stringify([row.topic, row.name]));
  const place = h("div", {});
  put(root, page("Pipelines", "Queries of Spark that read topics, and how far each of them is."), h("section", { class: "section" }, h("h2", {}, "Subscriptions of Spark"), place),
    h("section", { class: "card section" }, h("h2", {}, "What runs where"), h("p", { class: "muted" }, "A pipeline runs in Spark, not in this node. The node knows the progress that its queries commit, which is shown above. Runs, their stages and their reports will be shown here once pipelines send them to the node; until then each run writes its report as a page of its own."), copyLine("wherry pipeline run pipeline.toml")));
  let shown = null;
  live((now) => {
    const found = now.figures.topics.flatMap((topic) => topic.subscriptions.map((each) => ({ ...each, topic: topic.name, point: now.subs.get(JSON.stringify([topic.name, each.name]))?.at(-1) || {} })).filter((each) => isSpark(each, each.point)));
    const wanted = found.length ? "table" : "empty";
    if (shown !== wanted) { shown = wanted; put(place, wanted === "table" ? rows.el : h("p", { class: "muted" }, "No query of Spark has committed progress here: there is no subscription that begins with “spark”, “archive” or “pipeline”, and none that moves without a consumer.")); }
    if (wanted === "table") rows.update(found);
  });
}
