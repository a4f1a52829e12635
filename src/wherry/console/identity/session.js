// The session of a user who signed in by the provider: its access token is the key of this tab, renewed before it ends. It is kept as keys are, in this tab.

import { key, recall, remember, setKey } from "../api.js";
import { askToken, hostOf, isThere, leave, problem, provider, subjectOf } from "./flow.js";

const PLACE = "wherry.session";
const EARLY_MS = 30_000, EARLY_SHARE = 0.2; // renewed so long before the end, or in the last share of the life where that is later
const RETRY_MS = 2_000, PAUSE_MS = 1_000; // after a renewal that failed; after any, whatever life the provider states
const SETTLED_MS = 10_000; // a token that the node refuses sooner after it came is not renewed: the next would be refused too
const AWAITED_MS = 10_000; // a call waits so long for a provider that does not answer: a laptop that wakes may find its node first
const OWNER_MS = 2_000; // a page that was loaded again waits so long for the one before to end
const VISIT_MS = 30_000; // the browser has so long to leave the page
const LIFE_S = 60, LIFE_S_MAX = 86_400; // where the provider states none; the longest that is believed

let timer = 0, renewing = null, isMissing = false, onRenewed = () => {}, owned = { id: "", is: null };
export const whenRenewed = (fn) => (onRenewed = fn);
export const session = () => JSON.parse(recall(PLACE) || "null");
export const providerHost = () => (session() ? hostOf(session().issuer) : "");

/** Keep what the provider gave, and renew it in time; `before` is the session that goes on. */
export function keepSession(at, given, before = {}) {
  const stated = Number(given.expires_in), life_ms = Math.min(stated > 0 ? stated : LIFE_S, LIFE_S_MAX) * 1000, got_at = Date.now(), ends_at = got_at + life_ms;
  setKey(given.access_token);
  remember(PLACE, JSON.stringify({
    id: before.id ?? crypto.randomUUID(), issuer: at.issuer, client_id: at.client_id, token_url: at.token_url, end_session_url: at.end_session_url,
    subject: before.subject ?? at.subject, refresh: given.refresh_token ?? before.refresh, identity: given.id_token ?? before.identity, got_at, ends_at, renew_at: ends_at - Math.min(EARLY_MS, life_ms * EARLY_SHARE),
  }));
  resume();
}

/** Wait for the time to renew, also in a page that was loaded again. */
export function resume() {
  clearTimeout(timer);
  if (!session()) return;
  timer = setTimeout(whenDue, Math.max(PAUSE_MS, session().renew_at - Date.now()));
  isOwner(session().id);
}

/** Resolves to whether the refresh token is for this tab to use. A duplicated tab has a copy of it, and providers end a session whose token is used twice: the copy is dropped. */
function isOwner(id) {
  if (owned.id !== id && navigator.locks) {
    const drop = () => { if (session()?.id === id) remember(PLACE, JSON.stringify({ ...session(), refresh: null })); return false; };
    const untilEnded = new Promise(() => {});
    owned = { id, is: new Promise((done) => navigator.locks.request(`wherry.session ${id}`, { signal: AbortSignal.timeout(OWNER_MS) }, () => { done(true); return untilEnded; }).catch(() => done(drop()))) };
  }
  return owned.is ?? true;
}

async function whenDue() {
  const now = session();
  if (!now || (await renew()) || Date.now() >= now.ends_at || !session()) return; // after its end, the next call asks again
  timer = setTimeout(whenDue, RETRY_MS);
}

/** Forget the session, but not the key. */
export function dropSession() {
  clearTimeout(timer);
  remember(PLACE, "");
}

/** Forget session and key; return where to sign out at the provider, null if there is no such place. */
export function endSession() {
  const now = session();
  dropSession();
  setKey("");
  if (!now?.end_session_url) return null;
  const url = new URL(now.end_session_url);
  const fields = { client_id: now.client_id, post_logout_redirect_uri: `${location.origin}/console`, ...(now.identity ? { id_token_hint: now.identity } : {}) };
  for (const [name, value] of Object.entries(fields)) url.searchParams.set(name, value);
  return url;
}

/** Get another token where the node refuses that of this tab: it is at its end, by whichever clock, or its key is gone. Resolves to whether there is one. */
export async function renewRefused() {
  const now = session(), sent = key(), until = Date.now() + AWAITED_MS;
  if (!now || (Date.now() < now.renew_at && Math.abs(Date.now() - now.got_at) < SETTLED_MS)) return false;
  for (;;) {
    if (await renew()) return true;
    if (!isMissing || Date.now() >= until) return false;
    await sleep(RETRY_MS);
    if (!session() || key() !== sent) return key() !== "";
  }
}

function renew() {
  renewing ??= renewed().finally(() => (renewing = null));
  return renewing;
}

async function renewed() {
  isMissing = false;
  await isOwner(session().id);
  const kept = recall(PLACE), now = session();
  if (!now) return false;
  if (now.refresh) {
    try {
      const given = await askToken(now, { grant_type: "refresh_token", refresh_token: now.refresh });
      if (recall(PLACE) !== kept) return false; // the user signed out meanwhile
      if (given.id_token && subjectOf(given.id_token, now) !== now.subject) throw problem("The provider renewed the session of another user.");
      keepSession(now, given, now);
      onRenewed();
      return true;
    } catch (fault) {
      isMissing = fault.code === "unreached";
      if (isMissing || recall(PLACE) !== kept) return false;
      remember(PLACE, JSON.stringify({ ...now, refresh: null }));
    }
  }
  return renewByVisit();
}

/** Without a refresh token: visit the provider, which asks nothing while its own session lasts. Not while the user writes, since that would be lost; nor where nothing answers, since the page would be. */
async function renewByVisit() {
  if (isWriting()) return false;
  const at = await provider().catch(() => null);
  if (!session() || !at?.authorization_url || at.issuer !== session().issuer) return false;
  isMissing = !(await isThere(at));
  if (isMissing || isWriting() || !session()) return false;
  await leave(at, { silent: true });
  return sleep(VISIT_MS).then(() => false); // by then the page has ended, unless the user stopped that
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

let wroteHere = false;
addEventListener("input", () => (wroteHere = true), true);
addEventListener("hashchange", () => (wroteHere = false));
const isWriting = () => wroteHere || document.querySelector("dialog[open]") !== null;
