// What `tsc` has to say yes to, and with `@ts-expect-error` no.
import { connect, Client, type Message, WherryError } from "wherry";

const client: Client = connect({ url: "https://broker.test", key: "wk_", transport: "polling" });
client.addEventListener("state", ({ detail }) => {
  const state: "connecting" | "open" | "waiting" | "closed" = detail.state;
  console.log(state, detail.transport, detail.retryMs?.toFixed());
});
client.addEventListener("error", ({ detail }) => console.log(detail.fatal));
const orders = client.subscribe<{ id: number }>(
  "/queue/orders",
  async (message: Message<{ id: number }>) => {
    message.json().id.toFixed();
    message.nack({ requeue: false });
  },
  { durable: true, id: "page", ack: "handler", bufferMessages: 10 },
);
await orders.ready;
await orders.unsubscribe({ forget: true });
await client.publish("/queue/orders", { id: 1 }, { priority: 3 });
await client.publish("/queue/orders", new Uint8Array(3));
await client.publishJson("/queue/orders", [1]);
interface Order {
  id: number;
}
const order: Order = { id: 1 };
const anything: unknown = order;
for (const body of [order, [order], { size: 1 }, null, 7, false, "text", new ArrayBuffer(1), new Date()]) {
  await client.publish("/queue/orders", body);
}
await client.publish("/queue/orders");
await client.publish("/queue/orders", anything as object);
await client.publishJson("/queue/orders", anything);
await new Client({ url: "https://broker.test", probeMs: 60_000 }).close();
await orders.unsubscribe({ withinMs: 0 });
try {
  await client.opened();
} catch (fault) {
  if (fault instanceof WherryError) console.log(fault.fatal);
}
await client.close({ withinMs: 5 });
// @ts-expect-error it would be {}
await client.publish("/queue/orders", new Blob(["x"]));
// @ts-expect-error it would be {}
await client.publish("/queue/orders", new Map([[1, 2]]));
// @ts-expect-error it would be {}
await client.publish("/queue/orders", Promise.resolve(1));
// @ts-expect-error there is no such transport
connect({ transport: "pigeon" });
// @ts-expect-error a handler is missing
client.subscribe("/queue/orders");
