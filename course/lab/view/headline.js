// The answer, large: by how much each number that users feel changed, for better or worse, and how far equal runs differ.
import { make, say } from "./elements.js";
import { FELT, change, number, seconds } from "./say.js";
import { drawStrip } from "./strip.js";
import { PHASES, PHASE_NAMES, figuresAt, meanPhases, samplesAt } from "./trace.js";
/** @typedef {import("./trace.js").Trace} Trace */
/** @typedef {import("./say.js").Noise} Noise */

/** @type {Record<string, string>} */
const BESIDE = { "TTFT p50": "TTFT worst", "ITL p50": "ITL p99", "E2E p50": "E2E worst" };

/** @typedef {import("./paint.js").Palette} Palette */
/** @returns {{element: HTMLElement, show: (run: Trace, before: Trace | null, noise: Noise, time: number, palette: Palette) => void}} */
function headline() {
  const cards = FELT.map((name) => {
    const parts = { delta: make("b", { class: "mm-delta" }), value: make("span", { class: "mm-now" }), was: make("span", { class: "mm-was" }) };
    const strip = make("canvas", { class: "mm-strip", role: "img", "aria-label": name });
    const card = make("div", { class: "mm-card" }, make("span", { class: "mm-name" }, name), make("div", { class: "mm-beside" }, parts.delta, strip),
      make("span", { class: "mm-values" }, parts.value, " ", parts.was));
    return { name, card, ...parts, strip, band: card.appendChild(make("span", { class: "mm-band" })) };
  });

  /** @param {HTMLCanvasElement} strip @param {string} name @param {number[]} values @param {number[]} earlier @param {Palette} palette */
  function spread(strip, name, values, earlier, palette) {
    drawStrip(strip, values, earlier, palette);
    const told = values.length ? `${name} from ${seconds(Math.min(...values))} to ${seconds(Math.max(...values))}, ${values.length} values` : name;
    strip.setAttribute("aria-label", told);
    strip.title = `${told}${earlier.length ? "; below: the run before" : ""}`;
  }

  /** @param {Trace} run @param {Trace | null} before @param {Noise} noise @param {number} time @param {Palette} palette */
  function show(run, before, noise, time, palette) {
    const now = figuresAt(run, time), was = before ? figuresAt(before, before.end) : {};
    const values = samplesAt(run, time), earlier = before ? samplesAt(before, before.end) : null;
    const isOver = run.state !== "running" && time >= run.end;
    for (const { name, card, strip, delta, value, was: beside, band } of cards) {
      const kind = /** @type {keyof typeof values} */ (name.split(" ")[0]);
      if (kind in values) spread(strip, kind, values[kind], earlier?.[kind] ?? [], palette);
      /** @param {number | null | undefined} each */
      const written = (each) => (name === "tokens/s" ? (each ? number(each) : "–") : seconds(each));
      const judged = noise[name], [a, b] = [was[name], now[name]];
      const isCompared = isOver && Boolean(judged?.verdict) && typeof a === "number" && typeof b === "number";
      const verdict = isCompared ? judged.verdict : "";
      const isUp = isCompared && /** @type {number} */ (b) > /** @type {number} */ (a);
      const isBetter = isUp === (name === "tokens/s");
      card.className = `mm-card mm-${verdict || "alone"}${verdict === "changed" ? (isBetter ? " mm-better" : " mm-worse") : ""}`;
      const told = isCompared ? change(/** @type {number} */ (a), /** @type {number} */ (b)) : "";
      say(delta, !isCompared ? written(b) : verdict === "same" ? "≈ same" : `${isUp ? "▲" : "▼"} ${told}${verdict === "unsure" ? "?" : ""}`);
      say(value, isCompared ? written(b) : "");
      say(beside, isCompared ? `was ${written(a)}` : BESIDE[name] ? `${BESIDE[name].slice(4)} ${written(now[BESIDE[name]])}` : "");
      say(band, !isCompared ? (isOver ? "" : "so far") : verdict === "unsure" ? "not enough repeats"
        : [verdict === "changed" && (isBetter ? "better" : "worse"), bandOf(judged.band)].filter(Boolean).join(" · "));
    }
  }
  return { element: make("div", { class: "mm-headline" }, ...cards.map(({ card }) => card)), show };
}

