// Dead letters by subscription and reason: show them, redrive them at a rate, discard them.

import { get, post } from "../api.js";
import { arrange, h, put, setText } from "../dom.js";
import { bytes, count, exact, plural, seg, when } from "../format.js";
import { attempt, badge, button, confirmed, dialog, empty, facts, failed, field, input, loading, page, table, toast } from "../parts.js";
import { bytesOf, payloadView, preview } from "../payload.js";
import { topicNames } from "./messages.js";

const SHOWN = 100, CHOICES = 40;
const RELOAD_MS = 5_000; // how often the cards are loaded again while messages die
const conditions = (group) => ({ subscription: group.subscription, reason: group.reason });
/** Count what a redrive or a discard of a card would change; an empty subscription is a condition too. */
const fitting = (path, group) => get(`${path}/reasons?subscription=${seg(group.subscription)}&reason=${seg(group.reason)}`);

export async function show({ root, query, live, isShown }) {
  put(root, loading());
  const topics = (await topicNames()).map((each) => each.name);
  if (!isShown()) return;
  const dead = (now) => new Map((now?.figures?.topics || []).map((each) => [each.name, each.dead]));
  const choice = h("div", { class: "segmented", role: "group", "aria-label": "Topic" }), place = h("div", { class: "section" }), audit = h("div", {});
  put(root, page("Dead letters", "Messages whose attempts were used up, or that did not fit. Each is kept whole, with its reason, error and attempts."), choice, place, h("section", { class: "section" }, h("h2", {}, "Who did what"), audit));
  const none = () => put(place, empty("No dead letters", "A message that fails too often, does not fit or expires can be listed here. A consumer makes a message a dead letter at once by:", `curl -X POST ${location.origin}/v1/topics/orders/subscriptions/workers/dead-letter -H 'Content-Type: application/json' -d '{"receipts": ["…"], "reason": "…"}'`));
  let chosen = query.get("topic"), counts = new Map(), loaded = { count: null, at: 0 }, asked = 0;
  const choices = new Map(), cards = new Map(), box = h("div", { class: "cards" });
  live((now) => {
    counts = dead(now);
    const rows = topics.filter((name) => counts.get(name) || name === chosen);
    const first = chosen === null;
    if (first && rows.length) chosen = rows.reduce((a, b) => ((counts.get(b) || 0) > (counts.get(a) || 0) ? b : a));
    arrange(choice, rows.slice(0, CHOICES).map(choiceOf));
    const moved = (counts.get(chosen) || 0) !== loaded.count && Date.now() - loaded.at > RELOAD_MS;
    if (chosen !== null && (first || (loaded.count !== null && moved))) load();
    if (chosen === null && !place.firstChild) none();
  });
  if (chosen !== null && !asked) load();

  /** The button of a topic: kept by name, so that the focus stays while counts change. */
  function choiceOf(name) {
    if (!choices.has(name)) choices.set(name, h("button", { type: "button", class: "small", onclick: () => { location.hash = `#/dead?topic=${seg(name)}`; } }, `${name}\u00a0·\u00a0`, h("b", { class: "num" })));
    const el = choices.get(name);
    el.setAttribute("aria-pressed", String(name === chosen));
    setText(el.lastChild, count(counts.get(name) || 0));
    return el;
  }

  /** Draw the cards by subscription and reason. A card without a change stays; one that changed is replaced, and keeps the focus. */
  function draw(path, found) {
    const wanted = found.reasons.slice(0, 100).map((group) => {
      const id = JSON.stringify([group.subscription, group.reason]), content = JSON.stringify([group, found.room]), old = cards.get(id);
      if (old?.content === content) return old.el;
      const el = card(path, group, found), at = old ? [...old.el.querySelectorAll("button")].indexOf(document.activeElement) : -1;
      cards.set(id, { content, el });
      if (at >= 0) { old.el.replaceWith(el); el.querySelectorAll("button")[at].focus({ preventScroll: true }); }
      return el;
    });
    for (const [id, each] of cards) if (!wanted.includes(each.el)) cards.delete(id);
    if (box.parentNode !== place) put(place, box);
    arrange(box, wanted);
  }

  async function load() {
    const path = `/v1/topics/${seg(chosen)}/dead`, mine = ++asked;
    loaded = { count: counts.get(chosen) || 0, at: Date.now() };
    try {
      const found = await get(`${path}/reasons`);
      if (!isShown() || mine !== asked) return;
      if (found.count) draw(path, found); else none();
    } catch (fault) { if (isShown() && mine === asked) failed(place, fault); }
    try {
      const { records } = await get(`${path}/audit`, { quiet: true });
      if (!isShown() || mine !== asked) return;
      put(audit, records.length ? table("Who did what", ["When", "What", "By", "Subscription", { text: "Messages", num: true }], records.slice(-20).reverse().map((each) => [when(each.at_ms), each.what, each.by || "–", each.subscription || "(none)", count(each.messages)])) : h("p", { class: "muted" }, "No dead letter was redriven or discarded yet."));
    } catch { put(audit, h("p", { class: "muted" }, "Only a key with the right “admin” on this topic can see the audit.")); }
  }

  function card(path, group, found) {
    const errors = Object.entries(group.errors).filter(([text]) => text);
    return h("article", { class: "card reason" },
      h("header", {}, h("div", {}, h("h2", {}, group.reason || "(no reason)"), h("p", { class: "muted" }, group.subscription ? `of ${group.subscription}` : "of no subscription")), h("div", { class: "big" }, count(group.count))),
      h("p", { class: "muted" }, "first ", when(group.first_ms), ", last ", when(group.last_ms)),
      errors.length ? h("ul", {}, errors.map(([text, n]) => h("li", {}, h("span", { class: "mono" }, text), h("span", { class: "num muted" }, count(n))))) : null,
      h("div", { class: "row" }, button("Redrive …", () => redrive(path, group, found.room, load), "primary"), button("Show", () => list(path, group)), button("Discard …", () => discard(path, group), "danger")));
  }

  /** Discard what fits a card. The filter fits every letter whose reason or error contains the text, which may be more than the card: show how many. */
  async function discard(path, group) {
    const meant = await attempt(null, () => fitting(path, group));
    if (!meant || !(await confirmed("Discard these dead letters?", `${plural(meant.count, "dead letter")} of ${group.subscription || "no subscription"} whose reason or error contains “${group.reason}” will be deleted for ever.`, { action: "Discard" }))) return;
    await attempt(null, async () => { const { count: n } = await post(`${path}/discard`, { filter: conditions(group), by: "console" }); toast(`Discarded ${plural(n, "dead letter")}.`); load(); });
  }
}

