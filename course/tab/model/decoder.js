// decoder.wasm with weights in its memory, for the Python beside it (runner.py). Loaded when a reader asks for it.
/** @typedef {{module: string, weights: string, tokenizer: string, bytes: number}} ModelFiles addresses beside this script, and how large all of it is */
/**
 * @typedef {object} Exports what decoder.cpp offers; addresses are bytes from the beginning of its memory
 * @property {WebAssembly.Memory} memory
 * @property {WebAssembly.Global} __heap_base the first byte that is free
 * @property {(file: number, fileBytes: number, blocks: number, maxTokens: number, maxRows: number, maxContext: number) => number} start
 * @property {(batch: number) => number} step
 * @property {(row: number) => number} likeliest
 * @property {(row: number, temperature: number, uniform: number) => number} draw
 */

/** Where files stay that are too large to be fetched again with each build of the site. */
const KEPT = "minillm-weights";
const PAGE = 65536, ALIGNED = 64;

/** @param {number} address */
const aligned = (address) => Math.ceil(address / ALIGNED) * ALIGNED;

/**
 * A file, a part at a time: from what is kept, or from the network, and kept from then on.
 * @param {URL} address @param {(part: Uint8Array) => void} take @param {() => BlobPart} whole all that was taken
 */
async function read(address, take, whole) {
  const kept = await caches.open(KEPT).catch(() => null); // a private window may have none
  const found = await kept?.match(address), response = found ?? (await fetch(address));
  if (!response.ok || !response.body) throw new Error(`${address.pathname}: ${response.status}`);
  for (let reader = response.body.getReader(), part = await reader.read(); !part.done; part = await reader.read()) take(part.value);
  if (!found) await kept?.put(address, new Response(new Blob([whole()]))).catch(() => {}); // no room: it's here all the same
}

/** Lets go of files of an earlier site. @param {URL[]} present */
async function forgetOthers(present) {
  const kept = await caches.open(KEPT).catch(() => null);
  for (const request of (await kept?.keys()) ?? []) if (!present.some(({ href }) => href === request.url)) await kept?.delete(request);
}

/**
 * @param {ModelFiles} files @param {(done: number) => void} tell how many bytes have come
 * @returns {Promise<Record<string, any>>} the module that Python imports as `decoder`
 */
async function loadDecoder(files, tell) {
  /** @param {string} name */
  const beside = (name) => new URL(name, import.meta.url);
  const { instance } = await WebAssembly.instantiateStreaming(fetch(beside(files.module)), { env: { cos: Math.cos, sin: Math.sin } });
  const { memory, __heap_base, ...functions } = /** @type {Exports} */ (/** @type {unknown} */ (instance.exports));
  const file = aligned(__heap_base.value);
  let end = file, batchAt = 0, done = 0;

  /** @param {number} address */
  function reach(address) {
    const missing = Math.ceil((address - memory.buffer.byteLength) / PAGE);
    if (missing > 0) memory.grow(missing);
  }

  await read(beside(files.weights), (part) => {
    reach(end + part.length);
    new Uint8Array(memory.buffer).set(part, end);
    end += part.length;
    tell((done += part.length));
  }, () => new Uint8Array(memory.buffer, file, end - file));
  const decoder = new TextDecoder();
  let tokenizer = "";
  await read(beside(files.tokenizer), (part) => {
    tokenizer += decoder.decode(part, { stream: true });
    tell((done += part.length));
  }, () => tokenizer);
  await forgetOthers([beside(files.weights), beside(files.tokenizer)]);

  return {
    tokenizer,
    /** @param {number} blocks @param {number} maxTokens @param {number} maxRows @param {number} maxContext */
    start(blocks, maxTokens, maxRows, maxContext) {
      reach(end + PAGE); // what it writes down of the layers lies behind the weights
      batchAt = aligned(functions.start(file, end - file, blocks, maxTokens, maxRows, maxContext));
      reach(batchAt);
    },
    /** @param {Int32Array} batch */
    step(batch) {
      reach(batchAt + batch.byteLength);
      new Int32Array(memory.buffer, batchAt, batch.length).set(batch);
      functions.step(batchAt);
    },
    likeliest: functions.likeliest,
    draw: functions.draw,
    bytes: () => memory.buffer.byteLength,
  };
}

export { loadDecoder };
