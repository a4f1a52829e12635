// The session of a user who signed in by the provider: its access token is the key of this tab, renewed before it ends. It is kept as keys are, in this tab.

import { key, recall, remember, setKey } from "../api.js";
import { askToken, hostOf, leave, provider } from "./flow.js";

const PLACE = "wherry.session";
const EARLY_MS = 30_000, EARLY_SHARE = 0.2; // renewed so long before the end, or in the last share of the life where that is later
const RETRY_MS = 2_000, PAUSE_MS = 1_000; // after a renewal that failed; after any, whatever life the provider states
const VISIT_MS = 30_000; // the browser has so long to leave the page
const LIFE_S = 60, LIFE_S_MAX = 86_400; // where the provider states none; the longest that is believed

let timer = 0, renewing = null, onRenewed = () => {};
export const whenRenewed = (fn) => (onRenewed = fn);
export const session = () => JSON.parse(recall(PLACE) || "null");
export const providerHost = () => (session() ? hostOf(session().issuer) : "");

/** Keep what the provider gave, and renew it in time; `before` is the session that goes on. */
export function keepSession(at, given, before = {}) {
  const life_ms = Math.min(Math.max(Number(given.expires_in ?? LIFE_S) || 0, 0), LIFE_S_MAX) * 1000, ends_at = Date.now() + life_ms;
  setKey(given.access_token);
  remember(PLACE, JSON.stringify({
    issuer: at.issuer, client_id: at.client_id, token_url: at.token_url, end_session_url: at.end_session_url,
    subject: before.subject ?? at.subject, refresh: given.refresh_token ?? before.refresh, identity: given.id_token ?? before.identity, ends_at, renew_at: ends_at - Math.min(EARLY_MS, life_ms * EARLY_SHARE),
  }));
  resume();
}

/** Wait for the time to renew, also in a page that was loaded again. */
export function resume() {
  clearTimeout(timer);
  if (session()) timer = setTimeout(whenDue, Math.max(PAUSE_MS, session().renew_at - Date.now()));
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

/** Get another token if that of this tab is at its end; resolves to whether there is one. */
export const renewEnded = async () => (session() && Date.now() >= session().renew_at ? renew() : false);

function renew() {
  renewing ??= renewed().finally(() => (renewing = null));
  return renewing;
}

async function renewed() {
  const kept = recall(PLACE), now = session();
  if (now.refresh) {
    try {
      const given = await askToken(now, { grant_type: "refresh_token", refresh_token: now.refresh });
      if (recall(PLACE) !== kept) return false; // the user signed out meanwhile
      keepSession(now, given, now);
      onRenewed();
      return true;
    } catch (fault) {
      if (fault.code === "unreached" || recall(PLACE) !== kept) return false;
      remember(PLACE, JSON.stringify({ ...now, refresh: null }));
    }
  }
  return renewByVisit();
}

/** Without a refresh token: visit the provider, which asks nothing while its own session lasts. Not while the user writes, since that would be lost. */
async function renewByVisit() {
  if (isWriting()) return false;
  const at = await provider().catch(() => null);
  if (!session() || !at?.authorization_url || at.issuer !== session().issuer) return false;
  await leave(at, { silent: true });
  return sleep(VISIT_MS).then(() => false); // by then the page has ended, unless the user stopped that
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

let wroteHere = false;
addEventListener("input", () => (wroteHere = true), true);
addEventListener("hashchange", () => (wroteHere = false));
const isWriting = () => wroteHere || document.querySelector("dialog[open]") !== null;
