// The services of one process: their methods with limits, counts and times, and what controls them.

import { post } from "../api.js";
import { lineChart, sparkline } from "../charts.js";
import { h, put, setText } from "../dom.js";
import { count, plural, rate, seconds, seg, short } from "../format.js";
import { attempt, badge, button, confirmed, dialog, empty, field, input, liveTable, page, toast } from "../parts.js";
import { nameOf } from "./history.js";

const TILES = [
  ["Open methods", (t) => `${count(t.open)} of ${count(t.methods)}`, (t) => t.open < t.methods],
  ["Running", (t) => short(t.running)],
  ["Waiting", (t) => short(t.waiting)],
  ["Answered", (t) => rate(t.answered)],
  ["Refused", (t) => rate(t.refused)],
  ["Failed or lost", (t) => rate(t.failed), (t) => t.failed > 0],
];

/** Return the view of what `GET /services` answered; `refresh` asks for it again. */
export function servicesView(refresh) {
  const values = TILES.map(([name]) => h("div", { class: "tile" }, h("dt", {}, name), h("dd", {}, "–")));
  const rates = lineChart({ title: "Calls a second", format: short, floor: 1, series: [{ name: "answered", label: "answered", tone: "accent" }, { name: "refused", label: "refused", tone: "third" }, { name: "failed", label: "failed or lost", tone: "alert" }] });
  const load = lineChart({ title: "Calls under way", format: short, floor: 1, series: [{ name: "running", label: "running", tone: "accent" }, { name: "waiting", label: "waiting", tone: "third" }] });
  const instance = h("span", { class: "mono" }), place = h("div", { class: "page" });
  const sections = new Map();
  let order = null;
  return {
    el: h("div", { class: "page page-services" }, page("Services", ["Instance ", instance, ` at ${location.host}. Counts and times are those since it started.`]), h("dl", { class: "tiles" }, values), h("div", { class: "cards charts" }, rates.el, load.el), place),
    update(history) {
      const { found, totals } = history, latest = totals.at(-1);
      setText(instance, found.instance);
      if (latest) TILES.forEach(([, text, alarm], i) => { setText(values[i].lastChild, text(latest)); values[i].classList.toggle("alarm", Boolean(alarm?.(latest))); });
      for (const chart of [rates, load]) chart.update(totals);
      for (const each of found.services) if (!sections.has(each.service)) sections.set(each.service, serviceSection(each.service, refresh));
      const names = found.services.map((each) => each.service);
      if (order !== names.join("/")) put(place, names.length ? names.map((name) => sections.get(name).el) : empty("No services", "This process provides no service any more."));
      order = names.join("/");
      for (const each of found.services) sections.get(each.service).update(each, history);
    },
  };
}

