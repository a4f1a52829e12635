// Messages without consuming them: the newest, from an offset, or found by id, key, header or time.

import { del, get, query as asQuery, setDraft } from "../api.js";
import { h, put } from "../dom.js";
import { bytes, count, fromInput, localInput, seg, when } from "../format.js";
import { attempt, badge, button, confirmed, copyLine, empty, facts, field, input, loading, page, select, table, toast } from "../parts.js";
import { bytesOf, payloadView, preview } from "../payload.js";
import { newest } from "../newest.js";

const PAGE = 50;

/** Return the topics that the caller may see. */
export async function topicNames() {
  return (await get("/v1/topics")).topics.map((each) => each.config);
}

export async function show({ root, query, isShown }) {
  put(root, loading());
  const topics = await topicNames();
  if (!isShown()) return;
  if (!topics.length) return put(root, page("Messages"), empty("No topics yet", "Messages are in topics: create one first.", null, h("a", { class: "button primary", href: "#/topics?new=1" }, "New topic")));
  const chosen = query.get("topic") || topics[0].name;
  const topic = select("topic", [...new Set([...topics.map((each) => each.name), chosen])], chosen);
  const partition = input("partition", { type: "number", min: 0, placeholder: "all", value: query.get("partition") || "" });
  const kind = select("kind", [["newest", "Newest"], ["offset", "From offset"], ["id", "Id"], ["key", "Key"], ["header", "Header"], ["time", "Time"]], query.get("kind") || "newest");
  const what = input("what", { type: "search", value: query.get("what") || "", "data-search": "" });
  const from = input("from", { type: "datetime-local", step: 1, value: query.get("from") ? localInput(Number(query.get("from"))) : "" });
  const to = input("to", { type: "datetime-local", step: 1 });
  const list = h("div", { class: "section" }), detail = h("aside", { class: "card detail", hidden: true, "aria-label": "Message" });
  const split = h("div", { class: "split" }, list, detail);
  const whatField = field("What", what), partitionField = field("Partition", partition), fromField = field("From", from), toField = field("To", to);
  whatField.classList.add("big");
  const update = () => {
    partitionField.hidden = !["newest", "offset"].includes(kind.value);
    whatField.hidden = ["newest", "time"].includes(kind.value);
    fromField.hidden = toField.hidden = !["time", "key", "header"].includes(kind.value);
    partition.placeholder = kind.value === "newest" ? "all" : "0";
    what.placeholder = { id: "0-1041, or an id of yours", key: "customer-7", header: "region:eu", offset: "0" }[kind.value] || "";
    whatField.firstChild.textContent = { offset: "Offset", id: "Id", key: "Key", header: "Header, name:value" }[kind.value] || "What";
  };
  const go = h("button", { type: "submit", class: "primary" }, "Show");
  put(root, page("Messages", "This page changes nothing: no delivery count, no order, no lease."),
    h("form", { class: "filters", onsubmit: (event) => { event.preventDefault(); search(); } }, field("Topic", topic), field("Look by", kind), whatField, partitionField, fromField, toField, go), split);
  kind.addEventListener("change", () => { update(); if (kind.value === "newest") search(); else if (!whatField.hidden) what.focus(); });
  topic.addEventListener("change", () => { partition.value = ""; if (kind.value === "newest") return search(); asked++; hide(); put(list); });
  update();

  let asked = 0;

  /** Return what the form asks for now. An answer keeps its question, since the form may change meanwhile. */
  const question = () => ({ topic: topic.value, kind: kind.value, what: what.value, partition: partition.value, times: { from_ms: fromInput(from.value), to_ms: fromInput(to.value) } });

  function ask(of, after) {
    const path = `/v1/topics/${seg(of.topic)}`;
    switch (of.kind) {
      case "newest": return newest(path, of.partition, after, PAGE);
      case "offset": return get(`${path}/messages${after ? asQuery({ after, limit: PAGE }) : asQuery({ partition: of.partition || 0, start: of.what || 0, limit: PAGE })}`);
      case "id": return get(`${path}/messages/${seg(of.what)}`);
      default: return get(`${path}/search${asQuery({ key: of.kind === "key" ? of.what : null, header: of.kind === "header" ? of.what : null, ...of.times, limit: PAGE, after })}`);
    }
  }

  async function search(of = question(), after = null, before = []) {
    const mine = ++asked;
    hide();
    if (!after) put(list, loading());
    const found = await attempt(go, () => ask(of, after));
    if (!isShown() || mine !== asked) return; // the question has changed meanwhile
    if (!found) return after ? undefined : put(list, empty("Nothing to show", "No message was found. Try another id, key or time."));
    const all = [...before, ...found.messages], latest = of.kind === "newest";
    if (!all.length && !found.next) return put(list, empty("No messages here", latest ? `${found.where} is empty: all messages were settled, or none was published yet.` : "No message fits.", `curl -X POST ${location.origin}/v1/topics/${seg(of.topic)}/messages -H 'Content-Type: application/json' -d '{"payload": "hello"}'`, h("a", { class: "button", href: `#/publish?topic=${seg(of.topic)}` }, "Publish")));
    put(list, all.length > 0 && table("Messages", ["Id", "Published", "Key", { text: "Priority", num: true }, { text: "Size", num: true }, { text: "Payload", wide: true }], all.map((message) => ({
      props: { class: "link", onclick: (event) => open(of.topic, message, event.currentTarget) },
      cells: [h("button", { type: "button", class: "plain small mono" }, message.id), when(message.published_ms), message.key ?? "–", count(message.priority), bytes(bytesOf(message).length), h("span", { class: "mono" }, preview(message))],
    }))), h("div", { class: "row" }, h("span", { class: "muted num" }, `${count(all.length)} shown${found.about ? `, ${found.about}` : ""}`), found.next && button(latest ? "Older" : "Show more", () => search(of, found.next, all), "small")));
    const wanted = query.get("id");
    if (of.kind === "id" || (wanted && all.some((each) => each.id === wanted))) open(of.topic, of.kind === "id" ? all[0] : all.find((each) => each.id === wanted), list.querySelector("tbody tr"));
  }

  function hide() {
    detail.hidden = true;
    split.classList.remove("open");
    list.querySelector(".chosen")?.classList.remove("chosen");
  }

  async function open(of, message, line) {
    hide();
    line?.classList.add("chosen");
    split.classList.add("open");
    detail.hidden = false;
    const path = `/v1/topics/${seg(of)}/messages/${seg(message.id)}`;
    const fate = h("p", { class: "muted" }, "…");
    const cancel = async () => {
      if (!(await confirmed("Cancel this message?", `${message.id} of ${of} will not be delivered.`, { action: "Cancel it" }))) return;
      await attempt(null, async () => { await del(path); toast(`Cancelled ${message.id}.`); search(); });
    };
    put(detail,
      h("header", {}, h("h2", { class: "mono" }, message.id), h("button", { type: "button", class: "plain", "aria-label": "Close", onclick: () => { hide(); line?.querySelector("button")?.focus(); } }, "×")),
      facts([["Partition, offset", `${message.partition}, ${count(message.offset)}`], ["Published", when(message.published_ms)], ["Key", message.key ?? "–"], ["Priority", count(message.priority)], message.due_ms !== undefined && ["Due", when(message.due_ms)], message.expires_ms !== undefined && ["Expires", when(message.expires_ms)], message.version > 1 && ["Version", String(message.version)]]),
      fate, h("section", {}, h("h3", {}, "Payload"), payloadView(message)),
      message.headers && Object.keys(message.headers).length > 0 && h("section", { class: "section" }, h("h3", {}, "Headers"), table("Headers", ["Name", { text: "Value", wide: true }], Object.entries(message.headers).map(([name, value]) => [h("span", { class: "mono" }, name), h("span", { class: "mono" }, value)]))),
      h("div", { class: "row" }, button("Cancel message", cancel, "small danger"), button("Publish again …", () => { setDraft({ ...message, topic: of }); location.hash = `#/publish?topic=${seg(of)}&again=1`; }, "small")),
      copyLine(`curl ${location.origin}${path}`));
    try {
      const found = await get(`${path}/fate`);
      put(fate, "Now ", badge(found.fate, { dead: "bad", settled: "good" }[found.fate] || "accent"), " ", Object.entries(found.subscriptions).map(([name, state]) => ` · ${name}: ${state}`));
    } catch { put(fate, "Only a key with the right “publish” can see the fate of a message."); }
  }
  search();
}
