// Signs in at an identity provider: the authorization code flow of OpenID Connect, with PKCE. A sign-in that is under way is kept in this tab, and taken once.

import { Problem, get, recall, remember } from "../api.js";

const PLACE = "wherry.signing-in";
const UNDER_WAY_MS = 600_000; // a person at the provider has so long
const ANSWER_MS = 15_000;
const TEXT_MAX = 300; // of what a provider explains

const WORDS = {
  access_denied: "The provider did not let you in, or you declined there.",
  login_required: "Your session at the provider has ended: sign in again.",
  interaction_required: "The provider wants to ask you something: sign in again.",
  consent_required: "The provider wants to ask for your consent: sign in again.",
  account_selection_required: "The provider wants to know which account: sign in again.",
  invalid_grant: "The provider does not take this sign-in any more: it was used already, or is too old.",
  invalid_client: "The provider does not know the client of this console, or expects a secret of it: oidc.console_client has to be a public client.",
  unauthorized_client: "The provider does not let the client of this console sign people in: check oidc.console_client.",
  invalid_scope: "The provider does not give a scope that was asked for: check oidc.console_scopes.",
  server_error: "The provider failed. Try again.",
  temporarily_unavailable: "The provider cannot sign people in now. Try again.",
};

export const problem = (detail, code = "sign-in") => new Problem(0, { detail, code });
export const hostOf = (issuer) => new URL(issuer).host;
const returnsTo = () => `${location.origin}/console`;

/** Return the provider by which people sign in here, or null. */
export const provider = async () => (await get("/v1/sign-in", { quiet: true })).provider;

const encoded = (bytes) => btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
const secret = () => encoded(crypto.getRandomValues(new Uint8Array(32)));
const challenge = async (verifier) => encoded(new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier))));

/** Leave the page for the provider; `silent` asks nothing there, and comes back with an error if it would have to. */
export async function leave(at, { silent = false } = {}) {
  if (!globalThis.crypto?.subtle) throw problem("To sign in by a provider, this page has to come by https, or from this machine: browsers forbid the cryptography elsewhere.");
  const begun = { state: secret(), nonce: secret(), verifier: secret(), issuer: at.issuer, silent, place: location.hash, begun_at: Date.now() };
  remember(PLACE, JSON.stringify(begun));
  if (!isStored()) throw problem("This browser stores nothing for this page, so a sign-in could not be finished: allow it, or sign in with a key.");
  const url = new URL(at.authorization_url);
  const fields = {
    response_type: "code", response_mode: "fragment", client_id: at.client_id, redirect_uri: returnsTo(), scope: at.scopes.join(" "),
    state: begun.state, nonce: begun.nonce, code_challenge: await challenge(begun.verifier), code_challenge_method: "S256", ...(silent ? { prompt: "none" } : {}),
  };
  for (const [name, value] of Object.entries(fields)) url.searchParams.set(name, value);
  if (silent) location.replace(url); else location.assign(url);
}

function isStored() {
  try { return sessionStorage.getItem(PLACE) !== null; } catch { return false; }
}

/**
 * Return what the provider sent the browser back with, and the sign-in that this tab began; null if the page was opened otherwise. Address and history keep nothing of it.
 * It is asked to answer behind the `#`. One that answers in the query all the same is read there; what stands in both places stands there twice, and is refused.
 */
export function takeReturn() {
  const behind = location.hash.startsWith("#/") ? "" : location.hash.slice(1);
  const answer = new URLSearchParams([...new URLSearchParams(location.search), ...new URLSearchParams(behind)]);
  if (!answer.has("code") && !answer.has("error")) return null;
  const begun = JSON.parse(recall(PLACE) || "null");
  remember(PLACE, "");
  history.replaceState(null, "", `/console${begun?.place || "#/"}`);
  return { answer, begun };
}

/** Check what came back, and exchange the code for tokens; throws what to show. */
export async function finish({ answer, begun }) {
  const names = [...answer.keys()];
  if (!begun) throw problem("No sign-in is under way in this tab, or it was finished already. Nothing was changed.");
  if (Date.now() - begun.begun_at > UNDER_WAY_MS) throw problem("This sign-in took more than ten minutes: begin again.");
  if (answer.get("state") !== begun.state || new Set(names).size !== names.length) throw problem("The answer is not for the sign-in that this tab began (its state is another one). It was not used: begin again.");
  const at = await provider();
  if (at?.issuer !== begun.issuer || !at.token_url) throw problem("This node cannot reach the provider at the moment: try again.");
  const named = answer.get("iss");
  if (named === null ? at.names_issuer : named !== at.issuer) throw problem(`The answer is not from ${at.issuer}. It was not used: begin again.`);
  if (answer.has("error")) throw refused(answer.get("error"), answer.get("error_description"));
  const given = await askToken(at, { grant_type: "authorization_code", code: answer.get("code"), redirect_uri: returnsTo(), code_verifier: begun.verifier });
  return { at: { ...at, subject: subjectOf(given.id_token, at, begun.nonce) }, given };
}

/** Ask the token endpoint, as the public client that the console is. */
export async function askToken(at, fields) {
  let answer;
  try {
    answer = await fetch(at.token_url, { method: "POST", body: new URLSearchParams({ client_id: at.client_id, ...fields }), credentials: "omit", redirect: "error", cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
  } catch {
    throw problem(`${hostOf(at.token_url)} did not answer this page. It has to be reachable, and to let pages of ${location.origin} ask for tokens (CORS; in Keycloak: Web origins of the client).`, "unreached");
  }
  const given = (await answer.json().catch(() => null)) ?? {};
  if (answer.status >= 500 || answer.status === 429) throw problem(`The provider failed with status ${answer.status}.`, "unreached");
  if (!answer.ok) throw refused(given.error, given.error_description);
  if (!/^[!-~]+$/.test(given.access_token ?? "") || String(given.token_type).toLowerCase() !== "bearer") throw problem("The provider gave no access token that can be used.");
  return given;
}

/** Return whether the provider answers this page at all. What it answers does not matter: some let no page read that, then the token endpoint is asked as it is meant to be. */
export async function isThere(at) {
  try {
    await fetch(at.token_url, { mode: "no-cors", credentials: "omit", cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
    return true;
  } catch { return askToken(at, {}).then(() => true, (fault) => fault.code !== "unreached"); }
}

/** Return the user that an ID token names, once it is from this provider, for this client and, with a nonce, this sign-in. It came from the token endpoint itself, so its signature adds nothing. */
export function subjectOf(token, at, nonce) {
  let claims = {};
  try { claims = JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/")), (sign) => sign.charCodeAt(0)))) ?? {}; } catch { /* none that can be read */ }
  const isForUs = claims.iss === at.issuer && [claims.aud].flat().includes(at.client_id) && (claims.azp ?? at.client_id) === at.client_id;
  if (!isForUs || (nonce !== undefined && claims.nonce !== nonce) || typeof claims.sub !== "string" || !claims.sub) throw problem("The provider answered with an ID token of another sign-in. It was not used: begin again.");
  return claims.sub;
}

function refused(code, explained) {
  const words = Object.hasOwn(WORDS, code) ? WORDS[code] : `The provider refused the sign-in: ${String(code).slice(0, 80)}.`;
  return problem(explained ? `${words} (${String(explained).slice(0, TEXT_MAX)})` : words, code === "login_required" ? code : "sign-in");
}
