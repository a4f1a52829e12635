// Elements from data. Children that are text become text nodes: this module never parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && !(node instanceof SVGElement) && !name.startsWith("aria") && name !== "list" && name !== "form")
      node[name] = value;
    else node.setAttribute(name === "class" ? "class" : name, value === true ? "" : String(value));
  }
  append(node, children);
  return node;
}

export function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** An element: h("a", {class: "x", href: "#/", onclick: f}, "text", other). */
export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);

/** The same in SVG. */
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

/** Replace the children of an element. */
export function put(node, ...children) {
  node.replaceChildren();
  append(node, children);
  return node;
}

/** Make these the children of an element, in this order. A child in its place is not touched, and the focus stays. */
export function arrange(node, wanted) {
  const focus = document.activeElement, keep = new Set(wanted);
  for (const each of [...node.children]) if (!keep.has(each)) each.remove();
  let at = node.firstElementChild;
  for (const each of wanted) if (each === at) at = at.nextElementSibling; else node.insertBefore(each, at);
  if (document.activeElement !== focus && node.contains(focus)) focus.focus({ preventScroll: true });
}

/** Set the text of an element, only if it is another: most texts of a live page stay the same. */
export function setText(node, text) {
  const wanted = String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

export const icon = (name) => s("svg", { class: "icon", viewBox: "0 0 20 20", "aria-hidden": "true" }, s("path", { d: ICONS[name] }));

const ICONS = {
  overview: "M3 17V9m5 8V3m5 14v-6m4 6V6",
  topics: "M3 5h14M3 10h14M3 15h9",
  subscriptions: "M10 3v6m0 0-5 5m5-5 5 5M3 17h4m6 0h4",
  messages: "M3 5h14v10H9l-4 3v-3H3z",
  publish: "M10 16V4m0 0L5 9m5-5 5 5",
  schedule: "M10 3a7 7 0 1 0 0 14 7 7 0 0 0 0-14zm0 3v4l3 2",
  dead: "M10 3 18 17H2zM10 8v4m0 2v1",
  keys: "M7 13a3 3 0 1 1 2-5l8 0v3h-2v2h-3v-2H9a3 3 0 0 1-2 2z",
  connections: "M4 10h4m4 0h4M8 7v6m4-6v6",
  cluster: "M10 3v4M5 17v-4m10 4v-4M5 13l5-6 5 6M3 17h4m6 0h4",
  pipelines: "M3 6h5l4 8h5M3 14h5m4-8h5",
  theme: "M10 3a7 7 0 1 0 0 14zM10 3a7 7 0 0 1 0 14",
  help: "M7.5 7.5a2.5 2.5 0 1 1 3.6 2.2c-.8.4-1.1.9-1.1 1.8m0 2.5v.5",
  menu: "M3 6h14M3 10h14M3 14h14",
  out: "M12 4h4v12h-4M3 10h9m-3-3 3 3-3 3",
};
