// Where did each request's time go? A row a request, and under them the engine's steps on the same time axis.
import { SMALL, TINTS, clean, write } from "./paint.js";
import { seconds } from "./say.js";
import { PHASES, bordersAt, countUntil } from "./trace.js";
/** @typedef {import("./trace.js").Trace} Trace */
/** @typedef {import("./trace.js").Row} Row */
/** @typedef {import("./paint.js").Palette} Palette */

const LEFT = 92, RIGHT = 72, TOP = 6, AXIS = 20;
/** Heights of rows: the most, and the least at which figures don't touch. */
const MOST_PITCH = 26, LEAST_PITCH = 9;
/** Height of the strip of steps: tokens above, requests below. */
const STEPS = 76;
/** A client that sends so much later than it wanted to was held back. */
const HELD_BACK_S = 0.05;

/**
 * What is drawn.
 * @typedef {object} Scene
 * @property {Trace} run
 * @property {Trace | null} ghost an earlier run of the same traffic
 * @property {number} time everything is shown as of this moment
 * @property {number} low seconds at the axis' left end
 * @property {number} high
 * @property {number | null} row the one that stands out
 * @property {boolean} cursor whether `time` is marked
 */

/** Round steps of an axis. @param {number} span seconds @param {number} most labels */
function nice(span, most) {
  const rough = span / Math.max(most, 1), power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough) ?? rough;
}

/** @param {HTMLCanvasElement} canvas @param {Scene} scene @param {Palette} palette */
function drawTimeline(canvas, scene, palette) {
  const ready = clean(canvas);
  if (!ready) return;
  const { pen, width, height } = ready, { run, ghost, time } = scene;
  const { pitch, bottom } = placesOf(scene, height);
  const x = scaleOf(scene, width);
  const step = nice(scene.high - scene.low, (width - LEFT - RIGHT) / 70);
  for (let tick = Math.ceil(scene.low / step) * step; tick <= scene.high + 1e-9; tick += step) {
    pen.fillStyle = palette.faint;
    pen.fillRect(x(tick), TOP, 1, height - AXIS - TOP);
    write(pen, palette, `${Number(tick.toFixed(3))} s`, x(tick), height - 6, { fill: palette.soft, align: "center" });
  }
  pen.save();
  pen.beginPath();
  pen.rect(0, 0, width, height - AXIS + 1);
  pen.clip();
  if (scene.cursor) {
    pen.fillStyle = palette.ink;
    pen.fillRect(x(time), TOP - 4, 1.2, height - AXIS - TOP + 6);
  }
  run.rows.forEach((row, i) => {
    pen.globalAlpha = scene.row === null || scene.row === i ? 1 : 0.3;
    const y = TOP + pitch * i;
    drawRow({ pen, palette, x, width, run, row, i, y, pitch, time, hasGhost: ghost !== null });
    if (ghost?.rows[i]) drawGhost(pen, palette, x, ghost.rows[i], y + pitch * 0.76, Math.max(pitch * 0.16, 2));
  });
  pen.globalAlpha = 1;
  if (run.blocks) drawSteps(pen, palette, x, width, run, time, bottom + 8);
  pen.restore();
}

/** @param {Scene} scene @param {number} height */
function placesOf(scene, height) {
  const room = height - TOP - AXIS - (scene.run.blocks ? STEPS + 10 : 4);
  const pitch = Math.min(room / Math.max(scene.run.rows.length, 1), MOST_PITCH);
  return { pitch, bottom: TOP + pitch * scene.run.rows.length };
}

/** How high a canvas is whose rows are so high; it has no empty rows. @param {Trace} run @param {number} pitch @param {number} most */
function heightOf(run, pitch, most) {
  return Math.min(TOP + pitch * run.rows.length + (run.blocks ? STEPS + 10 : 4) + AXIS, most);
}

/** @param {Scene} scene @param {number} width @returns {(time: number) => number} */
function scaleOf(scene, width) {
  const scale = (width - LEFT - RIGHT) / (scene.high - scene.low);
  return (time) => LEFT + (time - scene.low) * scale;
}

/** Which moment and which row are at a place. @param {HTMLCanvasElement} canvas @param {Scene} scene @param {number} atX @param {number} atY */
function placeAt(canvas, scene, atX, atY) {
  const { pitch } = placesOf(scene, canvas.clientHeight);
  const row = Math.floor((atY - TOP) / pitch);
  const inside = atX >= LEFT - 1 && atX <= canvas.clientWidth - RIGHT + 1;
  const time = scene.low + ((atX - LEFT) / (canvas.clientWidth - LEFT - RIGHT)) * (scene.high - scene.low);
  return { time: inside ? Math.max(time, 0) : null, row: row >= 0 && row < scene.run.rows.length ? row : null };
}

