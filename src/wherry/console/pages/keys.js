// API keys and their rights. The secret of a key is shown once, when it is made.

import { del, get, key, post } from "../api.js";
import { h, put } from "../dom.js";
import { fromInput, when } from "../format.js";
import { attempt, badge, button, confirmed, copyLine, dialog, empty, field, input, loading, page, select, table, toast } from "../parts.js";

export async function show({ root, isShown }) {
  put(root, loading());
  const again = () => isShown() && show({ root, isShown });
  const { keys } = await get("/v1/keys");
  if (!isShown()) return;
  const mine = key().split("_")[1];
  const remove = async (each) => {
    if (!(await confirmed(`Delete the key of ${each.name}?`, each.id === mine ? "You are signed in with this key: you will be signed out." : "It is refused from now on, and streams that were opened with it end.", { action: "Delete" }))) return;
    await attempt(null, async () => { await del(`/v1/keys/${each.id}`); toast(`Deleted the key of ${each.name}.`); again(); });
  };
  put(root, page("Keys", key() ? null : "This node requires no key. Keys made here are used once it does: wherry serve --keys on.", h("button", { class: "primary", type: "button", "data-new": "", onclick: () => create(again) }, "New key")),
    keys.length
      ? table("Keys", ["Name", "Id", { text: "May", wide: true }, "Made", "Expires", ""], keys.map((each) => [h("span", {}, each.name, " ", each.id === mine && badge("yours", "accent")), h("span", { class: "mono" }, each.id), each.rights.map((right) => `${right.verb} ${right.topics}`).join(", "), h("span", {}, when(each.created_ms), each.made_by && ` by ${each.made_by}`), each.expires_ms === null ? "never" : when(each.expires_ms), button("Delete", () => remove(each), "small danger")]))
      : empty("No keys yet", "A key identifies a client and gives it rights: publish, consume or admin, on a pattern of topics.", "wherry key create ann --right 'publish:orders.*'"));
}

function create(done) {
  const name = input("name", { required: true, placeholder: "ann", autofocus: true }), expires = input("expires", { type: "datetime-local", step: 1 });
  const rights = h("div", { class: "section" });
  const add = (verb = "consume", topics = "*") => {
    const row = h("div", { class: "row right" }, select("verb", ["publish", "consume", "admin"], verb, { "aria-label": "Right" }), input("topics", { value: topics, required: true, "aria-label": "Topics, * for any characters" }), h("button", { type: "button", class: "small", "aria-label": "Remove this right", onclick: () => rights.children.length > 1 && row.remove() }, "×"));
    rights.append(row);
  };
  add();
  const go = h("button", { type: "submit", class: "primary" }, "Create");
  dialog("New key", (close) => h("form", { onsubmit: (event) => {
    event.preventDefault();
    const wanted = [...rights.children].map((row) => ({ verb: row.querySelector("select").value, topics: row.querySelector("input").value }));
    attempt(go, async () => {
      const made = await post("/v1/keys", { name: name.value, rights: wanted, expires_ms: fromInput(expires.value) ?? null });
      close();
      done();
      dialog(`The key of ${made.name}`, (shut) => [h("p", {}, "Copy it now: it is shown this once, and the broker keeps only its hash."), copyLine(made.token), h("footer", {}, button("I have it", shut, "primary"))]);
    });
  } }, field("Name", name, "Who uses the key; the audit shows this name."), h("div", { class: "section" }, h("h3", {}, "Rights"), rights, h("div", {}, button("Add a right", () => add(), "small"))), field("Expires", expires, "Empty: never."), h("footer", {}, button("Cancel", close), go)));
}
