// The page of the services of one process, served at its own port: frame, sign-in, and one request a second for all that it shows.

import { get, key, onLocked, setKey } from "../api.js";
import { h, icon, put, setText } from "../dom.js";
import { toast } from "../parts.js";
import { signIn } from "../sign-in.js";
import { themeSwitch } from "../theme.js";
import { addSample, forget, history } from "./history.js";
import { servicesView } from "./view.js";

const PAUSE_MS = 1_000, PAUSE_MS_MAX = 5_000;
const SILENT_MS = 10_000; // a request without an answer for so long counts as lost: the process may be stopped

const main = h("main", { id: "main", tabIndex: -1 });
const status = h("span", { class: "status", role: "status" }, h("i", { class: "pulse" }), h("span", {}, "connecting"));
const signOut = h("button", { class: "plain tool", type: "button", hidden: true, title: "Forget the token of this tab", "aria-label": "Sign out", onclick: endSession }, icon("out"));
put(document.getElementById("app"),
  h("header", { class: "top" }, h("a", { class: "brand", href: "/services" }, "Wherry"), status, h("span", { class: "grow" }), themeSwitch(), signOut),
  h("div", { class: "shell alone" }, main));
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });

const WORDS = { live: "live", lost: "reconnecting …", locked: "locked", connecting: "connecting" };
function setStatus(name) {
  document.body.classList.toggle("stale", name === "lost");
  status.className = `status ${name}`;
  setText(status.lastChild, WORDS[name]);
  signOut.hidden = !key() || name === "locked";
}

let view = null;
function show(found) {
  addSample(found, Date.now());
  if (!view) put(main, (view = servicesView(refresh)).el);
  view.update(history);
  setStatus("live");
}

/** Ask now, after something was changed. What the loop asked before that may be older: it is asked again. */
function refresh() { wake(); }

// -------------------------------------------------------------------------------------------------------- the loop

/** Ask for all services; without an answer in time it is given up. */
async function ask(signal) {
  const silent = new AbortController(), timer = setTimeout(() => silent.abort(), SILENT_MS);
  try {
    return await get("/services", { quiet: true, headers: { Accept: "application/json" }, signal: AbortSignal.any([signal, silent.signal]) });
  } finally { clearTimeout(timer); }
}

let ending = null, wake = () => {};
/** Ask, show and wait, until the sign-in ends it. A page that nobody sees asks nothing. */
async function follow() {
  ending?.abort();
  const mine = (ending = new AbortController());
  let pause = PAUSE_MS;
  while (!mine.signal.aborted) {
    let again = false;
    const woken = new Promise((done) => (wake = () => { again = true; done(); }));
    try {
      const found = await ask(mine.signal);
      if (mine.signal.aborted) return;
      if (again) continue;
      try { show(found); } catch (fault) { reportError(fault); } // a fault of the page is not one of the process
      pause = PAUSE_MS;
    } catch (fault) {
      if (mine.signal.aborted) return;
      if (fault.status === 401 || fault.status === 403) return askForToken(fault);
      setStatus("lost");
      pause = Math.min(pause * 2, PAUSE_MS_MAX);
    }
    await Promise.race([woken, sleep(pause)]);
    if (!again) await visible();
  }
}
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const visible = () => new Promise((done) => {
  if (!document.hidden) return done();
  document.addEventListener("visibilitychange", () => done(), { once: true });
});

// -------------------------------------------------------------------------------------------------------- sign-in

/** Sign out: delete all that the token showed. */
function endSession() {
  setKey("");
  askForToken();
}

function askForToken(why) {
  ending?.abort();
  forget();
  view = null;
  put(main);
  setStatus("locked");
  signIn({
    title: "These services ask for a token", label: "Token", placeholder: "",
    hint: ["It needs the right to inspect and control these services. It is kept in this tab until you close it, and sent as a header."],
    check: () => ask(new AbortController().signal),
    done: follow,
  }, why);
}
onLocked(askForToken);

addEventListener("unhandledrejection", (event) => { if (event.reason?.name !== "AbortError") toast(event.reason?.message || "Something failed.", true); });
follow();
