// What pages are made of: toasts, dialogs, forms, tables that are updated in place, empty states.

import { key } from "./api.js";
import { append, arrange, h, put, setText } from "./dom.js";
import { count } from "./format.js";

export function toast(text, bad = false) {
  const el = h("div", { class: bad ? "toast bad" : "toast", role: bad ? "alert" : "status" }, h("span", {}, text), h("button", { class: "plain", "aria-label": "Dismiss", onclick: () => el.remove() }, "×"));
  const home = document.querySelector("dialog[open] .toasts") || document.getElementById("toasts");
  home.append(el);
  while (home.children.length > 4) home.firstChild.remove();
  setTimeout(() => el.remove(), bad ? 12_000 : 5_000);
}

/** Run the work of a button: it cannot be pressed twice meanwhile, keeps the focus, and an error is shown as a toast. */
export async function attempt(button, work) {
  const focused = button && document.activeElement === button;
  if (button) button.disabled = true;
  try {
    return await work();
  } catch (fault) {
    if (fault.name !== "AbortError" && fault.status !== 401) toast(fault.message, true);
    return undefined;
  } finally {
    if (button) button.disabled = false;
    if (focused && document.activeElement === document.body) button.focus({ preventScroll: true }); // it was lost while disabled
  }
}

export function button(label, onclick, kind = "") {
  return h("button", { type: "button", class: kind, onclick }, label);
}

/** Open a dialog; `build(close)` returns its content. Escape closes it, and the focus returns. */
export function dialog(title, build, { wide = false, onclose } = {}) {
  const back = document.activeElement;
  const id = `d${Math.random().toString(36).slice(2)}`;
  const el = h("dialog", { class: wide ? "wide" : "", "aria-labelledby": id });
  const close = () => el.close();
  el.append(
    h("header", {}, h("h2", { id }, title), h("button", { class: "plain", type: "button", "aria-label": "Close", onclick: close }, "×")),
    h("div", { class: "body" }, build(close)),
    h("div", { class: "toasts" }),
  );
  el.addEventListener("close", () => {
    document.getElementById("toasts").append(...el.querySelectorAll(".toast"));
    el.remove();
    onclose?.();
    back?.focus?.();
  });
  document.body.append(el);
  el.showModal();
  el.querySelector("[autofocus], .body input, .body select, .body textarea, .body button")?.focus();
  return el;
}

/** Ask before something is deleted; with `name`, that name has to be typed. */
export function confirmed(title, text, { action = "Delete", name = null } = {}) {
  return new Promise((answer) => {
    let agreed = false;
    dialog(title, (close) => {
      const go = h("button", { type: "submit", class: "danger", disabled: name !== null }, action);
      const typed = name === null ? null : h("input", { autocomplete: "off", spellcheck: false, oninput: (event) => (go.disabled = event.target.value !== name) });
      return h("form", { onsubmit: (event) => { event.preventDefault(); agreed = true; close(); } },
        h("p", {}, text),
        typed && field(`Type ${name} to confirm`, typed),
        h("footer", {}, button("Keep it", close), go));
    }, { onclose: () => answer(agreed) });
  });
}

let numbered = 0;
export function field(label, control, hint) {
  const id = control.id || `f${++numbered}`;
  control.id = id;
  if (hint) control.setAttribute("aria-describedby", `${id}h`);
  return h("div", { class: control.type === "checkbox" ? "field check" : "field" }, h("label", { htmlFor: id }, label), control, hint && h("small", { id: `${id}h` }, hint));
}
export const input = (name, props) => h("input", { name, autocomplete: "off", spellcheck: false, ...props });
export function select(name, options, chosen, props) {
  const el = h("select", { name, ...props }, options.map((each) => {
    const [value, label] = Array.isArray(each) ? each : [each, each];
    return h("option", { value, selected: value === chosen }, label);
  }));
  if (chosen !== undefined && chosen !== null) el.value = chosen;
  return el;
}

