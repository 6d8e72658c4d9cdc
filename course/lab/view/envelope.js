// What a step costs, priced as course/simulator/cost/roofline.py prices it, from its own coefficients (prices.py); and what follows of it
// for one replica on paper.

/** @typedef {Record<string, number | null> & {reduces: [number, number][]}} Prices null: infinite, which JSON has no word for; reduces: ways of all-reducing, seconds and seconds per token */
/** @typedef {{tokens: number, logits: number, requests: number, pairs: number, context: number, prefills: number}} Work */
/** @typedef {{prompt: number, output: number, itl: number}} Asked tokens; itl in seconds */

const DEQUANT_TILE = 256;
/** Requests in the largest batch that is looked at. */
const LARGEST_BATCH = 1024;

/**
 * Seconds of one step: StepTimeModel.price, without pipeline stages, expert parallelism and adapters.
 * @param {Prices} prices @param {Work} work @returns {number}
 */
function price(prices, work) {
  const p = (/** @type {string} */ name) => prices[name] ?? Infinity;
  const { tokens } = work;
  const woken = 1 - p("skip") ** (tokens - 1);
  const products = (p("token_s") * tokens + p("logit_s") * work.logits) * (1 + p("half_tokens") / tokens);
  const weights = p("weights_s") + p("idle_s") * woken;
  const dequant = p("dequant_s") * Math.ceil(tokens / DEQUANT_TILE) + p("idle_dequant_s") * woken;
  const longer = Math.max(products, weights);
  const linear = longer + p("serial") * (products + weights - longer) + dequant;
  const pair = p(work.prefills ? "prompt_pair_s" : "pair_s"); // a step here computes prompts or decodes, not both
  const attention = Math.max(pair * work.pairs, p("context_s") * work.context);
  const allReduce = Math.min(...prices.reduces.map(([latency, token]) => latency + token * tokens));
  const device = linear + attention + allReduce + p("gaps_s") + (work.prefills ? p("prefill_s") : 0);
  const host = p("host_s") + (work.prefills ? p("prefill_host_s") : 0);
  return Math.max(device, host) + p("step_s") + p("request_s") * work.requests;
}

/** A whole prompt in one step, alone. @param {number} n tokens @returns {Work} */
const promptWork = (n) => ({ tokens: n, logits: 1, requests: 1, pairs: (n * (n + 1)) / 2, context: n, prefills: 1 });
/** @param {number} batch requests @param {number} context tokens of each, the new one among them @returns {Work} */
const decodeWork = (batch, context) =>
  ({ tokens: batch, logits: batch, requests: batch, pairs: batch * context, context: batch * context, prefills: 0 });

/**
 * What one replica does with requests of one length, at the largest batch that fits and keeps the mean ITL. While a request decodes, a whole
 * batch of others comes and goes, so it waits for as many prompts as the batch has requests.
 * @param {Prices} prices @param {Asked} asked
 */
function envelope(prices, asked) {
  const context = asked.prompt + asked.output / 2;
  const fits = Math.floor((prices.kv_tokens ?? 0) / (asked.prompt + asked.output));
  const step = (/** @type {number} */ batch) => price(prices, decodeWork(batch, context));
  const prefill = price(prices, promptWork(asked.prompt));
  const gap = (/** @type {number} */ size) => step(size) + (size * prefill) / asked.output;
  let batch = 0;
  for (let size = 1; size <= Math.min(fits, LARGEST_BATCH); size = Math.max(size + 1, Math.floor(size * 1.05))) {
    if (gap(size) <= asked.itl) batch = size;
  }
  const rate = batch ? batch / (asked.output * gap(batch)) : 0;
  return { fits, batch, prefill, one: step(1), step: batch ? step(batch) : NaN, gap: batch ? gap(batch) : NaN, rate };
}

export { envelope, price };