async function list(path, group) {
  const found = await attempt(null, () => get(`${path}?subscription=${seg(group.subscription)}&reason=${seg(group.reason)}&limit=${SHOWN}`));
  if (!found) return;
  dialog(group.reason || "Dead letters", () => [
    h("p", { class: "muted" }, `${found.next ? "The first " : ""}${plural(found.messages.length, "message")}${group.subscription ? ` of ${group.subscription}` : ""}`),
    found.messages.map(letter)], { wide: true });
}

/** One dead letter; its content is drawn when it is opened. */
function letter(message) {
  const el = h("details", { class: "card letter", ontoggle: () => {
    if (!el.open || el.children.length > 1) return;
    el.append(facts([["Died", exact(message.died_ms)], ["Attempts", count(message.attempts)], message.first_failed_ms && ["First failed", exact(message.first_failed_ms)], ["Error", message.error || "–"], ["Key", message.key ?? "–"], ["Size", bytes(bytesOf(message).length)]]), payloadView(message));
  } }, h("summary", {}, h("span", { class: "mono" }, message.id), " ", h("span", { class: "muted mono" }, preview(message).slice(0, 60))));
  return el;
}

/** Preview, rate, progress. The broker redrives at the rate as long as the call is open, so Stop ends the call. */
function redrive(path, group, room, done) {
  const rate = input("rate", { type: "number", min: 1, placeholder: "all at once", value: group.count > 100 ? 100 : "" });
  const by = input("by", { placeholder: "a note for the audit", value: "console" });
  const fits = h("p", { role: "status" }, "…"), bar = h("progress", { max: 1, value: 0, hidden: true, "aria-label": "Sent back" }), notice = h("p", { class: "num", role: "status" });
  const go = h("button", { type: "submit", class: "primary" }, "Redrive"), stop = h("button", { type: "button", hidden: true }, "Stop"), shut = button("Close", () => box.close());
  let total = group.count, running = null, ticking = 0;
  const remaining = () => fitting(path, group);
  const sent = (left) => Math.max(0, total - left); // others may die meanwhile
  const show = (left) => { bar.value = total ? sent(left) / total : 1; setText(notice, `${count(sent(left))} of ${count(total)} sent back`); };
  remaining().then((found) => {
    total = found.count;
    put(fits, `${plural(total, "dead letter")} ${total === 1 ? "fits" : "fit"} this filter${total > group.count ? `: the text is in other reasons or errors too` : ""}. `, room !== null && room < total ? badge(`the topic has room for ${count(room)} only`, "warn") : null);
  }, (fault) => setText(fits, fault.message));
  async function start(event) {
    event.preventDefault();
    running = new AbortController();
    bar.hidden = stop.hidden = false;
    go.disabled = rate.disabled = by.disabled = true;
    setText(shut, "Stop and close");
    show(total);
    ticking = setInterval(() => remaining().then((found) => running && show(found.count), () => {}), 500);
    try {
      const { count: n } = await post(`${path}/redrive`, { filter: conditions(group), by: by.value, ...(rate.value ? { rate: Number(rate.value) } : {}) }, { signal: running.signal });
      running = null;
      show(0);
      toast(`Sent ${plural(n, "message")} back.`);
      stop.hidden = true;
      put(notice, `${plural(n, "message")} sent back: they wait again.`);
    } catch (fault) {
      running = null;
      const left = await remaining().catch(() => null);
      if (left) show(left.count);
      const outcome = `Stopped. ${left ? `${plural(sent(left.count), "message")} sent back, ${plural(left.count, "dead letter")}` : "What was not sent back"} stay${!left || left.count === 1 ? "s" : ""} here.`;
      if (fault.name !== "AbortError") toast(fault.message, true); else if (box.isConnected) setText(notice, outcome); else toast(outcome);
      stop.hidden = true;
      go.disabled = rate.disabled = by.disabled = false;
    } finally { clearInterval(ticking); setText(shut, "Close"); done(); }
  }
  stop.addEventListener("click", () => running?.abort());
  const box = dialog(`Redrive: ${group.reason || "(no reason)"}`, () => h("form", { onsubmit: start }, fits, h("div", { class: "form" }, field("Messages a second", rate, "A low rate spares a consumer that failed before."), field("By", by)), bar, notice, h("footer", {}, shut, stop, go)), { onclose: () => { clearInterval(ticking); running?.abort(); } });
}
