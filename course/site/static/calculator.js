// The calculator: steps priced as course/simulator/cost/roofline.py prices them, from its own coefficients (prices.js).
"use strict";

(() => {
  /**
   * @typedef {Record<string, number | null>} Prices
   * @typedef {{tokens: number, logits: number, requests: number, pairs: number, context: number, prefills: number}} Work
   * @typedef {{models: string[], cards: string[], gpus: number[], weights: string[], kv: string[], prices: Record<string, Prices>}} Data
   */
  const DEQUANT_TILE = 256;
  const data = /** @type {Data} */ (/** @type {any} */ (window).minillmPrices);

  /** Seconds of one step: StepTimeModel.price, without pipeline stages, expert parallelism and adapters.
   * @param {Prices} prices @param {Work} work @returns {number} */
  function price(prices, work) {
    const p = (/** @type {string} */ name) => prices[name] ?? Infinity; // an infinity has no JSON
    const { tokens } = work;
    const woken = 1 - p("skip") ** (tokens - 1);
    const products = (p("token_s") * tokens + p("logit_s") * work.logits) * (1 + p("half_tokens") / tokens);
    const weights = p("weights_s") + p("idle_s") * woken;
    const dequant = p("dequant_s") * Math.ceil(tokens / DEQUANT_TILE) + p("idle_dequant_s") * woken;
    const longer = Math.max(products, weights);
    const linear = longer + p("serial") * (products + weights - longer) + dequant;
    const pair = p(work.prefills ? "prompt_pair_s" : "pair_s"); // a step here computes prompts or decodes, not both
    const attention = Math.max(pair * work.pairs, p("context_s") * work.context);
    const allReduce = Math.min(p("at_once_s") + p("at_once_token_s") * tokens, p("hops_s") + p("hops_token_s") * tokens);
    const device = linear + attention + allReduce + p("gaps_s") + (work.prefills ? p("prefill_s") : 0);
    const host = p("host_s") + (work.prefills ? p("prefill_host_s") : 0);
    return Math.max(device, host) + p("step_s") + p("request_s") * work.requests;
  }

  /** A whole prompt in one step, alone. @param {number} n tokens @returns {Work} */
  const promptWork = (n) => ({ tokens: n, logits: 1, requests: 1, pairs: (n * (n + 1)) / 2, context: n, prefills: 1 });
  /** @param {number} batch requests @param {number} context tokens of each, the new one among them @returns {Work} */
  const decodeWork = (batch, context) =>
    ({ tokens: batch, logits: batch, requests: batch, pairs: batch * context, context: batch * context, prefills: 0 });

  /** What one replica does with requests of one length, at the largest batch that fits and keeps the mean ITL. While a request
   * decodes, a whole batch of others comes and goes, so it waits for as many prompts as the batch has requests.
   * @param {Prices} prices @param {{prompt: number, output: number, itl: number}} asked itl in seconds */
  function envelope(prices, asked) {
    const context = asked.prompt + asked.output / 2;
    const fits = Math.floor((prices.kv_tokens ?? 0) / (asked.prompt + asked.output));
    const step = (/** @type {number} */ batch) => price(prices, decodeWork(batch, context));
    const prefill = price(prices, promptWork(asked.prompt));
    const gap = (/** @type {number} */ size) => step(size) + (size * prefill) / asked.output;
    let batch = 0;
    for (let size = 1; size <= Math.min(fits, 1024); size = Math.max(size + 1, Math.floor(size * 1.05))) {
      if (gap(size) <= asked.itl) batch = size;
    }
    const rate = batch ? batch / (asked.output * gap(batch)) : 0;
    return { fits, batch, prefill, one: step(1), step: batch ? step(batch) : NaN, gap: batch ? gap(batch) : NaN, rate };
  }

  Object.assign(window, { minillmCalculator: { price, envelope } });

  const form = /** @type {HTMLFormElement | null} */ (document.getElementById("calculator"));
  if (!form) return;
  const found = /** @type {HTMLElement} */ (document.getElementById("found"));
  const said = /** @type {HTMLElement} */ (document.getElementById("said"));
  const field = (/** @type {string} */ name) => /** @type {HTMLInputElement} */ (form.elements.namedItem(name));
  /** @type {[string, (string | number)[], string][]} */
  const menus = [
    ["model", data.models, "llama-3.1-70b"], ["card", data.cards, "h100-sxm"], ["gpus", data.gpus, "4"],
    ["weights", data.weights, "bfloat16"], ["kv", data.kv, "bfloat16"],
  ];
  for (const [name, options, start] of menus) {
    for (const option of options) /** @type {HTMLSelectElement} */ (/** @type {unknown} */ (field(name))).add(new Option(String(option)));
    field(name).value = start;
  }

  const written = (/** @type {number} */ value, /** @type {string} */ unit) => `${Number(value.toPrecision(3)).toLocaleString("en")} ${unit}`;
  const time = (/** @type {number} */ s) => (s < 1 ? written(s * 1e3, "ms") : written(s, "s"));
  const size = (/** @type {number} */ bytes) => (bytes >= 1e9 ? written(bytes / 1e9, "GB") : bytes >= 1e6 ? written(bytes / 1e6, "MB") : written(bytes / 1e3, "kB"));

  function answer() {
    const [model, card, gpus, weights, kv] = menus.map(([name]) => field(name).value);
    const prices = data.prices[`${model} ${card} ${gpus} ${weights} ${kv}`];
    if (!prices) {
      said.textContent = found.textContent = `${model} in ${weights} doesn't fit ${gpus} x ${card}, or that card has no such arithmetic. Take more GPUs, or fewer bits.`;
      return;
    }
    const [prompt, output, qps, ttft, itl] = ["prompt", "output", "qps", "ttft", "itl"].map((name) => Number(field(name).value));
    if (![prompt, output].every((n) => n >= 1) || !(qps >= 0)) {
      said.textContent = found.textContent = "Prompt and output are at least one token, and the rate isn't negative.";
      return;
    }
    const got = envelope(prices, { prompt, output, itl: itl / 1e3 });
    const request = (prices.kv_bytes ?? 0) * (prompt + output);
    const replicas = got.rate ? Math.ceil(qps / got.rate) : NaN;
    /** @type {[string, string, string][]} */
    const rows = [
      ["Weights", size(prices.weight_bytes ?? 0), `on ${gpus} GPUs together`],
      ["KV of one request", size(request), `${size(prices.kv_bytes ?? 0)} a token`],
      ["Requests that fit", String(got.fits), `${(prices.kv_tokens ?? 0).toLocaleString("en")} tokens of KV cache`],
      ["TTFT, nothing queued", time(got.prefill), got.prefill > ttft ? "over your SLO before anything queues" : "the whole prompt in one step"],
      ["ITL of one request", time(got.one), "batch 1"],
      ["Largest batch in your ITL", got.batch ? String(got.batch) : "none", got.batch ? `a step takes ${time(got.step)}, a token ${time(got.gap)} with the others' prompts` : "a single request is slower than your SLO"],
      ["Knee of one replica", `${written(got.rate, "requests/s")}`, `${written(got.rate * output, "output tokens/s")}; from here on a queue grows`],
      ["Replicas", Number.isFinite(replicas) ? String(replicas) : "–", Number.isFinite(replicas) ? `${replicas * Number(gpus)} GPUs; at two thirds load ${Math.ceil((qps * 1.5) / got.rate)} replicas` : "no batch keeps the ITL"],
    ];
    const list = document.createElement("dl");
    list.className = "answers";
    for (const [name, value, why] of rows) {
      const box = document.createElement("div");
      for (const [tag, words, look] of [["dt", name, ""], ["dd", value, ""], ["dd", why, "why"]]) {
        const element = document.createElement(tag);
        element.textContent = words;
        element.className = look;
        box.append(element);
      }
      list.append(box);
    }
    found.replaceChildren(list);
    said.textContent = `Largest batch ${rows[5][1]}, ${rows[7][1]} replicas`;
  }

  form.addEventListener("input", answer);
  form.addEventListener("submit", (event) => event.preventDefault());
  answer();
})();
