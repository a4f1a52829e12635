// Avro's binary form, read by its schema: https://avro.apache.org/docs/1.12.0/specification/. Bounded, and it only reads.

const ITEMS_MAX = 10_000;
const RECORDS_MAX = 100;

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.at = 0;
    this.items = 0;
  }
  take(count) {
    if (count < 0 || this.at + count > this.bytes.length) throw new Error("it ends too early");
    this.at += count;
    return this.bytes.subarray(this.at - count, this.at);
  }
  long() {
    let value = 0n, shift = 0n;
    for (;;) {
      const byte = this.take(1)[0];
      value |= BigInt(byte & 0x7f) << shift;
      if (!(byte & 0x80)) break;
      shift += 7n;
      if (shift > 63n) throw new Error("a number has too many bytes");
    }
    const signed = (value >> 1n) ^ -(value & 1n);
    return signed >= BigInt(Number.MIN_SAFE_INTEGER) && signed <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(signed) : signed;
  }
  number(size, read) {
    this.take(size);
    return this.view[read](this.at - size, true);
  }
  bytesOf() { return this.take(Number(this.long())); }
  text() { return new TextDecoder().decode(this.bytesOf()); }
  blocks(one) {
    for (;;) {
      let count = Number(this.long());
      if (count === 0) return;
      if (count < 0) { count = -count; this.long(); }
      for (let i = 0; i < count; i++) {
        if (++this.items > ITEMS_MAX) throw new Error(`it has more than ${ITEMS_MAX} items`);
        one();
      }
    }
  }
}

const hexText = (bytes) => "0x" + [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");

function value(reader, schema, names, depth) {
  if (depth > 60) throw new Error("it is nested too deeply");
  if (Array.isArray(schema)) {
    const chosen = schema[Number(reader.long())];
    if (chosen === undefined) throw new Error("a union has no such branch");
    return value(reader, chosen, names, depth + 1);
  }
  const type = typeof schema === "string" ? schema : schema.type;
  if (typeof type === "object") return value(reader, type, names, depth + 1);
  if (typeof schema === "object" && schema.name) {
    names.set(schema.name, schema);
    if (schema.namespace) names.set(`${schema.namespace}.${schema.name}`, schema);
  }
  switch (type) {
    case "null": return null;
    case "boolean": return reader.take(1)[0] === 1;
    case "int": case "long": return reader.long();
    case "float": return reader.number(4, "getFloat32");
    case "double": return reader.number(8, "getFloat64");
    case "bytes": return hexText(reader.bytesOf());
    case "string": return reader.text();
    case "fixed": return hexText(reader.take(schema.size));
    case "enum": return schema.symbols[Number(reader.long())];
    case "array": { const found = []; reader.blocks(() => found.push(value(reader, schema.items, names, depth + 1))); return found; }
    case "map": { const found = {}; reader.blocks(() => { const name = reader.text(); Object.defineProperty(found, name, { value: value(reader, schema.values, names, depth + 1), enumerable: true, configurable: true }); }); return found; }
    case "record": case "error": {
      const found = {};
      for (const field of schema.fields) found[field.name] = value(reader, field.type, names, depth + 1);
      return found;
    }
    default: {
      const known = names.get(type);
      if (!known) throw new Error(`the schema names ${String(type).slice(0, 60)}, which it does not define`);
      return value(reader, known, names, depth + 1);
    }
  }
}

/** Read one datum by its schema; also in single-object encoding, with two marks and a fingerprint before it. */
export function decoded(schema, bytes) {
  const single = bytes[0] === 0xc3 && bytes[1] === 0x01 && bytes.length >= 10;
  return value(new Reader(single ? bytes.subarray(10) : bytes), schema, new Map(), 0);
}

/** Decompress a block. Some writers leave bytes of zlib's checksum behind it, which Java ignores and browsers refuse. */
async function inflated(bytes) {
  for (const spare of [0, 3, 4, 1, 2]) {
    try { return await inflate(bytes.subarray(0, bytes.length - spare)); } catch (fault) { if (!(fault instanceof TypeError)) throw fault; }
  }
  throw new Error("a block is not compressed by deflate");
}

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const parts = [];
  let size = 0;
  for (const reader = stream.getReader(); ;) {
    const { value: part, done } = await reader.read();
    if (done) break;
    size += part.length;
    if (size > 16 << 20) { await reader.cancel(); throw new Error("a block has more than 16 MiB"); }
    parts.push(part);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/** Read the records of an object container file, which contains its schema; null if the bytes are no such file. */
export async function container(bytes) {
  if (bytes.length < 20 || bytes[0] !== 0x4f || bytes[1] !== 0x62 || bytes[2] !== 0x6a || bytes[3] !== 1) return null;
  const reader = new Reader(bytes);
  reader.take(4);
  const meta = {};
  reader.blocks(() => { const name = reader.text(); meta[name] = reader.text(); });
  const mark = reader.take(16), schema = JSON.parse(meta["avro.schema"]), codec = meta["avro.codec"] || "null";
  if (codec !== "null" && codec !== "deflate") throw new Error(`its codec is ${codec}; the console reads null and deflate`);
  const values = [];
  while (reader.at < bytes.length && values.length < RECORDS_MAX) {
    const count = Number(reader.long()), raw = reader.bytesOf();
    const block = new Reader(codec === "deflate" ? await inflated(raw) : raw);
    for (let i = 0; i < count && values.length < RECORDS_MAX; i++) values.push(value(block, schema, new Map(), 0));
    if (reader.take(16).some((byte, i) => byte !== mark[i])) throw new Error("a block does not end where it should");
  }
  return { values, name: schema.name || "values", more: reader.at < bytes.length };
}
