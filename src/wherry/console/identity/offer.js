// The button that signs in by the provider, above the field for a key; nothing where the node has no provider.

import { h, put } from "../dom.js";
import { attempt } from "../parts.js";
import { hostOf, leave, provider } from "./flow.js";

export function providerOffer() {
  const el = h("div", { class: "offer", hidden: true });
  provider().then((at) => { if (at) fill(el, at); }).catch(() => {}); // the field for a key is there in any case
  return el;
}

function fill(el, at) {
  const host = hostOf(at.issuer);
  const go = h("button", { type: "button", class: "primary", title: at.issuer, onclick: () => attempt(go, () => leave(at)) }, `Sign in with ${host}`);
  put(el, at.authorization_url ? [go, h("p", { class: "muted" }, "or with a key:")] : h("p", { class: "muted" }, `Nobody can sign in with ${host} at the moment: this node has not reached it, or it offers no sign-in that this page can use.`));
  el.hidden = false;
}
