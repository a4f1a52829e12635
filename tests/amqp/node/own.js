// Scenarios in the words that people use in node: options by name, promises, and the callback API.
"use strict";

const assert = require("assert");
const amqp = require("amqplib");
const callbacks = require("amqplib/callback_api");

const place = ({ host: hostname, port, user: username, password, vhost }) => ({
  hostname,
  port,
  username,
  password,
  vhost,
});

/** So many messages of a queue, without ack. */
function taken(channel, queue, count) {
  return new Promise((resolve, reject) => {
    const found = [];
    const late = setTimeout(() => reject(new Error(`${found.length} messages of ${count} came`)), 10000);
    channel.consume(
      queue,
      (message) => {
        found.push(message);
        if (found.length === count) {
          clearTimeout(late);
          resolve(found);
        }
      },
      { noAck: true },
    );
  });
}

async function connected(address, work) {
  const connection = await amqp.connect(place(address));
  try {
    await work(connection);
  } finally {
    await connection.close();
  }
}

module.exports = {
  options_by_name: (address, name) =>
    connected(address, async (connection) => {
      const channel = await connection.createConfirmChannel();
      const dead = (await channel.assertQueue("", { exclusive: true })).queue;
      const { queue } = await channel.assertQueue(name, {
        durable: true,
        autoDelete: true,
        messageTtl: 100,
        expires: 60000,
        maxLength: 5,
        maxPriority: 9,
        deadLetterExchange: "",
        deadLetterRoutingKey: dead,
      });
      channel.sendToQueue(queue, Buffer.from("m"), { persistent: true, priority: 5 });
      await channel.waitForConfirms();
      const [message] = await taken(channel, dead, 1);
      assert.strictEqual(message.properties.headers["x-death"][0].reason, "expired");
      assert.strictEqual(message.properties.deliveryMode, 2);
    }),

  copies: (address, name) =>
    connected(address, async (connection) => {
      const channel = await connection.createConfirmChannel();
      const queues = [];
      for (const end of ["a", "b", "c"]) {
        queues.push((await channel.assertQueue(`${name}-${end}`, { exclusive: true })).queue);
      }
      channel.publish("", queues[0], Buffer.from("m"), { CC: queues[1], BCC: [queues[2]] });
      await channel.waitForConfirms();
      for (const queue of queues) {
        const message = await channel.get(queue, { noAck: true });
        assert.strictEqual(message.content.toString(), "m");
        assert.strictEqual(message.properties.headers.BCC, undefined);
      }
    }),

  everything_at_once: (address) =>
    connected(address, async (connection) => {
      const channel = await connection.createChannel();
      const { queue } = await channel.assertQueue("", { exclusive: true });
      for (let number = 0; number < 10; number += 1) channel.sendToQueue(queue, Buffer.from([number]));
      const tags = [];
      for (let turn = 0; turn < 10; turn += 1) {
        const message = await channel.get(queue);
        if (message) tags.push(message.fields.deliveryTag);
      }
      channel.nackAll(true);
      const again = await channel.get(queue);
      assert.ok(again.fields.redelivered);
      channel.ackAll();
      assert.strictEqual((await channel.checkQueue(queue)).messageCount, 9);
    }),

  a_buffer_that_is_full_drains: (address) =>
    connected(address, async (connection) => {
      const channel = await connection.createConfirmChannel();
      const { queue } = await channel.assertQueue("", { exclusive: true });
      const body = Buffer.alloc(64 * 1024, 7);
      for (let number = 0; number < 200; number += 1) {
        if (!channel.publish("", queue, body)) await new Promise((resolve) => channel.once("drain", resolve));
      }
      await channel.waitForConfirms();
      assert.strictEqual((await channel.checkQueue(queue)).messageCount, 200);
    }),

  a_typed_header: (address) =>
    connected(address, async (connection) => {
      const channel = await connection.createChannel();
      const { queue } = await channel.assertQueue("", { exclusive: true });
      const headers = {
        at: { "!": "timestamp", value: 1700000000 },
        byte: { "!": "byte", value: 7 },
        float: { "!": "float", value: 0.5 },
        int64: { "!": "int64", value: 12 },
        decimal: { "!": "decimal", value: { digits: 1234, places: 2 } },
        bytes: Buffer.from([0, 255]),
      };
      channel.sendToQueue(queue, Buffer.from("m"), { headers });
      const [message] = await taken(channel, queue, 1);
      const found = message.properties.headers;
      assert.deepStrictEqual(found.at, headers.at);
      assert.deepStrictEqual([found.byte, found.float, found.int64], [7, 0.5, 12]);
      assert.deepStrictEqual(found.decimal, headers.decimal);
      assert.deepStrictEqual(Buffer.from(found.bytes), headers.bytes);
    }),

  an_error_is_an_event: (address, name) =>
    connected(address, async (connection) => {
      const channel = await connection.createChannel();
      const failed = new Promise((resolve) => channel.once("error", resolve));
      await assert.rejects(channel.checkQueue(name), /404/);
      assert.strictEqual((await failed).code, 404);
      assert.ok(await (await connection.createChannel()).assertQueue("", { exclusive: true }));
    }),

  with_callbacks: (address) =>
    new Promise((resolve, reject) => {
      const done = (error) => error && reject(error);
      callbacks.connect(place(address), (refused, connection) => {
        if (refused) return reject(refused);
        return connection.createChannel((broken, channel) => {
          done(broken);
          channel.assertQueue("", { exclusive: true }, (wrong, { queue }) => {
            done(wrong);
            channel.consume(queue, (message) => {
              channel.ack(message);
              connection.close(() => resolve());
            });
            channel.sendToQueue(queue, Buffer.from("m"));
          });
        });
      });
    }),
};
