// Charts of our own: lines over time, sparklines, and a bar of parts. They are redrawn in place and never change size.

import { h, put, s, setText } from "./dom.js";
import { clock } from "./format.js";

const GAP_MS = 5_000; // after a longer pause the line has a gap, since nothing is known of it

const PAD = { left: 46, right: 8, top: 8, bottom: 18 };

/** Return the next round number above, or the next of these steps. */
function nice(value, steps) {
  if (!(value > 0)) return steps ? steps[0] : 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const above = (each) => each >= value * 1.0001;
  return steps?.find(above) || [1, 1.5, 2, 3, 4, 6, 8, 10].map((step) => step * power).find(above) || 10 * power;
}

/** Round times, in milliseconds. */
export const TIMES = [1, 2, 4, 10, 20, 60, 120, 240, 600, 1200, 3600, 7200, 14_400, 43_200, 86_400, 172_800].map((each) => each * 1000);

function path(points, x, y) {
  let text = "", pen = "M";
  for (const [at, value] of points) {
    if (value === null || value === undefined) { pen = "M"; continue; }
    text += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
  }
  return text;
}

/** Split points at gaps. A node with very many topics sends samples rarely: its usual pause is no gap. */
function runs(points) {
  const steps = points.slice(1).map((each, i) => each.at - points[i].at), gap = Math.max(GAP_MS, 3 * Math.min(...steps));
  const found = [];
  points.forEach((each, i) => { if (!i || steps[i - 1] > gap) found.push([each]); else found.at(-1).push(each); });
  return found;
}

const SPANS = [1, 2, 3, 4, 5].map((minutes) => minutes * 60_000);

