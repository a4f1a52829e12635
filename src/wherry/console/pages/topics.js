// All topics: find one, create one.

import { h, put } from "../dom.js";
import { seg } from "../format.js";
import { empty, field, input, page } from "../parts.js";
import { topicTable } from "./overview.js";
import { topicForm } from "../topic-form.js";

export function show({ root, live, query }) {
  const create = () => topicForm(null, (name) => (location.hash = `#/topics/${seg(name)}`));
  const search = input("search", { type: "search", placeholder: "part of a name", "data-search": "" });
  const topics = topicTable(), place = h("div", {});
  put(root, page("Topics", "A topic is a named set of partitions with one order.", h("button", { class: "primary", type: "button", "data-new": "", onclick: create }, "New topic")),
    h("div", { class: "filters" }, field("Search", search)), place);
  let last = null, shown = null;
  const draw = () => {
    if (!last) return;
    const wanted = last.figures.topics.length ? "table" : "empty";
    if (wanted !== shown) {
      shown = wanted;
      put(place, wanted === "table" ? topics.el : empty("No topics yet", "Create the first one here, or from a shell:", "wherry topic create orders --partitions 4", h("button", { class: "primary", type: "button", onclick: create }, "New topic")));
    }
    if (wanted === "table") topics.update(last, (each) => each.name.toLowerCase().includes(search.value.toLowerCase()));
  };
  search.addEventListener("input", draw);
  live((now) => { last = now; draw(); });
  if (query.has("new")) create();
}
