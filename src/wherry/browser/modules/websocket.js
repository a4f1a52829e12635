/**
 * STOMP over a WebSocket. A transport has send(bytes) and close(); it calls on.data(bytes) and, once, on.lost(error).
 */

import { WherryError } from "./errors.js";
import { encoder } from "./values.js";

/** Open a WebSocket; rejects if none is open within `patienceMs`. */
export function openSocket(Socket, url, on, patienceMs) {
  if (!Socket) throw new WherryError("there is no WebSocket here");
  return new Promise((done, failed) => {
    const socket = new Socket(url.replace(/^http/, "ws") + "/ws", ["v12.stomp"]);
    socket.binaryType = "arraybuffer";
    let isOpen = false;
    let isOver = false;
    const over = (why) => {
      if (isOver) return;
      isOver = true;
      clearTimeout(timer);
      if (isOpen) on.lost(new WherryError(why));
      else failed(new WherryError(why));
    };
    const timer = setTimeout(() => {
      over(`no WebSocket within ${patienceMs} ms`);
      socket.close();
    }, patienceMs);
    socket.onopen = () => {
      clearTimeout(timer);
      if (isOver) return;
      isOpen = true;
      done({
        name: "websocket",
        send: (bytes) => socket.readyState === 1 && socket.send(bytes),
        close: () => {
          isOver = true;
          socket.close();
        },
      });
    };
    socket.onmessage = ({ data }) => {
      if (!isOver) on.data(typeof data === "string" ? encoder.encode(data) : new Uint8Array(data));
    };
    socket.onerror = () => over("the WebSocket failed");
    socket.onclose = ({ code, reason }) => over(`the WebSocket closed (${code}${reason ? `, ${reason}` : ""})`);
  });
}
