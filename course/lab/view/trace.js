// What happened in a run, and what of it was true at any moment. Seconds count from the run's beginning.

/**
 * One request, in the order in which the traffic lists them.
 * @typedef {object} Row
 * @property {number} due when the traffic wanted to send it
 * @property {number | null} sent when the client did
 * @property {string} refused why the engine refused it; "" = it didn't
 * @property {string} asked its prompt, shortened
 * @property {number} prompt prompt tokens
 * @property {number} cached of them, found in the prefix cache
 * @property {number} most output tokens it may have
 * @property {number[]} borders those of its five phases that are known: six once it has ended
 * @property {number[]} tokens when each delivery came
 * @property {string[]} texts what came with each
 * @property {string} reason why it ended; "" = it hasn't
 */
/**
 * One step of the engine.
 * @typedef {object} Step
 * @property {number} start
 * @property {number} end
 * @property {number} running requests that hold a slot
 * @property {number} waiting
 * @property {[number, number, number][]} shares row, tokens, 1 if they are prompt tokens
 * @property {number[]} preempted rows that lost their KV blocks
 */
/** @typedef {[number, number][]} Owners of the KV blocks in order: owner (a row; -1 free, -2 free but cached, -3 shared), how many */
/**
 * @typedef {object} Trace
 * @property {string} traffic
 * @property {string} about
 * @property {string} on what it ran on, where that isn't this machine
 * @property {string[]} inferred phases whose borders were not seen
 * @property {Record<string, unknown>} config
 * @property {number} slots
 * @property {number} budget tokens a step may compute
 * @property {number} blocks KV blocks; 0 = not seen
 * @property {"running" | "done" | "stopped"} state
 * @property {number} end the last moment that is known
 * @property {Row[]} rows
 * @property {Step[]} steps
 * @property {[number, Owners][]} kv who held the KV blocks, from a moment on
 */
/**
 * What has been added to a trace since the last time.
 * @typedef {object} More
 * @property {Trace["state"]} state
 * @property {number} end
 * @property {(Partial<Row> & {i: number})[]} rows only what changed; tokens and texts are those that came
 * @property {Step[]} steps
 * @property {[number, Owners][]} kv
 */
/** @typedef {Record<string, number | null>} Figures seconds; tokens a second */

const PHASES = ["queue", "prefill", "first_token", "decode", "stream"];
/** @type {Record<string, string>} */
const PHASE_NAMES = { queue: "queue", prefill: "prefill", first_token: "first token", decode: "decode", stream: "stream" };
const FREE = -1, CACHED = -2, SHARED = -3;

/**
 * Adds to a trace what happened since.
 * @param {Trace} trace @param {More} more
 */
function extend(trace, more) {
  for (const { i, tokens = [], texts = [], ...known } of more.rows) {
    const row = trace.rows[i];
    Object.assign(row, known);
    row.tokens.push(...tokens);
    row.texts.push(...texts);
  }
  trace.steps.push(...more.steps);
  trace.kv.push(...more.kv);
  trace.state = more.state;
  trace.end = more.end;
}

/** The q-th percentile by linear interpolation. @param {number[]} values @param {number} q 0 to 100 */
function percentile(values, q) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const place = (q / 100) * (sorted.length - 1), low = Math.floor(place);
  return sorted[low] + (place - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
}

/**
 * The borders of a request's phases as of a moment: what lies ahead is put there. None before it arrived.
 * @param {Row} row @param {number} time
 * @returns {number[] | null}
 */
function bordersAt(row, time) {
  if (!row.borders.length || row.borders[0] > time) return null;
  return PHASES.concat("").map((_, i) => Math.min(row.borders[i] ?? time, time));
}

/** Which phase a request is in; "" before and after. @param {Row} row @param {number} time */
function phaseAt(row, time) {
  if (!row.borders.length || time < row.borders[0]) return "";
  return PHASES.find((_, i) => time < (row.borders[i + 1] ?? Infinity)) ?? "";
}

