// What the page of services keeps: the last answer, and rates made from counters, for five minutes and for each method for one.

const KEPT = 300, SPARK = 60; // points: one a second
const NOT_ANSWERED = ["failed", "timed out", "cancelled", "lost"];

export const history = { found: null, totals: [], methods: new Map() };
let before = null;

export const nameOf = (service, method) => `${service.service}.${method.name}`;
const all = (calls) => Object.values(calls).reduce((sum, n) => sum + n, 0);

/** Take an answer of `GET /services`. Counters of another process begin again: nothing of the one before is kept. */
export function addSample(found, at) {
  if (history.found && history.found.instance !== found.instance) forget();
  const gap = before ? (at - before.at) / 1000 : 0, calls = new Map();
  const sum = { at, answered: 0, refused: 0, failed: 0, running: 0, waiting: 0, methods: 0, open: 0 };
  for (const service of found.services) {
    sum.running += service.running;
    sum.waiting += service.waiting;
    for (const method of service.methods) {
      sum.methods++;
      if (!service.draining && !method.paused) sum.open++;
      const name = nameOf(service, method), then = before?.calls.get(name);
      calls.set(name, method.calls);
      if (!then || gap <= 0) continue;
      const rate = (outcome) => Math.max(0, (method.calls[outcome] || 0) - (then[outcome] || 0)) / gap;
      sum.answered += rate("answered");
      sum.refused += rate("refused");
      for (const outcome of NOT_ANSWERED) sum.failed += rate(outcome);
      ring(name, Math.max(0, all(method.calls) - all(then)) / gap);
    }
  }
  for (const name of history.methods.keys()) if (!calls.has(name)) history.methods.delete(name);
  if (gap > 0) history.totals.push(sum);
  if (history.totals.length > KEPT) history.totals.shift();
  before = { at, calls };
  history.found = found;
}

function ring(name, value) {
  if (!history.methods.has(name)) history.methods.set(name, []);
  const kept = history.methods.get(name);
  kept.push(value);
  if (kept.length > SPARK) kept.shift();
}

/** Delete all: another token sees other services. */
export function forget() {
  before = null;
  history.found = null;
  history.totals = [];
  history.methods.clear();
}
