// The frame of all pages: navigation, theme, sign-in, keyboard. Each page is a module in pages/ with a function that shows it.

import { get, key, onExpired, onLocked, Problem, setDraft } from "./api.js";
import { h, icon, put, setText } from "./dom.js";
import { zone } from "./format.js";
import { finish, takeReturn } from "./identity/flow.js";
import { providerOffer } from "./identity/offer.js";
import { dropSession, endSession, keepSession, providerHost, renewRefused, resume, session, whenRenewed } from "./identity/session.js";
import { follow, listen, live, reset, whenLocked } from "./live.js";
import { button, dialog, failed, toast } from "./parts.js";
import { show as clusterPage } from "./pages/cluster.js";
import { show as connectionsPage } from "./pages/connections.js";
import { show as deadPage } from "./pages/dead.js";
import { show as keysPage } from "./pages/keys.js";
import { show as messagesPage } from "./pages/messages.js";
import { show as overviewPage } from "./pages/overview.js";
import { show as pipelinesPage } from "./pages/pipelines.js";
import { show as publishPage } from "./pages/publish.js";
import { show as schedulePage } from "./pages/schedule.js";
import { show as subscriptionsPage } from "./pages/subscriptions.js";
import { show as topicPage } from "./pages/topic.js";
import { show as topicsPage } from "./pages/topics.js";
import { signIn } from "./sign-in.js";
import { themeSwitch } from "./theme.js";

const PAGES = [
  ["", "Overview", overviewPage, "overview", "o"],
  ["topics", "Topics", topicsPage, "topics", "t"],
  ["subscriptions", "Subscriptions", subscriptionsPage, "subscriptions", "s"],
  ["messages", "Messages", messagesPage, "messages", "m"],
  ["publish", "Publish", publishPage, "publish", "p"],
  ["schedule", "Schedule", schedulePage, "schedule", "c"],
  ["dead", "Dead letters", deadPage, "dead", "d"],
  ["keys", "Keys", keysPage, "keys", "k"],
  ["connections", "Connections", connectionsPage, "connections", "n"],
  ["cluster", "Cluster", clusterPage, "cluster", "u"],
  ["pipelines", "Pipelines", pipelinesPage, "pipelines", "l"],
];

const returned = takeReturn(); // first: nothing else reads or keeps that address

// -------------------------------------------------------------------------------------------------------- the frame

const main = h("main", { id: "main", tabIndex: -1 });
const links = new Map();
const status = h("span", { class: "status", role: "status" }, h("i", { class: "pulse" }), h("span", {}, "connecting"));
const deadCount = h("b", { class: "count num", hidden: true });
const signOut = h("button", { class: "plain tool", type: "button", hidden: true, "aria-label": "Sign out", onclick: leaveSession }, icon("out"));
const caller = h("span", { class: "muted caller" }), banner = h("p", { class: "banner", role: "alert", hidden: true });
const nav = h("nav", { id: "nav", "aria-label": "Pages" }, PAGES.map(([path, name, , image]) => {
  const link = h("a", { href: `#/${path}` }, icon(image), h("span", {}, name), path === "dead" && deadCount);
  links.set(path, link);
  return link;
}), h("small", { class: "muted zone" }, `Times: ${zone()}`));
const menu = h("button", { class: "plain tool menu", type: "button", "aria-label": "Menu", "aria-expanded": "false", "aria-controls": "nav", onclick: () => openMenu(!document.body.classList.contains("menu-open")) }, icon("menu"));

function openMenu(open) {
  document.body.classList.toggle("menu-open", open);
  menu.setAttribute("aria-expanded", String(open));
}

put(document.getElementById("app"),
  h("header", { class: "top" }, menu, h("a", { class: "brand", href: "#/" }, "Wherry"), status, h("span", { class: "grow" }), themeSwitch(),
    h("button", { class: "plain tool", type: "button", "aria-label": "Keyboard shortcuts", title: "Shortcuts (?)", onclick: help }, icon("help")), caller, signOut),
  banner, h("div", { class: "shell" }, nav, main));

listen(() => {
  document.body.classList.toggle("stale", live.state === "lost" || live.state === "locked");
  const words = { live: "live", lost: "reconnecting …", locked: "locked", connecting: "connecting" };
  status.className = `status ${live.state}`;
  setText(status.lastChild, words[live.state]);
  const dead = (live.figures?.topics || []).reduce((sum, each) => sum + each.dead, 0);
  deadCount.hidden = !dead;
  setText(deadCount, dead > 999 ? "999+" : dead);
  signOut.hidden = !key();
  signOut.title = session() ? `Sign out, here and at ${providerHost()}` : "Forget the key of this tab";
}, true);

const skip = document.querySelector(".skip");
skip.addEventListener("click", (event) => { event.preventDefault(); main.focus(); }); // its address is not that of a page

// -------------------------------------------------------------------------------------------------------- navigation