/** How many of a sorted list lie at or before a moment. @param {number[]} sorted @param {number} time */
function countUntil(sorted, time) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * Mean seconds per phase over the requests that have arrived: they sum to the mean E2E.
 * @param {Trace} trace @param {number} time
 * @returns {Record<string, number>}
 */
function meanPhases(trace, time) {
  const seen = trace.rows.map((row) => bordersAt(row, time)).filter((borders) => borders !== null);
  return Object.fromEntries(PHASES.map((phase, i) =>
    [phase, seen.reduce((sum, borders) => sum + borders[i + 1] - borders[i], 0) / Math.max(seen.length, 1)]));
}

/**
 * What users have felt by a moment, seconds: TTFT of every request that has one, all gaps between deliveries, E2E of all that finished.
 * @param {Trace} trace @param {number} time
 * @returns {{TTFT: number[], ITL: number[], E2E: number[]}}
 */
function samplesAt(trace, time) {
  /** @type {number[]} */ const ttft = [], itl = [], e2e = [];
  for (const row of trace.rows) {
    const count = countUntil(row.tokens, time);
    if (count) ttft.push(row.tokens[0] - row.borders[0]);
    for (let i = 1; i < count; i += 1) itl.push(row.tokens[i] - row.tokens[i - 1]);
    if (["stop", "length"].includes(row.reason) && row.borders[5] <= time) e2e.push(row.borders[5] - row.borders[0]);
  }
  return { TTFT: ttft, ITL: itl, E2E: e2e };
}

/**
 * Of those, medians and the worst; and tokens a second.
 * @param {Trace} trace @param {number} time
 * @returns {Figures}
 */
function figuresAt(trace, time) {
  const { TTFT: ttft, ITL: itl, E2E: e2e } = samplesAt(trace, time);
  const tokens = trace.rows.reduce((sum, row) => sum + countUntil(row.tokens, time), 0);
  const last = Math.max(0, ...trace.rows.map((row) => bordersAt(row, time)?.[5] ?? 0));
  return {
    "TTFT p50": percentile(ttft, 50),
    "ITL p50": percentile(itl, 50),
    "E2E p50": percentile(e2e, 50),
    "tokens/s": last > 0 ? tokens / last : null,
    "TTFT worst": ttft.length ? Math.max(...ttft) : null,
    "ITL p99": percentile(itl, 99),
    "E2E worst": e2e.length ? Math.max(...e2e) : null,
  };
}

/** The step that runs at a moment, or null. @param {Trace} trace @param {number} time */
function stepAt(trace, time) {
  const found = trace.steps[countUntil(trace.steps.map((step) => step.start), time) - 1];
  return found && time < found.end ? found : null;
}

/** Who holds the KV blocks at a moment. @param {Trace} trace @param {number} time @returns {Owners} */
function ownersAt(trace, time) {
  return trace.kv[countUntil(trace.kv.map(([since]) => since), time) - 1]?.[1] ?? [[FREE, trace.blocks]];
}

/** The moment at which requests hold the most KV blocks. @param {Trace} trace */
function fullestMoment(trace) {
  /** @param {Owners} owners */
  const held = (owners) => owners.reduce((sum, [owner, count]) => sum + (owner >= 0 || owner === SHARED ? count : 0), 0);
  return trace.kv.reduce((best, each) => (held(each[1]) > held(best[1]) ? each : best), trace.kv[0] ?? [trace.end, []])[0];
}

/** The text that a request had by a moment. @param {Row} row @param {number} time */
function textAt(row, time) {
  return row.texts.slice(0, countUntil(row.tokens, time)).join("");
}

export {
  CACHED, FREE, PHASES, PHASE_NAMES, SHARED, bordersAt, countUntil, extend, figuresAt, fullestMoment, meanPhases, ownersAt, percentile,
  phaseAt, samplesAt, stepAt, textAt,
};
