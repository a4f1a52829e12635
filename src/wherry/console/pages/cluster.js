// This node, and one day its cluster: it says plainly which of the two it shows.

import { get } from "../api.js";
import { h, put, say } from "../dom.js";
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

export async function show({ root, live, here }) {
  const info = await get("/v1");
  const ready = await get("/readyz", { quiet: true }).then(() => true, () => false);
  if (!here()) return;
  const values = ROWS.map(([name]) => h("div", {}, h("dt", {}, name), h("dd", {}, "–")));
  const state = h("span", {});
  put(root, page("Cluster", "One node serves here: there is no cluster yet."),
    h("article", { class: "card section" }, h("div", { class: "named" }, h("h2", {}, location.host), h("span", { class: "muted" }, `${info.name} ${info.version}`), state), h("dl", { class: "facts" }, values)),
    h("section", { class: "card section" }, h("h2", {}, "What will stand here"), h("p", { class: "muted" }, "When several nodes form a cluster this page will show each of them, which shards it owns, how far its copies are behind, and the last handovers. Until then it shows the node that you are connected to.")));
  live(({ figures: { broker } }) => {
    const word = broker?.failed ? ["failed", "bad"] : broker?.trouble ? ["in trouble", "warn"] : ready ? ["ready", "good"] : ["not ready", "warn"];
    if (state.textContent !== word[0]) put(state, badge(...word));
    ROWS.forEach(([, text], i) => say(values[i].lastChild, broker ? text(broker) : "–"));
  });
}
