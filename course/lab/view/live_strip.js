// Requests and the engine's steps on a time axis that slides. Close up, each step is a column, and each request's tokens stand in it.
import { SMALL, clean, write } from "./paint.js";
import { PHASES } from "./trace.js";
/** @typedef {import("./live_traffic.js").LiveTraffic} LiveTraffic */
/** @typedef {import("./live_traffic.js").LiveRequest} LiveRequest */
/** @typedef {import("./paint.js").Palette} Palette */

/** CSS pixels around the lanes; of the axis and the steps under them; and from one lane to the next. */
const AREA = { left: 12, right: 60, top: 8, axis: 20, steps: 58, pitch: 19 };
/** Shorter spans show tokens in numbers. */
const CLOSE_S = 2;

/**
 * @typedef {object} Strip what is drawn
 * @property {LiveTraffic} traffic
 * @property {number} time the newest moment shown: the right end of the axis
 * @property {number} span seconds
 * @property {number} slots
 * @property {number} budget
 * @property {number[]} changes moments at which settings were changed
 */

/** @param {HTMLCanvasElement} canvas @param {Strip} strip @param {Palette} palette */
function drawLiveStrip(canvas, strip, palette) {
  const ready = clean(canvas);
  if (!ready) return;
  const { pen, width, height } = ready, { traffic, time, span } = strip;
  const low = time - span, scale = (width - AREA.left - AREA.right) / span;
  /** @param {number} moment */
  const x = (moment) => AREA.left + (moment - low) * scale;
  drawLiveAxis(pen, palette, x, low, time, width, height);
  pen.save();
  pen.beginPath();
  pen.rect(AREA.left, 0, width - AREA.left, height - AREA.axis);
  pen.clip();
  const lanes = Math.floor((height - AREA.top - AREA.axis - AREA.steps - 8) / AREA.pitch);
  let hidden = 0;
  for (const request of traffic.requests.values()) {
    if (request.at > time || (request.borders[5] ?? Infinity) < low) continue;
    if (request.lane < lanes) drawRequest({ pen, palette, x, request, y: AREA.top + AREA.pitch * request.lane, time });
    else if ((request.borders[5] ?? Infinity) > time) hidden += 1;
  }
  drawLiveSteps(pen, palette, x, strip, height - AREA.axis - AREA.steps, lanes);
  if (span > CLOSE_S) {
    for (const request of traffic.requests.values()) {
      if (request.lane < lanes && request.at < time && (request.borders[5] ?? Infinity) > low) drawKind(pen, x, request, AREA.top + AREA.pitch * request.lane, time);
    }
  }
  for (const moment of strip.changes) {
    if (moment < low || moment > time) continue;
    pen.fillStyle = palette.ink;
    pen.fillRect(x(moment), 0, 1.5, height - AREA.axis);
    write(pen, palette, "changed", x(moment) + 4, height - AREA.axis - AREA.steps - 2, { rim: true });
  }
  pen.restore();
  if (hidden) write(pen, palette, `and ${hidden} more`, width - 2, AREA.top + AREA.pitch * lanes, { align: "right", fill: palette.alarm });
}

/** @param {CanvasRenderingContext2D} pen @param {Palette} palette @param {(moment: number) => number} x */
function drawLiveAxis(pen, palette, x, /** @type {number} */ low, /** @type {number} */ time, /** @type {number} */ width, /** @type {number} */ height) {
  const step = [0.05, 0.1, 0.2, 0.5, 1, 2, 5].find((each) => (time - low) / each <= (width - AREA.left - AREA.right) / 62) ?? 5;
  for (let tick = Math.ceil(Math.max(low, 0) / step) * step; tick <= time + 1e-9; tick += step) {
    pen.fillStyle = palette.faint;
    pen.fillRect(x(tick), AREA.top, 1, height - AREA.axis - AREA.top);
    write(pen, palette, `${Number(tick.toFixed(2))} s`, x(tick), height - 6, { fill: palette.soft, align: "center" });
  }
}

/**
 * One request: its phases as a bar, as of a moment.
 * @param {{pen: CanvasRenderingContext2D, palette: Palette, x: (moment: number) => number, request: LiveRequest, y: number, time: number}} drawn
 */