/**
 * @param {{pen: CanvasRenderingContext2D, palette: Palette, x: (time: number) => number, width: number, run: Trace, row: Row, i: number,
 *   y: number, pitch: number, time: number, hasGhost: boolean}} drawn
 */
function drawRow({ pen, palette, x, width, run, row, i, y, pitch, time, hasGhost }) {
  const height = pitch * (hasGhost ? 0.66 : 0.8), middle = y + height / 2 + 4, hasWords = pitch >= LEAST_PITCH;
  const borders = bordersAt(row, time), ended = row.borders.length > 5 && row.borders[5] <= time;
  const count = countUntil(row.tokens, time);
  if (hasWords) {
    const words = row.prompt && borders ? `#${i}  ${row.prompt} → ${count}` : `#${i}`;
    write(pen, palette, words, LEFT - 12, middle, { fill: palette.soft, align: "right" });
  }
  if (run.blocks) {
    pen.fillStyle = TINTS[i % TINTS.length];
    pen.fillRect(LEFT - 8, y, 4, height);
  }
  if (row.refused && time >= row.due) {
    write(pen, palette, "✕ refused", Math.max(x(row.due), LEFT) + 4, middle, { fill: palette.alarm });
    return;
  }
  if (row.sent !== null && row.sent - row.due > HELD_BACK_S && time > row.due) {
    dotted(pen, palette.alarm, x(row.due), x(Math.min(row.sent, time)), y + height / 2);
  }
  if (!borders) {
    pen.fillStyle = palette.soft;
    if (row.due >= time) pen.fillRect(x(row.due), y, 1, height);
    return;
  }
  const at = borders.map(x);
  pen.fillStyle = palette.phase.queue;
  pen.fillRect(at[0], y + height * 0.3, at[1] - at[0], height * 0.4);
  drawWork({ pen, palette, x, run, row: i, at, y, height, time });
  pen.fillStyle = palette.phase.first_token;
  if (borders[3] > borders[2]) pen.fillRect(at[2], y, Math.max(at[3] - at[2], 2), height);
  pen.fillStyle = palette.phase.stream;
  if (ended) pen.fillRect(at[4], y, Math.max(at[5] - at[4], 2), height);
  if (count) flag(pen, palette, x(row.tokens[0]), y);
  if (hasWords && at[5] >= LEFT) {
    const odd = ended && !["stop", "length"].includes(row.reason) ? ` ${row.reason}` : "";
    const words = seconds(borders[5] - borders[0]) + odd;
    pen.font = `${SMALL}px ${palette.font}`;
    const place = Math.min(at[5] + 5, width - pen.measureText(words).width - 2);
    write(pen, palette, words, place, middle, { fill: odd ? palette.alarm : palette.ink, rim: true });
  }
}

/**
 * Prefill and decode as tinted spans; in them, solid, the steps that worked for this request.
 * @param {{pen: CanvasRenderingContext2D, palette: Palette, x: (time: number) => number, run: Trace, row: number, at: number[], y: number,
 *   height: number, time: number}} drawn
 */
function drawWork({ pen, palette, x, run, row, at, y, height, time }) {
  for (const [phase, from] of /** @type {[string, number][]} */ ([["prefill", 1], ["decode", 3]])) {
    pen.fillStyle = palette.flat[phase];
    pen.globalAlpha *= run.steps.length ? 0.25 : 1;
    pen.fillRect(at[from], y, at[from + 1] - at[from], height);
    pen.globalAlpha /= run.steps.length ? 0.25 : 1;
    if (run.inferred.includes(phase)) hatched(pen, palette, at[from], at[from + 1], y, height);
  }
  /** @type {number | null} */ let lost = null;
  for (const step of run.steps) {
    if (step.start > time) break;
    if (step.preempted.includes(row)) lost = step.start;
    const share = step.shares.find(([owner]) => owner === row);
    if (!share) continue;
    if (lost !== null) gap(pen, palette, x(lost), x(step.start), y, height);
    lost = null;
    const from = x(step.start), to = x(Math.min(step.end, time));
    pen.fillStyle = palette.phase[share[2] ? "prefill" : "decode"];
    pen.fillRect(from, y, Math.max(to - from - 0.7, 0.5), height);
    if (share[2] && to - from > 30 && height >= SMALL + 1) {
      write(pen, palette, String(share[1]), (from + to) / 2, y + height / 2 + 4, { fill: "#fff", align: "center" });
    }
  }
  if (lost !== null) gap(pen, palette, x(lost), at[5], y, height);
}

/** From the loss of its KV blocks until it runs again. @param {CanvasRenderingContext2D} pen @param {Palette} palette */
function gap(pen, palette, /** @type {number} */ from, /** @type {number} */ to, /** @type {number} */ y, /** @type {number} */ height) {
  pen.fillStyle = palette.paper;
  pen.fillRect(from, y, to - from, height);
  pen.strokeStyle = palette.alarm;
  pen.lineWidth = 1;
  pen.setLineDash([3, 2]);
  pen.strokeRect(from + 0.5, y + 0.5, to - from - 1, height - 1);
  pen.setLineDash([]);
  if (height < SMALL + 1) return;
  write(pen, palette, to - from > 64 ? "preempted" : "✕", (from + to) / 2, y + height / 2 + 4, { fill: palette.alarm, align: "center" });
}