/** One service: its state, what controls it as a whole, and its methods. */
function serviceSection(name, refresh) {
  let now = null, history = null;
  const state = h("span"), load = h("p", { class: "muted" }), id = `service-${name}`;
  const act = (verb, body, done) => (event) => attempt(event.currentTarget, async () => {
    await post(`/services/${seg(name)}/control/${verb}`, body);
    toast(done);
    refresh();
  });
  const buttonOf = (label, of, onclick) => h("button", { type: "button", class: "small", "aria-label": `${label} ${of}`, onclick }, label);
  const pause = buttonOf("Pause", name, act("pause", {}, `Paused ${name}.`)), resume = buttonOf("Resume", name, act("resume", {}, `Resumed ${name}.`));
  const drain = buttonOf("Drain", name, async (event) => {
    const pressed = event.currentTarget;
    if (await confirmed(`Drain ${name} here?`, "This instance is withdrawn from the registry. Calls under way end as they do, new ones go to other instances, until it is resumed.", { action: "Drain" }))
      act("drain", {}, `Draining ${name}.`)({ currentTarget: pressed });
  });
  const limit = buttonOf("Limit", name, () => limitForm(name, null, now.max_concurrent, null, refresh));
  const table = liveTable(`Methods of ${name}`, [
    { head: "Method", make: (row) => h("div", {}, h("span", { class: "mono" }, row.name), row.summary && h("div", { class: "muted summary" }, row.summary)) },
    { head: "State", make: () => { const el = h("span"); return { el, update: (row) => showState(el, now.draining ? "draining" : row.paused ? "paused" : "open") }; } },
    { head: "Calls", wide: true, text: (row) => ended(row.calls) },
    { head: "Last minute", make: (row) => { const line = sparkline(`Calls a second of ${name}.${row.name}`); return { el: line.el, update: (each) => line.update(history.methods.get(nameOf(now, each)) || []) }; } },
    { head: "Running", num: true, text: (row) => `${count(row.running)} of ${count(row.max_concurrent)}` },
    { head: "Waiting", num: true, text: (row) => `${count(row.waiting)} of ${count(row.max_waiting)}` },
    { head: "Median", num: true, text: (row) => time(row, row.p50_ms) },
    { head: "99th percentile", num: true, text: (row) => time(row, row.p99_ms) },
    { head: "", make: (first) => {
      const full = `${name}.${first.name}`, only = { methods: [first.name] };
      let row = first;
      const toggle = buttonOf("Pause", full, (event) => (row.paused ? act("resume", only, `Resumed ${full}.`) : act("pause", only, `Paused ${full}.`))(event));
      const el = h("span", { class: "acts" }, toggle, buttonOf("Limit", full, () => limitForm(name, first.name, row.max_concurrent, row.max_waiting, refresh, row.running_most)));
      return { el, update(each) {
        row = each;
        const word = each.paused ? "Resume" : "Pause";
        setText(toggle, word);
        toggle.setAttribute("aria-label", `${word} ${full}`);
      } };
    } },
  ], (row) => row.name);
  return {
    el: h("section", { class: "section", "aria-labelledby": id }, h("header", {}, h("div", { class: "named" }, h("h2", { id }, name), state, load), h("div", { class: "actions" }, pause, resume, drain, limit)), table.el),
    update(service, kept) {
      now = service;
      history = kept;
      const paused = service.methods.filter((each) => each.paused).length;
      showState(state, service.draining ? "draining" : paused === service.methods.length ? "paused" : paused ? "partly paused" : "open");
      setText(load, `${count(service.running)} of ${count(service.max_concurrent)} running, ${count(service.waiting)} waiting`);
      const focused = document.activeElement;
      pause.hidden = paused === service.methods.length;
      resume.hidden = !paused && !service.draining;
      drain.hidden = service.draining;
      if (focused.hidden && [pause, resume, drain].includes(focused)) (resume.hidden ? pause : resume).focus(); // not to the top of the page
      table.update(service.methods);
    },
  };
}

function showState(el, word) {
  if (el.textContent !== word) put(el, badge(word, word === "open" ? "good" : "warn"));
}

const ranOf = (calls) => Object.entries(calls).reduce((sum, [outcome, n]) => sum + (outcome === "refused" ? 0 : n), 0);
const time = (row, ms) => (ranOf(row.calls) ? seconds(ms / 1000) : "–");

/** Return how many calls ended in which way, without the ways that did not occur. */
function ended(calls) {
  const some = Object.entries(calls).filter(([, n]) => n);
  return some.length ? some.map(([outcome, n]) => `${count(n)} ${outcome}`).join(" · ") : "none yet";
}

/** The form of limits: of a method, or without one the maximum of the service. The process checks what is typed. */
function limitForm(service, method, concurrent, waiting, refresh, most = null) {
  const full = method ? `${service}.${method}` : service;
  const number = (name, value) => input(name, { inputMode: "numeric", required: true, value: String(value) });
  const run = number("max_concurrent", concurrent), wait = method && number("max_waiting", waiting);
  const go = h("button", { type: "submit", class: "primary" }, "Save");
  dialog(`Limits of ${full}`, (close) => h("form", { onsubmit: (event) => {
    event.preventDefault();
    const body = { max_concurrent: typed(run), ...(method ? { method, max_waiting: typed(wait) } : {}) };
    attempt(go, async () => {
      await post(`/services/${seg(service)}/control/limit`, body);
      close();
      toast(`Changed the limits of ${full}.`);
      refresh();
    });
  } },
    field("Calls that run at a time", run, most === null ? "Of all methods, in this instance." : `In this instance. At most ${plural(most, "call")} ran at a time so far.`),
    wait && field("Calls that wait", wait, "Above that a call is refused as full."),
    h("footer", {}, button("Cancel", close), go)));
}

/** Read a whole number; other text is sent as it is, and the error names the field. */
const typed = (control) => (/^-?\d+$/.test(control.value.trim()) ? Number(control.value) : control.value);
