// Who is connected: over HTTP and STOMP as a count, over AMQP one by one where the node serves it.

import { get } from "./api.js";
import { h, put, say } from "./dom.js";
import { count } from "./format.js";
import { attempt, badge, button, copyLine, loading, page, table } from "./parts.js";

export async function show({ root, live, here }) {
  const tiles = ["HTTP connections", "Requests under way", "Waiting requests", "STOMP sessions"].map((name) => h("div", { class: "tile" }, h("dt", {}, name), h("dd", {}, "–")));
  const place = h("div", { class: "section" }, loading());
  put(root, page("Connections", "Clients that hold a connection to this node."), h("dl", { class: "tiles" }, tiles), h("section", { class: "section" }, h("header", {}, h("h2", {}, "AMQP"), button("Refresh", load, "small")), place));
  live(({ figures: { broker } }) => [broker?.connections, broker?.requests, broker?.waits, broker?.gauges.wherry_stomp_sessions].forEach((n, i) => say(tiles[i].lastChild, n === undefined ? "–" : count(n))));

  async function load() {
    let found;
    try {
      found = await get("/api/connections");
    } catch (fault) {
      if (fault.status === 404) return put(place, h("p", { class: "muted" }, "This node serves no AMQP: it is switched on in the section amqp of its configuration."));
      return put(place, h("p", { class: "bad-text" }, fault.message));
    }
    if (!here()) return;
    const client = (each) => [each.client_properties?.product, each.client_properties?.version].filter(Boolean).join(" ") || "–";
    put(place, found.length
      ? table("Connections", ["Name", "Protocol", "Client", "User", "Host", { text: "Channels", num: true }, "State", ""], found.map((each) => [h("span", { class: "mono" }, each.name), each.protocol || "–", client(each), each.user || "–", each.vhost ?? "–", count(each.channels || 0), badge(each.state || "running", each.state === "running" || !each.state ? "good" : "warn"), button("Channels", (event) => channels(each, event.currentTarget.closest("tr")), "small")]))
      : h("div", { class: "section" }, h("p", { class: "muted" }, "Nobody is connected. Clients of RabbitMQ connect to the AMQP port of this node, such as with pika:"), copyLine(`pika.BlockingConnection(pika.URLParameters("amqp://${location.hostname}:5672/"))`)));
  }

  async function channels(each, line) {
    if (line.extra) { line.extra.remove(); line.extra = null; return; }
    const all = await attempt(null, () => get("/api/channels"));
    if (!all) return;
    const found = all.filter((channel) => channel.name.startsWith(`${each.name} (`));
    line.extra = h("tr", { class: "extra" }, h("td", { colSpan: 8 }, found.length ? table("Channels", ["Channel", { text: "Consumers", num: true }, { text: "Unacked", num: true }, { text: "Prefetch", num: true }, "Mode"], found.map((channel) => [String(channel.number), count(channel.consumer_count), count(channel.messages_unacknowledged), channel.prefetch_count ? count(channel.prefetch_count) : "no bound", channel.transactional ? "transactions" : channel.confirm ? "confirms" : "plain"])) : h("p", { class: "muted" }, "It has no channel open.")));
    line.after(line.extra);
  }
  await load();
}
