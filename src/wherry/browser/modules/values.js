/** Text and bytes, unique ids, and what a value is. */

export const encoder = new TextEncoder();
export const decoder = new TextDecoder();

export function uniqueId() {
  return Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("-");
}

/** What a value is, in one word, as in Map. */
export function tagOf(value) {
  return Object.prototype.toString.call(value).slice(8, -1);
}
