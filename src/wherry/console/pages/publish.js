// Publish by hand: one message, or many equal ones.

import { draft, post } from "../api.js";
import { h, put } from "../dom.js";
import { count, fromInput, localInput, nodeNow, plural, seg } from "../format.js";
import { attempt, button, copyLine, empty, field, input, loading, page, select, toast } from "../parts.js";
import { topicNames } from "./messages.js";

const COUNT_MAX = 10_000;

export async function show({ root, query, isShown }) {
  put(root, loading());
  const topics = await topicNames();
  if (!isShown()) return;
  if (!topics.length) return put(root, page("Publish"), empty("No topics yet", "A message is published to a topic: create one first.", null, h("a", { class: "button primary", href: "#/topics?new=1" }, "New topic")));
  const again = query.get("again") ? draft() : {};
  const topic = select("topic", topics.map((each) => each.name), query.get("topic") || topics[0].name);
  const payload = h("textarea", { name: "payload", rows: 7, spellcheck: false, value: again.payload ?? '{"order": 1041, "items": 3}', autofocus: true });
  const format = select("format", [["text", "text or JSON, as it is"], ["base64", "bytes, as base64"]], again.payload_base64 ? "base64" : "text");
  if (again.payload_base64) payload.value = again.payload_base64;
  const key = input("key", { value: again.key || "" }), id = input("id", { placeholder: "given by the broker" });
  const priority = input("priority", { type: "number", min: 0, max: 65_535, value: again.priority ?? "", placeholder: "32,768, the middle" });
  const due = input("due", { type: "datetime-local", step: 1 }), expires = input("expires", { type: "datetime-local", step: 1 });
  const many = input("count", { type: "number", min: 1, max: COUNT_MAX, value: 1 });
  const headers = h("div", { class: "section" });
  const addHeader = (name = "", value = "") => {
    const row = h("div", { class: "row headers" }, input("hname", { value: name, placeholder: "name", "aria-label": "Header name" }), input("hvalue", { value, placeholder: "value", "aria-label": "Header value" }), h("button", { type: "button", class: "small", "aria-label": "Remove this header", onclick: () => row.remove() }, "×"));
    headers.append(row);
    return row;
  };
  Object.entries(again.headers || {}).forEach(([name, value]) => addHeader(name, value));
  const go = h("button", { type: "submit", class: "primary" }, "Publish"), notice = h("div", { class: "section", role: "status" });
  const soon = (ms) => () => { due.value = localInput(nodeNow() + ms); };

  function message() {
    const given = {};
    for (const row of headers.children) { const [name, value] = row.querySelectorAll("input"); if (name.value) given[name.value] = value.value; }
    const found = { [format.value === "text" ? "payload" : "payload_base64"]: payload.value };
    if (key.value) found.key = key.value;
    if (id.value) found.id = id.value;
    if (priority.value !== "") found.priority = Number(priority.value);
    if (due.value) found.due_ms = fromInput(due.value);
    if (expires.value) found.expires_ms = fromInput(expires.value);
    if (Object.keys(given).length) found.headers = given;
    return found;
  }

  async function send(event) {
    event.preventDefault();
    const wanted = Math.max(1, Math.min(COUNT_MAX, Number(many.value) || 1)), one = message();
    const body = wanted === 1 ? one : Array.from({ length: wanted }, (_, i) => (one.id ? { ...one, id: `${one.id}-${i}` } : one));
    const path = `/v1/topics/${seg(topic.value)}/messages`;
    await attempt(go, async () => {
      const answer = await post(path, body);
      const first = answer.ids?.[0];
      toast(`Published ${plural(answer.count, "message")}${answer.durable ? ", on disk" : ""}.`);
      put(notice, h("p", {}, `${plural(answer.count, "message")} published to ${topic.value}`, answer.dead ? `, ${count(answer.dead)} of them dead at once` : "", ". ", first && h("a", { href: `#/messages?topic=${seg(topic.value)}&kind=id&what=${seg(first)}` }, `Show ${first}`)),
        h("p", { class: "muted" }, "The same from a shell:"), copyLine(`curl -X POST ${location.origin}${path} -H 'Content-Type: application/json' -d '${JSON.stringify(one).replaceAll("'", "'\\''")}'`));
    });
  }
  put(root, page("Publish"),
    h("form", { class: "card section", onsubmit: send },
      h("div", { class: "form" }, field("Topic", topic), field("Payload is", format), field("How many", many, `1 to ${count(COUNT_MAX)}`)),
      field("Payload", payload),
      h("div", { class: "form" }, field("Key", key, "Messages of a key go to one partition."), field("Id", id, "A second message with the same id is refused."), field("Priority", priority, "Smallest first, in topics of the order priority."), field("Due", due, "Not delivered before."), field("Expires", expires)),
      h("div", { class: "row" }, h("span", { class: "muted" }, "Due"), button("in 1 min", soon(60_000), "small"), button("in 1 h", soon(3_600_000), "small"), button("tomorrow", soon(86_400_000), "small"), button("now", () => { due.value = ""; }, "small"), button("Add a header", () => addHeader().querySelector("input").focus(), "small")),
      headers, h("div", { class: "row" }, go)), notice);
}
