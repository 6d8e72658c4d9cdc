// Numbers and sentences as people read them.
import { PHASES, PHASE_NAMES, figuresAt, meanPhases } from "./trace.js";
/** @typedef {import("./trace.js").Trace} Trace */

/**
 * What noise has to do with a difference: changed, same, unsure (not enough repeats), or nothing to compare.
 * @typedef {"changed" | "same" | "unsure" | ""} Verdict
 */
/** @typedef {{verdict: Verdict, band: number | null}} Judged band: how many times as large equal runs may differ */
/** @typedef {Record<string, Judged>} Noise by figure and by phase */

const FELT = ["TTFT p50", "ITL p50", "E2E p50", "tokens/s"];
/** A phase that changed by less than this share of E2E isn't talked about. */
const NEGLIGIBLE = 0.005;
/** Between simulated runs, equal work takes equally long: what differs by more than this was changed. */
const EXACT = 1.01;

/** Three digits. @param {number} value */
function number(value) {
  const size = Math.abs(value);
  if (size >= 99.95 || Number.isInteger(value)) return value.toFixed(0);
  if (size >= 9.995) return value.toFixed(1);
  return value.toFixed(2);
}

/** A duration with the unit that suits it. @param {number | null | undefined} value seconds */
function seconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Math.abs(value) >= 0.9995) return `${number(value)} s`;
  if (Math.abs(value) >= 0.0009995) return `${number(1000 * value)} ms`;
  return value === 0 ? "0 s" : `${number(1e6 * value)} µs`;
}

/** '−48%', '×12' from ten times on, '±0%'. @param {number} before @param {number} after */
function change(before, after) {
  if (before === 0) return after === 0 ? "±0%" : "new";
  const ratio = after / before;
  if (ratio >= 10) return `×${ratio.toFixed(0)}`;
  const percent = Math.round(100 * (ratio - 1));
  return percent === 0 ? "±0%" : `${percent > 0 ? "+" : "−"}${Math.abs(percent)}%`;
}

/** A setting's value in words. @param {unknown} value @param {Record<string, string>} [names] */
function shown(value, names = {}) {
  if (value === true) return "on";
  if (value === false || value === null) return "off";
  return names[String(value)] ?? String(value);
}

/**
 * What can be said of each figure and phase between two simulated runs, which have no noise.
 * @param {Trace} run @param {Trace} before
 * @returns {Noise}
 */
function exactNoise(run, before) {
  const pairs = { ...meanPhases(run, run.end), ...figuresAt(run, run.end) };
  const was = { ...meanPhases(before, before.end), ...figuresAt(before, before.end) };
  return Object.fromEntries(Object.entries(pairs).map(([name, now]) => {
    const [low, high] = [now ?? 0, was[name] ?? 0].sort((a, b) => a - b);
    return [name, { verdict: high > EXACT * low ? "changed" : "same", band: 1 }];
  }));
}

/**
 * The phase that changed most, by its mean seconds per request, or "" where none did by more than noise.
 * @param {Trace} run @param {Trace} before @param {Noise} noise
 */
function moved(run, before, noise) {
  const now = meanPhases(run, run.end), was = meanPhases(before, before.end);
  const total = PHASES.reduce((sum, phase) => sum + now[phase], 0);
  const sure = PHASES.filter((phase) => noise[phase]?.verdict === "changed" && Math.abs(now[phase] - was[phase]) > NEGLIGIBLE * total);
  return sure.reduce((most, phase) => (Math.abs(now[phase] - was[phase]) > Math.abs((now[most] ?? 0) - (was[most] ?? 0)) ? phase : most), "");
}

/** What the engine counted. @param {Trace} run */
function counts(run) {
  const pure = run.steps.filter((step) => step.shares.length && step.shares.every(([, , isPrefill]) => !isPrefill));
  return {
    cached: run.rows.reduce((sum, row) => sum + row.cached, 0),
    prompt: run.rows.reduce((sum, row) => sum + row.prompt, 0),
    refused: run.rows.filter((row) => row.refused).length,
    preempted: run.steps.reduce((sum, step) => sum + step.preempted.length, 0),
    waiting: Math.max(0, ...run.steps.map((step) => step.waiting)),
    batch: pure.length ? pure.reduce((sum, step) => sum + step.shares.length, 0) / pure.length : 0,
    step: pure.length ? pure.reduce((sum, step) => sum + step.end - step.start, 0) / pure.length : 0,
  };
}

/**
 * One sentence: which phase moved, and what the engine counted that goes with it.
 * @param {Trace} run @param {Trace | null} before @param {Noise} noise
 */
function why(run, before, noise) {
  const now = meanPhases(run, run.end), is = counts(run);
  if (!before) {
    const total = PHASES.reduce((sum, phase) => sum + now[phase], 0);
    if (!total) return "";
    const most = PHASES.reduce((best, phase) => (now[phase] > now[best] ? phase : best), PHASES[0]);
    const share = `${Math.round((100 * now[most]) / total)}% of a request's ${seconds(total)} is ${PHASE_NAMES[most]}`;
    return `${share}: ${because(most, is)}.`;
  }
  const phase = moved(run, before, noise);
  const judged = FELT.map((name) => noise[name]?.verdict);
  const lost = is.refused ? ` ${is.refused} of ${run.rows.length} requests were refused: they have no latency at all.` : "";
  if (!phase) {
    return (judged.includes("unsure")
      ? "Not enough repeats to tell this from noise: run the same settings again."
      : judged.includes("changed") ? "No single phase accounts for it." : "No phase moved by more than equal runs do on this machine.") + lost;
  }
  const was = meanPhases(before, before.end), by = now[phase] - was[phase];
  const told = `${PHASE_NAMES[phase]} ${by < 0 ? "fell" : "rose"} most, by ${seconds(Math.abs(by))} a request`;
  return `${told[0].toUpperCase()}${told.slice(1)}: ${because(phase, is, counts(before))}.${lost}`;
}

/**
 * What was counted that goes with a phase.
 * @param {string} phase
 * @param {ReturnType<typeof counts>} is
 * @param {ReturnType<typeof counts>} [was]
 */
function because(phase, is, was) {
  /** @param {string} words @param {string | number} [old] */
  const then = (words, old) => words + (was && old !== undefined ? ` (${old} before)` : "");
  if (phase === "queue") return then(is.waiting ? `at most ${is.waiting} requests were queued at a time` : "no request waited", was?.waiting);
  if (phase === "prefill" && (is.cached || was?.cached)) {
    return then(`${is.cached} of ${is.prompt} prompt tokens came from the prefix cache`, was?.cached);
  }
  if (phase === "prefill") return `${is.prompt} prompt tokens were computed`;
  if (phase === "decode" && (is.preempted || was?.preempted)) {
    return then(`${is.preempted} times a request lost its KV blocks and was computed again`, was?.preempted);
  }
  if (phase === "decode" && is.step) {
    return then(`a decode step took ${seconds(is.step)} with ${number(is.batch)} requests in it`,
      was?.step ? `${seconds(was.step)} with ${number(was.batch)}` : undefined);
  }
  return phase === "first_token" ? "sampling and detokenizing of the first token" : phase === "stream"
    ? "the client took the last text late" : "the time from its first token to its last";
}

export { FELT, change, counts, exactNoise, moved, number, seconds, shown, why };
