// The newest messages of a topic. A log is read forwards: so read its last offsets, and twice as many while too few messages are found.

import { get, query } from "./api.js";

const PARTITIONS = 16; // read together
const LIMIT = 1_000; // messages of one call
const CALLS = 24; // of one partition; then the page shows the messages found so far and a button for the rest

/** Return messages below `end`, newest first, and the `end` of the next call: null when there are none before. */
async function below(path, { partition, first, end }, wanted) {
  let found = [], wide = wanted;
  for (let calls = 0; found.length < wanted && end > first && calls < CALLS; calls++) {
    const start = Math.max(first, end - wide);
    const { chunk, whole } = await between(path, partition, start, end, wide > wanted);
    if (!whole) { wide = Math.max(wanted, Math.floor(wide / 4)); continue; } // more than one call returns: its newest messages are missing
    found = [...found, ...chunk.reverse()];
    end = start;
    wide *= 2;
  }
  if (found.length > wanted) { found = found.slice(0, wanted); end = found.at(-1).offset; }
  return { found, end: end > first ? end : null };
}

/** Return the messages from one offset to another; with `once` by one call only, then `whole` is whether these are all of them. */
async function between(path, partition, start, end, once) {
  const chunk = [];
  let ask = { partition, start, limit: LIMIT };
  for (;;) {
    const { messages, next } = await get(`${path}/messages${query(ask)}`);
    chunk.push(...messages.filter((each) => each.offset < end));
    if (!next || !messages.length || messages.at(-1).offset >= end - 1) return { chunk, whole: true };
    if (once) return { chunk, whole: false };
    ask = { after: next, limit: LIMIT };
  }
}

/** Return the newest messages of one partition, or of all (""), and `next`, where each partition goes on; `where` and `about` name the partitions, for people. */
export async function newest(path, partition, next, wanted) {
  const all = partition === "", { config } = all ? await get(path) : { config: {} };
  const known = (await get(`${path}/partitions${query(all ? { first: 0, limit: LIMIT } : { first: partition, limit: 1 })}`)).partitions;
  const filled = known.filter((each) => each.next_offset > each.first_offset), seen = filled.slice(0, PARTITIONS);
  const ends = new Map(next || seen.map((each) => [each.partition, each.next_offset]));
  const places = known.filter((each) => ends.has(each.partition) && ends.get(each.partition) > each.first_offset).map((each) => ({ partition: each.partition, first: each.first_offset, end: ends.get(each.partition) }));
  const parts = await Promise.all(places.map((place) => below(path, place, wanted)));
  const messages = [], taken = parts.map(() => 0), rest = [], head = (i) => parts[i].found[taken[i]];
  while (messages.length < wanted) { // the newest head of all; within a partition the order is that of its offsets
    const open = places.map((_, i) => i).filter(head);
    if (!open.length) break;
    const best = open.reduce((a, b) => (head(b).published_ms > head(a).published_ms ? b : a));
    messages.push(head(best));
    taken[best]++;
  }
  places.forEach((place, i) => {
    const at = head(i) ? head(i).offset + 1 : parts[i].end;
    if (at !== null) rest.push([place.partition, at]);
  });
  const some = filled.length > PARTITIONS || config.partitions > LIMIT, names = seen.map((each) => each.partition).join(", ");
  const where = !all ? `Partition ${partition}` : some ? `What was read (partitions ${names})` : "This topic";
  const about = !all || config.partitions === 1 ? "" : some ? `of partitions ${names} only: choose one to see others` : "of all partitions";
  return { messages, where, next: rest.length ? rest : null, about };
}