let onLeave = [], visit = 0;
function navigate() {
  const [path, text = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const names = path.split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  const found = PAGES.find(([each]) => each === names[0]) || PAGES[0];
  onLeave.forEach((fn) => fn());
  onLeave = [];
  openMenu(false);
  for (const [each, link] of links) if (each === found[0]) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  document.title = `${names[1] || found[1]} · Wherry`;
  const mine = ++visit, endings = [];
  onLeave = endings;
  const root = put(main, h("div", { class: `page page-${found[3]}` })).firstChild;
  const place = {
    root, names, query: new URLSearchParams(text),
    live: (fn) => endings.push(listen(fn)),
    onleave: (fn) => endings.push(fn),
    isShown: () => mine === visit,
    reload: () => { if (mine === visit) navigate(); },
  };
  const view = names[0] === "topics" && names[1] ? topicPage : found[2];
  Promise.resolve().then(() => view(place)).catch((fault) => { if (place.isShown()) failed(root, fault); });
  main.scrollTo?.(0, 0);
}
addEventListener("hashchange", async () => {
  const late = takeReturn();
  if (late && !(await finishSignIn(late))) return;
  navigate();
  main.focus({ preventScroll: true }); scrollTo(0, 0);
});

// -------------------------------------------------------------------------------------------------------- sign-in

/** Sign out. */
function leaveSession() {
  const elsewhere = forget();
  if (elsewhere) location.assign(elsewhere); else askForKey();
}

/** Delete the key, and all that it showed: the page, its history and the message to publish again. Returns where to sign out at the provider, if anywhere. */
function forget() {
  const elsewhere = endSession();
  setDraft(null);
  onLeave.forEach((fn) => fn());
  onLeave = [];
  visit++;
  put(main);
  showCaller(null);
  reset("locked");
  return elsewhere;
}

function askForKey(why) {
  signOut.hidden = true;
  dropSession();
  showCaller(null);
  signIn({
    title: "This broker asks for a key", label: "API key", placeholder: "wk_…",
    hint: ["It is kept in this tab until you close it, and sent as a header. The first key is in the file ", h("code", {}, "admin.key"), " of the data directory."],
    check: () => get("/v1/figures", { quiet: true }),
    done: () => { reset(); follow(); navigate(); },
    offer: providerOffer,
  }, why);
}

/** Finish the sign-in that the provider answered; resolves to whether the page can begin. */
async function finishSignIn(returned) {
  try {
    const { at, given } = await finish(returned);
    if (session()?.subject !== at.subject) forget(); // what is kept in this tab was shown to another user
    keepSession(at, given);
    await greet();
    return true;
  } catch (fault) {
    if (returned.begun?.silent || fault.status) forget();
    if (key()) toast(fault.message, true); else askForKey(fault.status === 401 ? new Problem(0, { detail: `The provider signed you in, but this node refuses its token: ${fault.message}` }) : fault);
    return key() !== "";
  }
}

/** Show who is signed in by the provider, and whether the token gives no right at all. */
async function greet() {
  showCaller(session() && (await get("/v1/identity/caller", { quiet: true })));
}

function showCaller(found) {
  const rights = found?.rights.map((right) => `${right.verb} ${right.topics}`).join(", ");
  setText(caller, found?.name.replace(/^oidc:/, "") ?? "");
  caller.title = rights || "";
  banner.hidden = !found || found.rights.length > 0;
  setText(banner, found ? `You are signed in as ${found.name}, but your token gives you no right on this node. Whoever runs it has to give you a role or scope that a rule of oidc.rules names; sign in again after that.` : "");
}
onLocked(askForKey);
whenLocked(askForKey);
onExpired(renewRefused);
whenRenewed(() => greet().catch(() => {})); // another token may have other rights

// -------------------------------------------------------------------------------------------------------- keyboard

let prefix = 0;
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
  if (event.key === "Escape") return openMenu(false);
  if (Date.now() - prefix < 1500) {
    const page = PAGES.find((each) => each[4] === event.key);
    prefix = 0;
    if (page) { event.preventDefault(); location.hash = `#/${page[0]}`; }
    return;
  }
  if (event.key === "g") prefix = Date.now();
  else if (event.key === "?") help();
  else if (event.key === "/") {
    event.preventDefault();
    const search = main.querySelector("[data-search]");
    if (search) search.focus(); else location.hash = "#/messages";
  } else if (event.key === "n" && main.querySelector("[data-new]")) {
    event.preventDefault(); // else the letter is typed into the field that gets the focus
    main.querySelector("[data-new]").click();
  }
});

function help() {
  const rows = [["/", "Search on this page"], ["n", "New: topic, subscription or key"], ["?", "This list"], ["Esc", "Close"], ...PAGES.map(([, name, , , letter]) => [`g ${letter}`, name])];
  dialog("Keyboard", (close) => [h("dl", { class: "keys" }, rows.map(([keys, what]) => h("div", {}, h("dt", {}, keys.split(" ").map((each) => h("kbd", {}, each))), h("dd", {}, what)))), h("footer", {}, button("Close", close))]);
}

addEventListener("unhandledrejection", (event) => { if (event.reason?.name !== "AbortError") toast(event.reason?.message || "Something failed.", true); });

if (!returned || (await finishSignIn(returned))) {
  resume();
  if (!returned && session()) greet().catch(() => {});
  navigate();
  follow();
}
