// Light or dark: as the system has it, unless the switch in the header was set in this browser.

import { h, icon } from "./dom.js";

const THEMES = ["auto", "light", "dark"], PLACE = "wherry.theme";

function chosen() { try { return localStorage.getItem(PLACE); } catch { return "auto"; } }

/** Return the switch, and show the theme that was chosen before. */
export function themeSwitch() {
  const el = h("button", { class: "plain tool", type: "button", onclick: next }, icon("theme"));
  function paint(name) {
    document.documentElement.dataset.theme = name;
    el.setAttribute("aria-label", `Theme: ${name}`);
    el.title = `Theme: ${name}`;
  }
  function next() {
    const name = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
    try { localStorage.setItem(PLACE, name); } catch { /* the choice is lost with the page */ }
    paint(name);
  }
  paint(THEMES.includes(chosen()) ? chosen() : "auto");
  return el;
}
