// The button that signs in by the provider, above the field for a key; nothing where the node has no provider.

import { h, put } from "../dom.js";
import { attempt } from "../parts.js";
import { hostOf, leave, provider } from "./flow.js";

const AGAIN_MS = 3_000;

export function providerOffer() {
  const el = h("div", { class: "offer", hidden: true });
  look(el);
  return el;
}

/** Show what the node knows of the provider, and look again while that is not enough to sign in and the dialog is open. */
async function look(el) {
  const at = await provider().catch(() => undefined); // the field for a key is there in any case
  if (at) fill(el, at);
  if (at !== null && !at?.authorization_url) setTimeout(() => { if (el.isConnected) look(el); }, AGAIN_MS);
}

function fill(el, at) {
  const host = hostOf(at.issuer);
  const go = h("button", { type: "button", class: "primary", title: at.issuer, onclick: () => attempt(go, () => leave(at)) }, `Sign in with ${host}`);
  put(el, at.authorization_url ? [go, h("p", { class: "muted" }, "or with a key:")] : h("p", { class: "muted" }, `Nobody can sign in with ${host} at the moment: this node has not reached it, or it offers no sign-in that this page can use.`));
  el.hidden = false;
}