/** A line to copy. Where the broker requires keys, a call has the key as a variable, so that no secret is on the screen. */
export function copyLine(line) {
  const text = key() && line.startsWith("curl ") ? `curl -H "Authorization: Bearer $WHERRY_KEY" ${line.slice(5)}` : line;
  const el = h("button", { type: "button", class: "plain copy", onclick: async () => {
    try { await navigator.clipboard.writeText(text); } catch { return toast("Copying is not allowed here: select the text.", true); }
    toast("Copied.");
  } }, "Copy");
  return h("div", { class: "copyline" }, h("code", { tabIndex: 0 }, text), el);
}

/** What to show where there is nothing yet: what this place is for, and what to do next. */
export function empty(title, text, line, action) {
  return h("div", { class: "empty" }, h("h3", {}, title), h("p", {}, text), line && copyLine(line), action);
}

export const badge = (text, tone = "") => h("span", { class: `badge ${tone}` }, text);
export const page = (title, note, ...actions) => h("div", { class: "head" }, h("div", {}, h("h1", {}, title), note && h("p", { class: "muted" }, note)), h("div", { class: "actions" }, actions));
export const facts = (rows) => h("dl", { class: "facts" }, rows.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

/**
 * A table whose rows are kept by id and changed in place, so that nothing jumps and the focus stays.
 * A column: {head, num, wide, make(row) → {el, update(row)} | node, text(row)}.
 */
export function liveTable(label, columns, idOf, { onrow } = {}) {
  const body = h("tbody");
  const el = h("div", { class: "tablebox" }, h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, columns.map((each) => h("th", { scope: "col", class: each.num ? "num" : "" }, each.head)))), body));
  const known = new Map();
  function make(row) {
    const cells = columns.map((column) => {
      const cell = h("td", { class: [column.num ? "num" : "", column.wide ? "wide" : "", column.sub ? "sub" : ""].join(" "), "data-head": column.head });
      if (column.text) return { cell, update: (now) => { const text = String(column.text(now)); if (cell.textContent !== text) cell.textContent = text; } };
      const made = column.make(row);
      cell.append(made.el || made);
      return { cell, update: made.update || (() => {}) };
    });
    const line = h("tr", onrow ? { class: "link", onclick: (event) => { if (!event.target.closest("a, button, input, select")) onrow(row, line); } } : {}, cells.map((each) => each.cell));
    return { line, cells };
  }
  return {
    el, body,
    update(rows) {
      const ids = new Set(rows.map(idOf)), wanted = [];
      for (const id of known.keys()) if (!ids.has(id)) known.delete(id);
      for (const row of rows) {
        const id = idOf(row);
        if (!known.has(id)) known.set(id, make(row));
        const { line, cells } = known.get(id);
        for (const each of cells) each.update(row);
        wanted.push(line);
        if (line.extra) wanted.push(line.extra); // details that are open below a row move with it
      }
      arrange(body, wanted);
    },
  };
}

/** A table that does not change. */
export function table(label, heads, rows) {
  return h("div", { class: "tablebox" }, h("table", { "aria-label": label },
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col", class: head.num ? "num" : "" }, head.text ?? head)))),
    h("tbody", {}, rows.map((row) => h("tr", row.props || {}, (row.cells || row).map((cell, i) => { const td = h("td", { class: heads[i].num ? "num" : heads[i].wide ? "wide" : "", "data-head": heads[i].text ?? heads[i] }); append(td, [cell]); return td; }))))));
}

export const loading = () => h("p", { class: "muted loading", role: "status" }, "Loading …");
export function failed(root, fault) {
  if (fault.name === "AbortError") return;
  put(root, h("div", { class: "empty bad" }, h("h3", {}, "This cannot be shown"), h("p", {}, fault.message)));
}

/** Show, on a node with more topics than the stream of figures has, how many it has. */
export function leftOff(el, figures) {
  el.hidden = !figures.left_off;
  setText(el, `${count(figures.topics.length)} of ${count(figures.topics.length + figures.left_off)} topics are shown and counted here.`);
}