/** @param {number | null} band */
function bandOf(band) {
  if (band === 1) return "no noise";
  return band ? `noise ×${band.toFixed(2)}` : "";
}

/**
 * One stacked bar of the mean request's phases, above those of other runs, on one scale; and each phase in numbers.
 * @returns {{element: HTMLElement, show: (run: Trace, others: [string, Trace][], noise: Noise, time: number) => boolean}} show: whether it has
 *   come to rest
 */
function phaseBars() {
  const bars = [0, 1, 2].map((i) => {
    const parts = PHASES.map((phase) => make("i", { style: `--phase: var(--mm-${phase})`, class: `mm-fill-${phase}` }));
    const name = make("span", { class: "mm-who" }), total = make("span", { class: "mm-total" });
    return { line: make("div", { class: `mm-line${i ? " mm-other" : ""}` }, name, make("div", { class: "mm-stack" }, ...parts), total), name, parts, total };
  });
  const cells = PHASES.map((phase) => {
    const value = make("b"), share = make("span"), told = make("span", { class: "mm-told" });
    const cell = make("div", { class: "mm-phase", style: `--phase: var(--mm-${phase})` }, make("span", { class: `mm-key mm-fill-${phase}` }),
      make("span", { class: "mm-name" }, PHASE_NAMES[phase]), make("span", {}, value, " ", share), told);
    return { phase, cell, value, share, told };
  });
  let scale = 0;

  /** @param {Trace} run @param {[string, Trace][]} others by name; the first is the one compared with @param {Noise} noise @param {number} time */
  function show(run, others, noise, time) {
    const isOver = run.state !== "running" && time >= run.end;
    /** @type {[string, Record<string, number>][]} */
    const all = [["this run", meanPhases(run, time)], ...others.slice(0, 2).map(([name, trace]) =>
      /** @type {[string, Record<string, number>]} */ ([name, meanPhases(trace, isOver ? trace.end : Math.min(time, trace.end))]))];
    const sums = all.map(([, means]) => PHASES.reduce((sum, phase) => sum + means[phase], 0));
    const most = Math.max(...sums, 1e-6);
    scale = Math.max(most, scale + (most - scale) * 0.08); // it never jumps
    bars.forEach(({ line, name, parts, total }, i) => {
      line.style.visibility = all[i] ? "" : "hidden";
      if (!all[i]) return;
      say(name, all[i][0]);
      parts.forEach((part, k) => { part.style.width = `${(100 * all[i][1][PHASES[k]]) / scale}%`; });
      say(total, sums[i] ? seconds(sums[i]) : "–");
    });
    const was = others.length ? all[1][1] : null;
    for (const { phase, cell, value, share, told } of cells) {
      const now = all[0][1][phase], verdict = isOver && was ? noise[phase]?.verdict ?? "" : "";
      say(value, seconds(now));
      say(share, sums[0] ? `${Math.round((100 * now) / sums[0])}%` : "");
      const by = was ? change(was[phase], now) : "";
      say(told, !verdict || !was ? (run.inferred.includes(phase) ? "inferred" : "") : verdict === "same" ? `was ${seconds(was[phase])}, ≈`
        : `${by}${verdict === "unsure" ? "?" : ""}, was ${seconds(was[phase])}`);
      cell.classList.toggle("mm-strong", verdict === "changed");
    }
    return Math.abs(scale - most) < 0.001 * most;
  }
  return { element: make("div", { class: "mm-phases" }, ...bars.map(({ line }) => line), make("div", { class: "mm-cells" }, ...cells.map(({ cell }) => cell))), show };
}

export { headline, phaseBars };
