/** Waits with an end. */

export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

/** Wait until a promise is settled, or the time is over. */
export async function within(promise, ms) {
  let timer;
  await Promise.race([promise, new Promise((done) => (timer = setTimeout(done, ms)))]).catch(() => undefined);
  clearTimeout(timer);
}
