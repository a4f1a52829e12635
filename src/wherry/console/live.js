// One stream of figures for all charts: turns counters into rates and histories, and calls the listeners of the pages.

import { hasAnother, key, Problem, recall, remember, stream } from "./api.js";
import { setClock } from "./format.js";

const KEPT = 300; // points of the totals: five minutes
const SPARK = 60; // points of each topic
const OVER = 3; // samples that a rate is the mean of: batches make single seconds jump
const PLACE = "wherry.history";

export const live = { figures: null, totals: [], topics: new Map(), subs: new Map(), state: "connecting" };
const listeners = new Set();
let past = [], ending = null, onLocked = () => {};

/** Call `fn` with the last sample now and with each new one; with `always` also at each change of the connection. Returns a function that stops this. */
export function listen(fn, always = false) {
  const each = { fn, always };
  listeners.add(each);
  notify(each);
  return () => listeners.delete(each);
}
export const whenLocked = (fn) => (onLocked = fn);

/** Call a listener. If it fails, the error is reported as one of the page, and the stream goes on for the others. */
function notify({ fn, always }) {
  if (!live.figures && !always) return;
  try { fn(live); } catch (fault) { reportError(fault); }
}

function notifyAll() {
  for (const each of [...listeners]) if (listeners.has(each)) notify(each);
}

const counted = (each, name) => (each && each.counters[name]) || 0;
const settledOf = (sub) => counted(sub, "acked");

/** Return the time that a share of the events between two samples took at most, by their histograms. */
export function quantile(now, then, share) {
  if (!now) return null;
  const gained = now.counts.map((n, i) => n - (then ? then.counts[i] : 0));
  const all = gained.reduce((a, b) => a + b, 0);
  if (all <= 0) return null;
  let left = all * share;
  for (let i = 0; i < gained.length; i++) {
    if (left <= gained[i] && gained[i]) {
      const low = i ? now.bounds[i - 1] : 0, high = i < now.bounds.length ? now.bounds[i] : now.bounds.at(-1);
      return low + (high - low) * (left / gained[i]);
    }
    left -= gained[i];
  }
  return now.bounds.at(-1);
}

function ring(map, name, point) {
  if (!map.has(name)) map.set(name, []);
  const kept = map.get(name);
  kept.push(point);
  if (kept.length > SPARK) kept.shift();
}

function take(figures) {
  setClock(figures.at_ms);
  const readers = new Set();
  const before = past[0] || null;
  const gap = before ? (figures.at_ms - before.at_ms) / 1000 : 0;
  const old = new Map((before ? before.topics : []).map((each) => [each.name, each]));
  const per = (now, then) => (gap > 0 ? Math.max(0, now - then) / gap : 0);
  const sum = { at: figures.at_ms, published: 0, delivered: 0, settled: 0, ready: 0, leased: 0, scheduled: 0, dead: 0, lag: 0, lagMs: 0, failed: 0 };
  for (const topic of figures.topics) {
    const then = old.get(topic.name);
    const thenSubs = new Map((then ? then.subscriptions : []).map((each) => [each.name, each]));
    const point = { at: figures.at_ms, published: then ? per(counted(topic, "published"), counted(then, "published")) : 0, delivered: 0, settled: 0, ready: 0, leased: 0, scheduled: 0, dead: topic.dead, lag: 0, lagMs: 0 };
    for (const sub of topic.subscriptions) {
      const was = thenSubs.get(sub.name);
      const mine = {
        at: figures.at_ms, ready: sub.ready, lag: sub.lag,
        delivered: was ? per(sub.delivered, was.delivered) : 0,
        settled: was ? per(settledOf(sub), settledOf(was)) : 0,
        failed: was ? per(counted(sub, "failed"), counted(was, "failed")) : 0,
      };
      const id = JSON.stringify([topic.name, sub.name]);
      readers.add(id);
      ring(live.subs, id, mine);
      for (const name of ["delivered", "settled"]) point[name] += mine[name];
      for (const name of ["ready", "leased", "scheduled", "lag"]) point[name] += sub[name];
      sum.failed += mine.failed;
      point.lagMs = Math.max(point.lagMs, sub.ready_ms ?? 0);
    }
    ring(live.topics, topic.name, point);
    for (const name of ["published", "delivered", "settled", "ready", "leased", "scheduled", "dead", "lag"]) sum[name] += point[name];
    sum.lagMs = Math.max(sum.lagMs, point.lagMs);
  }
  const latency = figures.broker?.latency || {}, was = before?.broker?.latency || {};
  for (const name of ["publish", "delivery", "settle"]) {
    sum[name + "50"] = before ? quantile(latency[name], was[name], 0.5) : null;
    sum[name + "99"] = before ? quantile(latency[name], was[name], 0.99) : null;
  }
  const names = new Set(figures.topics.map((each) => each.name));
  for (const name of live.topics.keys()) if (!names.has(name)) live.topics.delete(name);
  for (const id of live.subs.keys()) if (!readers.has(id)) live.subs.delete(id);
  if (before) live.totals.push(sum);
  if (live.totals.length > KEPT) live.totals.shift();
  live.figures = figures;
  past = [...past, figures].slice(-OVER);
  live.state = "live";
  notifyAll();
}

/** Follow the stream, and connect again when it breaks. */
export async function follow() {
  ending?.abort();
  const mine = (ending = new AbortController());
  let pause = 500;
  while (!mine.signal.aborted) {
    const sent = key();
    try {
      await stream("/v1/figures", (kind, data) => {
        if (kind === "problem") throw new Problem(data.status, data);
        pause = 500;
        take(data);
      }, mine.signal);
    } catch (fault) {
      if (mine.signal.aborted) return;
      if (fault.status === 401 && (await hasAnother(sent))) continue;
      if (mine.signal.aborted) return;
      if (fault.status === 401) {
        live.state = "locked";
        onLocked(fault);
        return notifyAll();
      }
    }
    if (mine.signal.aborted) return;
    live.state = "lost";
    notifyAll();
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(pause * 2, 5000);
  }
}

/** Delete all figures and stop: another key sees other topics. */
export function reset(state = "connecting") {
  ending?.abort();
  live.state = state;
  past = [];
  live.figures = null;
  live.totals = [];
  live.topics.clear();
  live.subs.clear();
  remember(PLACE, "");
  notifyAll();
}

addEventListener("pagehide", () => remember(PLACE, live.figures ? JSON.stringify({ totals: live.totals, topics: [...live.topics], subs: [...live.subs] }) : ""));
try {
  const kept = JSON.parse(recall(PLACE) || "null");
  if (kept && kept.totals.length && Date.now() - kept.totals.at(-1).at < 60_000) {
    live.totals = kept.totals;
    live.topics = new Map(kept.topics);
    live.subs = new Map(kept.subs);
  }
} catch { /* it was kept by another version: begin without it */ }
