// The forms that create or change a topic or a subscription.

import { patch, put } from "./api.js";
import { h } from "./dom.js";
import { count, seg } from "./format.js";
import { attempt, button, dialog, field, input, select, toast } from "./parts.js";

/** Read a whole number: 65,535 and 65535 are the same. Other text is sent to the broker as it is, whose error names the field. */
const whole = (control) => {
  const text = control.value.replace(/[,\s]/g, "");
  return text === "" ? null : /^-?\d+$/.test(text) ? Number(text) : control.value;
};
const number = (name, value, props) => input(name, { inputMode: "numeric", ...props, value: value === undefined || value === null ? "" : count(value) });

export function topicForm(config, done) {
  const is = config || { order: "fifo", partitions: 1, persistent: true, overflow: "refuse", keep: "settled", expired: "drop", mesh: "safe", payload_bytes_max: 65_535, dead_messages_max: 1_000_000 };
  const name = input("name", { value: is.name || "", required: true, disabled: Boolean(config), autofocus: !config, placeholder: "orders.eu" });
  const order = select("order", [["fifo", "fifo: first in, first out"], ["priority", "priority: smallest number first"], ["timeline", "timeline: by due time"]], is.order, { disabled: Boolean(config) });
  const mesh = select("mesh", [["safe", "safe: on this node alone"], ["flow", "flow: passed on to the peers of this node"]], is.mesh, { disabled: Boolean(config) });
  const partitions = number("partitions", is.partitions, { required: true });
  const messages = number("messages_max", is.messages_max, { placeholder: "no bound" });
  const size = number("bytes_max", is.bytes_max, { placeholder: "no bound" });
  const overflow = select("overflow", ["refuse", "dead-letter", "drop-oldest", "dead-letter-oldest"], is.overflow);
  const keep = select("keep", [["settled", "until settled (a queue)"], ["age", "by age (a stream)"], ["bytes", "by size (a stream)"]], is.keep);
  const keepMs = number("keep_ms", is.keep_ms), keepBytes = number("keep_bytes", is.keep_bytes);
  const payload = number("payload_bytes_max", is.payload_bytes_max);
  const dead = number("dead_messages_max", is.dead_messages_max);
  const expired = select("expired", ["drop", "dead-letter"], is.expired);
  const persistent = h("input", { type: "checkbox", checked: is.persistent });
  const age = field("Keep for, milliseconds", keepMs), room = field("Keep, bytes a partition", keepBytes);
  const update = () => { age.hidden = keep.value !== "age"; room.hidden = keep.value !== "bytes"; };
  keep.addEventListener("change", update);
  update();
  const go = h("button", { type: "submit", class: "primary" }, config ? "Save" : "Create");
  dialog(config ? `Change ${config.name}` : "New topic", (close) => h("form", { onsubmit: (event) => {
    event.preventDefault();
    const body = {
      partitions: whole(partitions), messages_max: whole(messages), bytes_max: whole(size), overflow: overflow.value, keep: keep.value,
      keep_ms: keep.value === "age" ? whole(keepMs) : null, keep_bytes: keep.value === "bytes" ? whole(keepBytes) : null,
      payload_bytes_max: whole(payload), dead_messages_max: whole(dead), expired: expired.value, persistent: persistent.checked,
    };
    attempt(go, async () => {
      const path = `/v1/topics/${seg(name.value)}`;
      await (config ? patch(path, body) : put(path, { order: order.value, mesh: mesh.value, ...body }));
      toast(config ? `Changed ${name.value}.` : `Created ${name.value}.`);
      close();
      done?.(name.value);
    });
  } },
    h("div", { class: "form" },
      h("div", { class: "all" }, field("Name", name)), field("Order", order), field("Partitions", partitions, config ? "Partitions can be added later, not removed." : null),
      field("Mesh", mesh),
      field("Keep messages", keep), age, room,
      field("Messages at most", messages), field("Bytes at most", size), field("What does not fit", overflow),
      field("Largest payload, bytes", payload), field("Dead letters at most", dead), field("What expires", expired),
      h("div", { class: "all" }, field("Persistent: on disk before it is confirmed", persistent))),
    h("footer", {}, button("Cancel", close), go)), { wide: true });
}

export function subscriptionForm(topic, config, done) {
  const is = config || { durable: true, acks: true, lease_ms: 30_000, retry: { attempts: 16, first_ms: 1000 }, assignment: "balanced", start: "earliest" };
  const name = input("name", { value: is.name || "", required: true, disabled: Boolean(config), placeholder: "workers" });
  const start = select("start", ["earliest", "latest"], is.start, { disabled: Boolean(config) });
  const lease = number("lease_ms", is.lease_ms, { required: true });
  const attempts = number("attempts", is.retry.attempts, { placeholder: "for ever" });
  const first = number("first_ms", is.retry.first_ms, { required: true });
  const messages = number("buffer_messages", is.buffer_messages, { placeholder: "no bound" });
  const size = number("buffer_bytes", is.buffer_bytes, { placeholder: "no bound" });
  const assignment = select("assignment", ["balanced", "ordered", "shared", "exclusive"], is.assignment, { disabled: Boolean(config) });
  const keyed = h("input", { type: "checkbox", checked: is.key_order, disabled: Boolean(config) });
  const go = h("button", { type: "submit", class: "primary" }, config ? "Save" : "Create");
  dialog(config ? `Change ${config.name}` : `New subscription of ${topic}`, (close) => h("form", { onsubmit: (event) => {
    event.preventDefault();
    const body = { lease_ms: whole(lease), retry: { ...is.retry, attempts: whole(attempts), first_ms: whole(first) }, buffer_messages: whole(messages), buffer_bytes: whole(size) };
    attempt(go, async () => {
      const path = `/v1/topics/${seg(topic)}/subscriptions/${seg(name.value)}`;
      await (config ? patch(path, body) : put(path, { ...body, start: start.value, assignment: assignment.value, key_order: keyed.checked }));
      toast(config ? `Changed ${name.value}.` : `Created ${name.value}.`);
      close();
      done?.();
    });
  } },
    h("div", { class: "form" }, h("div", { class: "all" }, field("Name", name)), field("Begins at", start), field("Partitions to consumers", assignment),
      field("Lease, milliseconds", lease), field("Attempts", attempts, "Then the message is a dead letter."), field("First retry after, milliseconds", first),
      field("Cut off beyond, messages", messages), field("Cut off beyond, bytes", size),
      h("div", { class: "all" }, field("Messages of a key in order", keyed))),
    h("footer", {}, button("Cancel", close), go)), { wide: true });
}
