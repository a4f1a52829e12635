// The dialog that asks for a key or a token, until one is accepted. It is kept only then.

import { key, setKey } from "./api.js";
import { h, setText } from "./dom.js";
import { dialog, field, input } from "./parts.js";

let asking = false;

/** Ask once at a time; `check` makes a call with what was given, `done` goes on after it, `offer` makes what to show above, `why` is the problem that led here. */
export function signIn(options, why) {
  const { title, hint, label, placeholder, check, done, offer } = options;
  if (asking) return;
  asking = true;
  document.querySelectorAll("dialog[open]").forEach((each) => each.close());
  let accepted = false;
  const token = input("key", { type: "password", required: true, placeholder, autofocus: true });
  const notice = h("p", { class: "bad-text", role: "alert" }, why && (key() || !why.status) ? why.message : "");
  const submit = async (event) => {
    event.preventDefault();
    const before = key(), given = token.value.trim();
    if (!/^[!-~]+$/.test(given)) return setText(notice, `${label}: only visible ASCII characters are allowed.`); // a header takes no others
    setKey(given);
    try {
      await check();
      accepted = true;
      shown.close();
    } catch (fault) { setKey(before); setText(notice, fault.name === "AbortError" ? "No answer came." : fault.message); token.select(); }
  };
  const shown = dialog(title, () => h("form", { class: "login", onsubmit: submit }, offer?.(), h("p", {}, hint), field(label, token), notice, h("footer", {}, h("button", { type: "submit", class: "primary" }, "Sign in"))), {
    onclose: () => { asking = false; if (accepted) done(); else signIn(options); },
  });
}
