// One run, played again: its timeline, a moment to look at, and one request in words.
import { keepKeys, make, say } from "./elements.js";
import { keepLastFrames } from "./keep.js";
import { drawingLoop } from "./loop.js";
import { paletteOf } from "./paint.js";
import { Axis, Playhead } from "./playhead.js";
import { seconds } from "./say.js";
import { drawTimeline, heightOf, placeAt } from "./timeline.js";
import { PHASE_NAMES, bordersAt, countUntil, phaseAt, textAt } from "./trace.js";
/** @typedef {import("./trace.js").Trace} Trace */
/** @typedef {{run: Trace, row: number}} Played row: the request to follow */

/** Heights, CSS pixels: a row, and the whole picture at most. */
const ROW_PX = 24, MOST_PX = 330;

/** One sentence about where a request is. @param {Trace} run @param {number} i @param {number} time */
function narrate(run, i, time) {
  const row = run.rows[i], phase = phaseAt(row, time), borders = bordersAt(row, time);
  if (row.refused) return `was refused: ${row.refused}`;
  if (!borders) return "has not arrived yet";
  if (!phase) return `finished, after ${seconds(borders[5] - borders[0])}`;
  if (phase === "queue") return `is queued: no step has included it yet (${seconds(time - borders[0])} so far)`;
  if (phase === "first_token") return "is done with prefill: its first token is being sampled and detokenized";
  if (phase === "stream") return `has all ${row.tokens.length} tokens: the last text is on its way to the client`;
  if (phase === "decode") return `is decoding: token ${countUntil(row.tokens, time)} of ${row.most}`;
  const chunks = run.steps.filter((step) => step.end <= time).flatMap((step) => step.shares.filter(([owner]) => owner === i));
  const computed = Math.min(row.cached + chunks.reduce((sum, [, count]) => sum + count, 0), row.prompt);
  return `is in prefill: ${computed} of ${row.prompt} prompt tokens computed, in ${chunks.length} chunks`;
}

/** @param {{model: {get: (name: string) => any}, el: HTMLElement}} given @returns {() => void} what ends it */
function renderPlayer({ model, el }) {
  const { run, row: first } = /** @type {Played} */ (model.get("played"));
  const playhead = new Playhead(), axis = new Axis();
  /** @type {number | null} */ let hovered = null;
  let row = first, hasPlayed = false;
  const key = make("span", { class: "mm-key" }), told = make("span", {}), text = make("div", { class: "mm-text", tabindex: 0, role: "group", "aria-label": "The request's text" });
  const timeline = make("canvas", { class: "mm-timeline", role: "img", "aria-label": "Where each request's time went" });
  timeline.style.height = `${heightOf(run, ROW_PX, MOST_PX)}px`;
  const scrub = make("input", { type: "range", min: 0, max: 1000, "aria-label": "Moment" });
  const playButton = make("button", { type: "button", class: "mm-plain" }, "▶ Replay");
  const moment = make("span", { class: "mm-moment" });
  const controls = make("div", { class: "mm-scrub" }, playButton, scrub, moment);
  const root = make("div", { class: "mm-dash mm-player", role: "group", "aria-label": "Replay of a run" },
    make("div", { class: "mm-narrated" }, key, told), timeline, controls, text);
  text.hidden = run.rows.every((each) => !each.texts.length); // placeholders aren't recorded
  el.append(root);
  let palette = paletteOf(root, false);
  const { wake, stop } = drawingLoop(root, { frame, restyle: () => { palette = paletteOf(root, false); } });

  /** @param {number} passed seconds @param {number} at ms @returns {boolean} */
  function frame(passed, at) {
    const isMoving = playhead.tick(passed, at), { time } = playhead, followed = hovered ?? row;
    drawTimeline(timeline, { run, ghost: null, time, low: axis.low, high: axis.high, row: hovered, cursor: playhead.mode !== "still" }, palette);
    const words = `#${followed} ${narrate(run, followed, time)}`, phase = phaseAt(run.rows[followed], time);
    say(told, phase ? `${PHASE_NAMES[phase]} · ${words}` : words);
    key.style.setProperty("--phase", phase ? `var(--mm-${phase})` : "transparent");
    say(text, textAt(run.rows[followed], time));
    timeline.setAttribute("aria-label", `${run.rows.length} requests as of ${seconds(time)}. Request ${words}.`);
    say(moment, `${playhead.mode === "frozen" ? "‖ " : ""}${seconds(Math.min(time, run.end))}`);
    say(playButton, playhead.mode === "playing" ? "» End" : "▶ Replay");
    if (playhead.mode !== "frozen") scrub.value = String(Math.round((1000 * time) / Math.max(run.end, 1e-9)));
    scrub.setAttribute("aria-valuetext", seconds(time));
    root.dataset.mode = playhead.mode;
    return isMoving;
  }

  scrub.addEventListener("input", () => { playhead.freeze((Number(scrub.value) / 1000) * run.end); wake(); });
  playButton.addEventListener("click", () => {
    if (playhead.mode === "playing") playhead.finish();
    else playhead.play();
    wake();
  });
  timeline.addEventListener("pointermove", (event) => {
    hovered = placeAt(timeline, { run, ghost: null, time: 0, low: axis.low, high: axis.high, row: null, cursor: false }, event.offsetX, event.offsetY).row;
    wake();
  });
  timeline.addEventListener("pointerleave", () => { hovered = null; wake(); });
  timeline.addEventListener("click", () => { if (hovered !== null) row = hovered; wake(); });
  keepKeys(root);
  // Once, when it comes into sight; after that it stays full.
  const sight = new IntersectionObserver((entries) => {
    if (hasPlayed && !root.isConnected) end(); // something else stands in its place
    if (!entries.some((entry) => entry.isIntersecting)) return;
    if (!hasPlayed && playhead.mode === "still" && !matchMedia("(prefers-reduced-motion: reduce)").matches) playhead.play();
    hasPlayed = true;
    wake();
  }, { threshold: 0.6 });
  sight.observe(timeline);
  playhead.hear(run.end, false, 0);
  playhead.finish();
  axis.reset(1.02 * run.end);
  keepLastFrames();
  wake();

  function end() {
    stop();
    sight.disconnect();
  }

  return end;
}

export { renderPlayer };