/** What was inferred and not seen. @param {CanvasRenderingContext2D} pen @param {Palette} palette */
function hatched(pen, palette, /** @type {number} */ from, /** @type {number} */ to, /** @type {number} */ y, /** @type {number} */ height) {
  pen.strokeStyle = palette.paper;
  pen.lineWidth = 1;
  for (let x = from + 4; x < to; x += 6) {
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(x - 4, y + height);
    pen.stroke();
  }
}

/** @param {CanvasRenderingContext2D} pen @param {string} colour */
function dotted(pen, colour, /** @type {number} */ from, /** @type {number} */ to, /** @type {number} */ y) {
  pen.strokeStyle = colour;
  pen.lineWidth = 2;
  pen.setLineDash([1, 3]);
  pen.beginPath();
  pen.moveTo(from, y);
  pen.lineTo(to, y);
  pen.stroke();
  pen.setLineDash([]);
}

/** The moment of the first token. @param {CanvasRenderingContext2D} pen @param {Palette} palette */
function flag(pen, palette, /** @type {number} */ x, /** @type {number} */ y) {
  pen.fillStyle = palette.flat.first_token;
  pen.beginPath();
  pen.moveTo(x - 4, y - 3);
  pen.lineTo(x + 4, y - 3);
  pen.lineTo(x, y + 4);
  pen.fill();
}

/** The same request in the run before, as outlines. @param {CanvasRenderingContext2D} pen @param {Palette} palette @param {(time: number) => number} x @param {Row} row */
function drawGhost(pen, palette, x, row, /** @type {number} */ y, /** @type {number} */ height) {
  for (let i = 0; i + 1 < row.borders.length; i += 1) {
    const from = x(row.borders[i]), wide = x(row.borders[i + 1]) - from;
    if (wide < 0.3) continue;
    pen.globalAlpha *= 0.55;
    pen.fillStyle = palette.flat[PHASES[i]];
    pen.fillRect(from, y, wide, height);
    pen.globalAlpha /= 0.55;
    pen.strokeStyle = palette.flat[PHASES[i]];
    pen.lineWidth = 0.8;
    pen.strokeRect(from, y, wide, height);
  }
}

/**
 * Tokens in each step against the budget, and the requests that run and wait.
 * @param {CanvasRenderingContext2D} pen @param {Palette} palette @param {(time: number) => number} x @param {number} width
 * @param {Trace} run @param {number} time @param {number} top
 */
function drawSteps(pen, palette, x, width, run, time, top) {
  const high = 40, low = 26, base = top + high, floor = base + low + 4;
  const most = Math.max(run.slots, ...run.steps.map((step) => step.running + step.waiting), 1);
  write(pen, palette, "tokens a step", LEFT - 12, base - high / 2 + 4, { fill: palette.soft, align: "right" });
  write(pen, palette, "requests", LEFT - 12, floor - low / 2 + 4, { fill: palette.soft, align: "right" });
  for (const step of run.steps) {
    if (step.start > time) break;
    const from = x(step.start), wide = Math.max(x(Math.min(step.end, time)) - from - 0.5, 0.6);
    const tokens = [0, 0];
    for (const [, count, isPrefill] of step.shares) tokens[isPrefill] += count;
    const [decode, prefill] = tokens.map((count) => Math.max((count / run.budget) * high, count ? 1.5 : 0));
    pen.fillStyle = palette.phase.decode;
    pen.fillRect(from, base - decode, wide, decode);
    pen.fillStyle = palette.phase.prefill;
    pen.fillRect(from, base - decode - prefill, wide, prefill);
    pen.fillStyle = palette.ink;
    pen.fillRect(from, floor - (step.running / most) * low, wide, (step.running / most) * low);
    pen.fillStyle = palette.flat.queue;
    pen.fillRect(from, floor - ((step.running + step.waiting) / most) * low, wide, (step.waiting / most) * low);
  }
  for (const [y, words] of /** @type {[number, string][]} */ ([
    [base - high, `budget ${run.budget}`], [floor - (run.slots / most) * low, `${run.slots} slots`]])) {
    pen.strokeStyle = palette.soft;
    pen.lineWidth = 1;
    pen.setLineDash([3, 3]);
    pen.beginPath();
    pen.moveTo(LEFT, y);
    pen.lineTo(width - RIGHT, y);
    pen.stroke();
    pen.setLineDash([]);
    write(pen, palette, words, width - RIGHT + 4, y + 8, { fill: palette.soft });
  }
}

export { drawTimeline, heightOf, placeAt };
