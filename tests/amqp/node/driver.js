// amqplib as a servant: one JSON line on stdin for each call, one on stdout for each answer and for each event.
"use strict";

const amqp = require("amqplib");
const readline = require("readline");

const own = require("./own.js");

const connections = new Map();
const channels = new Map();

const printLine = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** What the server closed; amqplib gives the code to some errors, and to the others only their sentence. */
function refusal(error) {
  if (!error) return null;
  const code = error.code > 0 ? error.code : Number((/: (\d{3}) \(/.exec(error.message) || [])[1] || 0);
  if (!code) return null;
  return { scope: /^(Channel|Operation)/.test(error.message) ? "channel" : "connection", code, text: error.message };
}

/** A field table without the wrapping of timestamps and the like. */
function plain(value) {
  if (Buffer.isBuffer(value)) return { $bytes: value.toString("base64") };
  if (Array.isArray(value)) return value.map(plain);
  if (value === null || typeof value !== "object") return value;
  if ("!" in value) return plain(value.value);
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, plain(each)]));
}

function message(found) {
  return { fields: found.fields, properties: plain(found.properties), body: found.content.toString("base64") };
}

const open = (id) => channels.get(id).channel;
const delivery = (tag) => ({ fields: { deliveryTag: tag } });

const calls = {
  async connect({ id, address }) {
    const { host: hostname, port, user: username, password, vhost, heartbeat_s: heartbeat } = address;
    const made = await amqp.connect({ hostname, port, username, password, vhost, heartbeat }, { timeout: 10000 });
    const entry = { connection: made, why: null, open: true };
    connections.set(id, entry);
    made.on("error", (error) => (entry.why = error));
    made.on("close", () => (entry.open = false));
    const { serverProperties, channelMax, frameMax, heartbeat: agreed } = made.connection;
    return { properties: plain(serverProperties), channelMax, frameMax, heartbeat: agreed };
  },

  async disconnect({ id }) {
    const entry = connections.get(id);
    if (entry.open) await entry.connection.close();
    entry.open = false;
  },

  async isOpen({ id }) {
    return connections.get(id).open;
  },

  async updateSecret({ id, secret, reason }) {
    await connections.get(id).connection.updateSecret(Buffer.from(secret), reason);
  },

  async channel({ id, on, confirms }) {
    const { connection } = connections.get(on);
    const channel = confirms ? await connection.createConfirmChannel() : await connection.createChannel();
    const entry = { channel, on, confirms, why: null };
    channels.set(id, entry);
    channel.on("error", (error) => {
      entry.why = error;
      printLine({ event: "closed", channel: id, refusal: refusal(error) });
    });
    channel.on("return", (found) => printLine({ event: "returned", channel: id, message: message(found) }));
  },

  close: ({ id }) => open(id).close(),
  declareQueue: ({ id, name, options }) => open(id).assertQueue(name, options),
  findQueue: ({ id, name }) => open(id).checkQueue(name),
  deleteQueue: ({ id, name, options }) => open(id).deleteQueue(name, options),
  purge: ({ id, name }) => open(id).purgeQueue(name),
  bind: ({ id, names, args }) => open(id).bindQueue(...names, args),
  unbind: ({ id, names, args }) => open(id).unbindQueue(...names, args),
  declareExchange: ({ id, name, kind, options }) => open(id).assertExchange(name, kind, options),
  findExchange: ({ id, name }) => open(id).checkExchange(name),
  deleteExchange: ({ id, name, options }) => open(id).deleteExchange(name, options),
  bindExchange: ({ id, names, args }) => open(id).bindExchange(...names, args),
  unbindExchange: ({ id, names, args }) => open(id).unbindExchange(...names, args),

  publish({ id, exchange, key, bodies, options }) {
    const { channel, confirms } = channels.get(id);
    const sent = bodies.map(
      (body) =>
        new Promise((resolve) => {
          const content = Buffer.from(body, "base64");
          if (confirms) channel.publish(exchange, key, content, options, (error) => resolve(!error));
          else resolve(channel.publish(exchange, key, content, options) || true);
        }),
    );
    return Promise.all(sent);
  },

  qos: ({ id, count, wholeChannel }) => open(id).prefetch(count, wholeChannel),

  async consume({ id, queue, options }) {
    let tag = null;
    const arrive = (found) => {
      if (found === null) printLine({ event: "cancelled", channel: id, tag });
      else printLine({ event: "arrived", channel: id, message: message(found) });
    };
    tag = (await open(id).consume(queue, arrive, options)).consumerTag;
    return tag;
  },

  cancel: ({ id, tag }) => open(id).cancel(tag),

  async get({ id, queue, options }) {
    const found = await open(id).get(queue, options);
    return found ? message(found) : null;
  },

  ack: ({ id, tag, multiple }) => open(id).ack(delivery(tag), multiple),
  nack: ({ id, tag, multiple, requeue }) => open(id).nack(delivery(tag), multiple, requeue),
  reject: ({ id, tag, requeue }) => open(id).reject(delivery(tag), requeue),
  recover: ({ id }) => open(id).recover(),

  own: ({ scenario, address, name }) => own[scenario](address, name),
};

/** The reason why a call failed. That of the channel or the connection may come a moment after the failure. */
async function reason(error, { id }) {
  for (let turn = 0; turn < 200; turn += 1) {
    const entry = channels.get(id);
    const below = entry && connections.get(entry.on);
    const found = refusal(error) || refusal(entry && entry.why) || refusal(below && below.why);
    if (found || !entry) return found;
    await pause(10);
  }
  return null;
}

async function answer({ call, number, ...rest }) {
  try {
    const result = await calls[call](rest);
    printLine({ number, result: result === undefined ? null : result });
  } catch (error) {
    printLine({ number, refusal: await reason(error, rest), error: String(error && error.stack) });
  }
}

const orders = readline.createInterface({ input: process.stdin });
orders.on("line", (line) => void answer(JSON.parse(line)));
orders.on("close", () => process.exit()); // the test has ended
