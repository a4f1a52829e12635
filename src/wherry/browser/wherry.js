/**
 * Wherry in a page: publish, subscribe, ack, over STOMP 1.2. No dependencies, no build.
 *
 *   import { connect } from "/wherry.js";
 *   const wherry = connect({ key });
 *   wherry.subscribe("/topic/prices", (message) => show(message.json()));
 *   await wherry.publish("/queue/orders", { id: 7 });
 *
 * It uses a WebSocket where one opens, else it polls. It reconnects by itself, subscribes again, and sends again what
 * was not confirmed. Every buffer has a bound.
 */

export { Client, connect } from "./modules/client.js";
export { WherryError } from "./modules/errors.js";
export { Message } from "./modules/messages.js";
