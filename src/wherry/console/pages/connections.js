// Clients that are connected: over HTTP as a count, over the native wire, AMQP and STOMP one by one; and clients that were cut off.

import { get } from "../api.js";
import { h, put, setText } from "../dom.js";
import { bytes, count, duration, when } from "../format.js";
import { attempt, badge, copyLine, loading, page, table } from "../parts.js";

export async function show({ root, live, isShown }) {
  const tiles = ["HTTP connections", "Requests under way", "Waiting requests", "Native sessions", "STOMP sessions"].map((name) => h("div", { class: "tile" }, h("dt", {}, name), h("dd", {}, "–")));
  const native = section("Native wire", "/v1/wire/sessions", drawNative);
  const amqp = section("AMQP", "/api/connections", drawAmqp), stomp = section("STOMP", "/v1/stomp/sessions", drawStomp);
  const gone = h("div", { class: "section" }), cut = h("section", { class: "section", hidden: true }, h("header", {}, h("h2", {}, "Cut off over STOMP")), gone);
  const left = h("div", { class: "section" }), cutNative = h("section", { class: "section", hidden: true }, h("header", {}, h("h2", {}, "Cut off over the native wire")), left);
  put(root, page("Connections", "Clients that hold a connection to this node."), h("dl", { class: "tiles" }, tiles), native.el, cutNative, amqp.el, stomp.el, cut);
  live(({ figures: { broker } }) => [broker?.connections, broker?.requests, broker?.waits, broker?.gauges.wherry_native_sessions, broker?.gauges.wherry_stomp_sessions].forEach((n, i) => setText(tiles[i].lastChild, n === undefined ? "–" : count(n))));

  function section(name, path, draw) {
    const place = h("div", { class: "section" }, loading());
    async function load() {
      try {
        const found = await get(path);
        if (isShown()) draw(found, place);
      } catch (fault) {
        if (isShown()) put(place, h("p", { class: fault.status === 404 ? "muted" : "bad-text" }, fault.status === 404 ? `This node does not serve ${name}. Enable it in the section ${name.toLowerCase()} of its configuration.` : fault.message));
      }
    }
    return { load, el: h("section", { class: "section" }, h("header", {}, h("h2", {}, name), h("button", { type: "button", class: "small", "aria-label": `Refresh ${name}`, onclick: load }, "Refresh")), place) };
  }

  function drawNative({ sessions, left_off: more, cut_offs: ended }, place) {
    put(place,
      sessions.length
        ? table("Native wire", ["Client", "Name", "User", { text: "Since", num: true }, { text: "Calls", num: true }, { text: "Not on disk yet", num: true }, { text: "Not read yet", num: true }, "State", ""], sessions.map((each) => [h("span", { class: "mono" }, each.secure ? `${each.peer}, TLS` : each.peer), each.client || "–", each.user || "–", duration(each.age_ms), count(each.calls), bytes(each.unstored_bytes), bytes(each.unread_bytes), badge(each.state, each.state === "open" ? "good" : "warn"), toggle("Streams", each.peer, (line) => below(line, streams(each)))]))
        : h("p", { class: "muted" }, "No client is connected."),
      more ? h("p", { class: "muted" }, `${count(more)} more are not shown.`) : null);
    cutNative.hidden = !ended.length;
    put(left, table("Ended over the native wire", ["Client", "User", "When", "Why", { text: "In detail", wide: true }], ended.map((each) => [h("span", { class: "mono" }, each.peer), each.user || "–", when(each.at_ms), badge(each.why, "warn"), each.detail])));
  }

  function streams({ streams: found }) {
    return found.length
      ? table("Streams", ["Stream", "Topic", "Subscription", "Consumer", { text: "Holds", num: true }, { text: "Delivered", num: true }], found.map((each) => [String(each.id), h("span", { class: "mono" }, each.topic), each.subscription, each.consumer ?? "–", count(each.held_messages), count(each.delivered)]))
      : h("p", { class: "muted" }, "The client has no open stream.");
  }

  function drawAmqp(found, place) {
    const client = (each) => [each.client_properties?.product, each.client_properties?.version].filter(Boolean).join(" ") || "–";
    put(place, found.length
      ? table("Connections", ["Name", "Protocol", "Client", "User", "Host", { text: "Channels", num: true }, "State", ""], found.map((each) => [h("span", { class: "mono" }, each.name), each.protocol || "–", client(each), each.user || "–", each.vhost ?? "–", count(each.channels || 0), badge(each.state || "running", each.state === "running" || !each.state ? "good" : "warn"), toggle("Channels", each.name, (line) => channels(each, line))]))
      : h("div", { class: "section" }, h("p", { class: "muted" }, "No client is connected. Clients of RabbitMQ connect to the AMQP port of this node, for example pika:"), copyLine(`pika.BlockingConnection(pika.URLParameters("amqp://${location.hostname}:5672/"))`)));
  }

  async function channels(each, line) {
    const all = line.extra ? [] : await attempt(null, () => get("/api/channels"));
    if (!all) return;
    const found = all.filter((channel) => channel.name.startsWith(`${each.name} (`));
    below(line, found.length ? table("Channels", ["Channel", { text: "Consumers", num: true }, { text: "Unacked", num: true }, { text: "Prefetch", num: true }, "Mode"], found.map((channel) => [String(channel.number), count(channel.consumer_count), count(channel.messages_unacknowledged), channel.prefetch_count ? count(channel.prefetch_count) : "no bound", channel.transactional ? "transactions" : channel.confirm ? "confirms" : "plain"])) : h("p", { class: "muted" }, "The connection has no open channel."));
  }

  function drawStomp({ sessions, left_off: more, cut_offs: ended }, place) {
    put(place,
      sessions.length
        ? table("Sessions", ["Client", "Transport", "Version", "User", "Host", { text: "Since", num: true }, { text: "Not read yet", num: true }, "State", ""], sessions.map((each) => [h("span", { class: "mono" }, each.peer), each.secure ? `${each.transport}, TLS` : each.transport, each.version || "–", each.user || "–", each.host ?? "–", duration(each.age_ms), bytes(each.unread_bytes), standing(each), toggle("Subscriptions", each.peer, (line) => below(line, subscriptions(each)))]))
        : h("div", { class: "section" }, h("p", { class: "muted" }, "No client is connected. A web page connects like this:"), copyLine(`import { connect } from "${location.origin}/wherry.js"`)),
      more ? h("p", { class: "muted" }, `${count(more)} more are not shown.`) : null);
    cut.hidden = false;
    put(gone, ended.length
      ? table("Cut off", ["Client", "User", "When", "Why", { text: "In detail", wide: true }], ended.map((each) => [h("span", { class: "mono" }, each.peer), each.user || "–", when(each.at_ms), badge(each.why, "warn"), each.detail]))
      : h("p", { class: "muted" }, "No client was cut off. A STOMP client is cut off if it overruns the buffer that it declared, reads nothing or sends no heart-beats."));
  }

  const full = (each) => (each.buffer_messages !== null && each.held_messages >= each.buffer_messages) || (each.buffer_bytes !== null && each.held_bytes >= each.buffer_bytes);
  const standing = (each) => each.version === null ? badge("logging in", "warn") : each.subscriptions.some(full) ? badge("buffer full", "warn") : badge("running", "good");
  const room = (most, text) => (most === null ? "no bound" : text(most));

  function subscriptions({ subscriptions: found }) {
    return found.length
      ? table("Subscriptions", ["Id", "Destination", "Ack", { text: "Holds", num: true }, { text: "Buffer", num: true }, { text: "Waits", num: true }, { text: "Delivered", num: true }], found.map((each) => [each.id ?? "–", h("span", { class: "mono" }, each.destination), each.ack, `${count(each.held_messages)} · ${bytes(each.held_bytes)}`, `${room(each.buffer_messages, count)} · ${room(each.buffer_bytes, bytes)}`, count(each.ready), count(each.delivered)]))
      : h("p", { class: "muted" }, "The session has no subscription.");
  }

  await Promise.all([native.load(), amqp.load(), stomp.load()]);
}

/** A button of a row that shows a line below the row, and removes it again. */
function toggle(label, whose, show) {
  const shows = h("button", { type: "button", class: "small", "aria-expanded": "false", "aria-label": `${label} of ${whose}` }, label);
  shows.addEventListener("click", async () => {
    const line = shows.closest("tr");
    await show(line);
    shows.setAttribute("aria-expanded", String(Boolean(line.extra)));
  });
  return shows;
}

/** Show a line below a row of a table, or remove it if it is there. */
function below(line, what) {
  if (line.extra) { line.extra.remove(); line.extra = null; return; }
  line.extra = h("tr", { class: "extra" }, h("td", { colSpan: line.cells.length }, what));
  line.after(line.extra);
}