/** Lines over the last minutes. `series`: [{name, label, tone}]; `format` writes a value, `mark` one of the axis; `log`: decades, from `floor` up. */
export function lineChart({ title, series, format, mark: axisText = format, spanMs = null, height = 158, floor = 0, log = false, steps = null }) {
  const svg = s("svg", { class: "chart", height, role: "img", "aria-label": title });
  const values = series.map(() => h("b", { class: "num" }, "–"));
  const legend = h("ul", { class: "legend" }, series.map((each, i) => h("li", {}, h("i", { class: `dot ${each.tone}` }), each.label, " ", values[i])));
  const box = h("section", { class: "card chart-card" }, h("header", {}, h("h3", {}, title), legend), svg);
  const grid = s("g", { class: "grid" }), axis = s("g", { class: "axis" }), cursor = s("line", { class: "cursor", y1: PAD.top, y2: height - PAD.bottom });
  const area = s("path", { class: `area ${series[0].tone}` });
  const lines = series.map((each) => s("path", { class: `line ${each.tone}` }));
  svg.append(grid, area, ...lines, axis, cursor);
  let top = 0, points = [], hover = null;

  function draw() {
    const width = svg.clientWidth || 480;
    const end = points.length ? points.at(-1).at : Date.now();
    const long = spanMs || SPANS.find((each) => points.length && end - points[0].at <= each) || (points.length ? SPANS.at(-1) : SPANS[0]);
    const begin = end - long;
    const seen = points.filter((each) => each.at >= begin);
    const most = Math.max(floor, ...seen.flatMap((each) => series.map((line) => each[line.name] || 0)));
    const wanted = log ? 10 ** Math.ceil(Math.log10(most * 1.0001)) : nice(most, steps);
    top = wanted > top || wanted < top / 4 ? wanted : top; // the axis shrinks only when the values need less than a quarter of it
    const x = (at) => PAD.left + ((at - begin) / long) * (width - PAD.left - PAD.right);
    const low = floor / 10, share = log ? (value) => Math.log10(Math.max(value, low) / low) / Math.log10(top / low) : (value) => value / top;
    const y = (value) => height - PAD.bottom - share(value) * (height - PAD.top - PAD.bottom);
    const decades = log ? Math.round(Math.log10(top / low)) : 0;
    const marks = log ? Array.from({ length: decades + 1 }, (_, i) => low * 10 ** i).filter((_, i) => decades < 5 || i % 2 === decades % 2) : [0, 0.5, 1].map((part) => part * top);
    put(grid, marks.map((mark) => s("line", { x1: PAD.left, x2: width - PAD.right, y1: y(mark), y2: y(mark) })));
    const minutes = long / 60_000;
    put(axis,
      marks.map((mark) => s("text", { x: PAD.left - 6, y: y(mark) + 4, "text-anchor": "end" }, axisText(mark))),
      [0, 0.5, 1].map((part) => s("text", { x: x(begin + part * long), y: height - 4, "text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle" }, part === 1 ? "now" : `−${(1 - part) * minutes} min`)));
    const whole = runs(seen);
    lines.forEach((line, i) => line.setAttribute("d", whole.map((run) => path(run.map((each) => [each.at, each[series[i].name]]), x, y)).join("")));
    area.setAttribute("d", log ? "" : whole.filter((run) => run.length > 1).map((run) => `${path(run.map((each) => [each.at, each[series[0].name] ?? 0]), x, y)}L${x(run.at(-1).at).toFixed(1)} ${y(0)}L${x(run[0].at).toFixed(1)} ${y(0)}Z`).join(""));
    let shown = points.at(-1);
    if (hover !== null && seen.length) {
      const at = begin + ((hover - PAD.left) / (width - PAD.left - PAD.right)) * long;
      shown = seen.reduce((best, each) => (Math.abs(each.at - at) < Math.abs(best.at - at) ? each : best));
      cursor.setAttribute("x1", x(shown.at));
      cursor.setAttribute("x2", x(shown.at));
    }
    cursor.setAttribute("visibility", hover !== null && seen.length ? "visible" : "hidden");
    series.forEach((each, i) => setText(values[i], shown && shown[each.name] !== null && shown[each.name] !== undefined ? format(shown[each.name]) : "–"));
    svg.setAttribute("aria-label", `${title}: ${series.map((each, i) => `${each.label} ${values[i].textContent}`).join(", ")}${hover !== null && shown ? ` at ${clock(shown.at)}` : ""}`);
  }
  svg.addEventListener("pointermove", (event) => { hover = event.clientX - svg.getBoundingClientRect().left; draw(); });
  svg.addEventListener("pointerleave", () => { hover = null; draw(); });
  new ResizeObserver(draw).observe(svg);
  return { el: box, update(found) { points = found; draw(); } };
}

/** A line without words, for a cell. */
export function sparkline(label, width = 96, height = 24) {
  const line = s("path", { class: "line accent" }), area = s("path", { class: "area accent" });
  const el = s("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, area, line);
  return {
    el,
    update(values) {
      const most = Math.max(1, ...values), step = width / 59, from = 60 - values.length;
      const d = values.map((value, i) => `${i ? "L" : "M"}${((from + i) * step).toFixed(1)} ${(height - 2 - (value / most) * (height - 4)).toFixed(1)}`).join("");
      line.setAttribute("d", d);
      area.setAttribute("d", values.length > 1 ? `${d}L${width} ${height}L${(from * step).toFixed(1)} ${height}Z` : "");
      el.setAttribute("aria-label", `${label}: now ${values.length ? Math.round(values.at(-1)) : 0}`);
    },
  };
}

/** Shares of a whole side by side: what is ready, leased, scheduled, dead. */
export function stateBar() {
  const names = ["ready", "leased", "scheduled", "dead"];
  const parts = names.map((name) => h("i", { class: `part ${name}` }));
  const el = h("span", { class: "statebar", role: "img" }, parts);
  return {
    el,
    update(point) {
      const all = names.reduce((sum, name) => sum + (point[name] || 0), 0);
      names.forEach((name, i) => (parts[i].style.flexGrow = all ? (point[name] || 0) / all : 0));
      const text = names.map((name) => `${point[name] || 0} ${name}`).join(", ");
      if (el.title !== text) { el.title = text; el.setAttribute("aria-label", text); }
    },
  };
}