function drawRequest({ pen, palette, x, request, y, time }) {
  const height = AREA.pitch - 5;
  PHASES.forEach((phase, k) => {
    const from = request.borders[k], to = Math.min(request.borders[k + 1] ?? time, time);
    if (from === undefined || from >= time) return;
    const isThin = phase === "queue", wide = Math.max(x(to) - x(from), phase === "first_token" || phase === "stream" ? 2 : 0);
    pen.globalAlpha = phase === "prefill" || phase === "decode" ? 0.35 : 1;
    pen.fillStyle = palette.phase[phase];
    pen.fillRect(x(from), isThin ? y + height * 0.3 : y, wide, isThin ? height * 0.4 : height);
    pen.globalAlpha = 1;
  });
}

/**
 * What a request is, in its bar: after the steps, which would cover it.
 * @param {CanvasRenderingContext2D} pen @param {(moment: number) => number} x @param {LiveRequest} request @param {number} y @param {number} time
 */
function drawKind(pen, x, { kind, at, borders, cached, prompt }, y, time) {
  const words = `${kind}${cached ? `, ${Math.floor((100 * cached) / prompt)}% cached` : ""}`, start = Math.max(x(at), AREA.left) + 3;
  pen.font = `${SMALL}px ${getComputedStyle(pen.canvas).fontFamily}`;
  const wide = pen.measureText(words).width + 6;
  if (x(Math.min(borders[5] ?? time, time)) - start < wide + 6) return;
  pen.fillStyle = "#1f2328b0";
  pen.fillRect(start, y + 1, wide, AREA.pitch - 7);
  pen.fillStyle = "#fff";
  pen.textAlign = "left";
  pen.fillText(words, start + 3, y + AREA.pitch - 8.5);
}

/**
 * In each request's bar, solid, the steps that worked for it; and under all, how full each step was.
 * @param {CanvasRenderingContext2D} pen @param {Palette} palette @param {(moment: number) => number} x @param {Strip} strip
 * @param {number} top @param {number} lanes
 */
function drawLiveSteps(pen, palette, x, { traffic, time, span, slots, budget }, top, lanes) {
  const height = AREA.pitch - 5, isClose = span <= CLOSE_S, high = 30, base = top + high + 4, room = 18;
  for (const step of traffic.steps) {
    if (step.start > time || step.end < time - span) continue;
    const from = x(step.start), wide = Math.max(x(Math.min(step.end, time)) - from - 0.7, 0.5);
    const tokens = [0, 0];
    for (const [i, count, isPrefill] of step.shares) {
      tokens[isPrefill] += count;
      const request = traffic.requests.get(i);
      if (!request || request.lane >= lanes) continue;
      const y = AREA.top + AREA.pitch * request.lane;
      pen.fillStyle = palette.phase[isPrefill ? "prefill" : "decode"];
      pen.fillRect(from, y, wide, height);
      if (isClose && wide > 16) write(pen, palette, String(count), from + wide / 2, y + height - 3, { fill: "#fff", align: "center" });
    }
    const [decode, prefill] = tokens.map((count) => Math.max((count / budget) * high, count ? 1.5 : 0));
    pen.fillStyle = palette.phase.decode;
    pen.fillRect(from, base - decode, wide, decode);
    pen.fillStyle = palette.phase.prefill;
    pen.fillRect(from, base - decode - prefill, wide, prefill);
    if (isClose && wide > 24) write(pen, palette, String(tokens[0] + tokens[1]), from + wide / 2, base - decode - prefill - 2, { align: "center", rim: true });
    pen.fillStyle = palette.ink;
    pen.fillRect(from, base + 3, wide, (room * step.running) / Math.max(slots, 12));
  }
  const right = x(time) + 4;
  write(pen, palette, "tokens", right, base - high / 2, { fill: palette.soft });
  write(pen, palette, "a step", right, base - high / 2 + 12, { fill: palette.soft });
  write(pen, palette, "running", right, base + 14, { fill: palette.soft });
}

export { drawLiveStrip };
