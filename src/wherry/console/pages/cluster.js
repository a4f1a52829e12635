// This node. There is no cluster yet, and the page states that.

import { get } from "../api.js";
import { h, put, setText } from "../dom.js";
import { bytes, count } from "../format.js";
import { badge, page } from "../parts.js";

const ROWS = [
  ["Journal", (b) => bytes(b.journal_bytes)],
  ["Entries written", (b) => count(b.entries)],
  ["Waiting for the disk", (b) => bytes(b.pending_bytes)],
  ["Cache", (b) => `${bytes(b.cache_bytes)} of ${bytes(b.cache_bytes_max)}`],
  ["Leases out", (b) => count(b.leases)],
  ["HTTP connections", (b) => count(b.connections)],
];

export async function show({ root, live, isShown }) {
  const info = await get("/v1");
  const ready = await get("/readyz", { quiet: true }).then(() => true, () => false);
  if (!isShown()) return;
  const values = ROWS.map(([name]) => h("div", {}, h("dt", {}, name), h("dd", {}, "–")));
  const state = h("span", {});
  put(root, page("Cluster", "This node serves alone: Wherry has no clusters yet."),
    h("article", { class: "card section" }, h("div", { class: "named" }, h("h2", {}, location.host), h("span", { class: "muted" }, `${info.name} ${info.version}`), state), h("dl", { class: "facts" }, values)),
    h("section", { class: "card section" }, h("h2", {}, "What this page will show"), h("p", { class: "muted" }, "When several nodes form a cluster this page will show each of them, which shards it owns, how far its copies are behind, and the last handovers. Until then it shows the node that you are connected to.")));
  live(({ figures: { broker } }) => {
    const word = broker?.failed ? ["failed", "bad"] : broker?.trouble ? ["in trouble", "warn"] : ready ? ["ready", "good"] : ["not ready", "warn"];
    if (state.textContent !== word[0]) put(state, badge(...word));
    ROWS.forEach(([, text], i) => setText(values[i].lastChild, broker ? text(broker) : "–"));
  });
}
