// Who holds the KV cache? A cell a block, in the tint of the request that holds it.
import { SMALL, TINTS, TINT_INK, clean } from "./paint.js";
import { FREE, SHARED, ownersAt } from "./trace.js";
/** @typedef {import("./trace.js").Trace} Trace */

const LEAST_CELL = 5, MOST_CELL = 22;
const GLYPHS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/**
 * @param {HTMLCanvasElement} canvas @param {Trace} run @param {number} time @param {number | null} row the one that stands out
 * @param {import("./paint.js").Palette} palette
 */
function drawBlocks(canvas, run, time, row, palette) {
  const ready = clean(canvas);
  if (!ready || !run.blocks) return;
  const { pen, width, height } = ready;
  const used = usedOf(run);
  let cell = MOST_CELL;
  while (cell > LEAST_CELL && Math.floor(width / cell) * Math.floor(height / cell) < used) cell -= 1;
  const columns = Math.floor(width / cell), fits = columns * Math.floor(height / cell);
  let place = 0;
  for (const [owner, count] of ownersAt(run, time)) {
    for (let k = 0; k < count && place < Math.min(used, fits); k += 1, place += 1) {
      drawCell({ pen, palette, x: (place % columns) * cell, y: Math.floor(place / columns) * cell, cell: cell - 1.5, owner, row });
    }
  }
}

/** Blocks up to the last one that anything ever held: the rest of the pool is empty, and says nothing. @param {Trace} run */
function usedOf(run) {
  let most = 1;
  for (const [, owners] of run.kv) {
    let place = 0, last = 0;
    for (const [owner, count] of owners) {
      place += count;
      if (owner !== FREE) last = place;
    }
    most = Math.max(most, last);
  }
  return most;
}

/**
 * @param {{pen: CanvasRenderingContext2D, palette: import("./paint.js").Palette, x: number, y: number, cell: number, owner: number,
 *   row: number | null}} drawn
 */
function drawCell({ pen, palette, x, y, cell, owner, row }) {
  pen.globalAlpha = row === null || owner === row ? 1 : 0.3;
  if (owner >= 0 || owner === SHARED) {
    pen.fillStyle = owner === SHARED ? palette.ink : TINTS[owner % TINTS.length];
    pen.fillRect(x, y, cell, cell);
  }
  pen.strokeStyle = owner === FREE ? palette.faint : palette.soft;
  pen.lineWidth = 0.7;
  pen.setLineDash(owner === FREE || owner >= 0 ? [] : [2, 1.5]);
  pen.strokeRect(x + 0.5, y + 0.5, cell - 1, cell - 1);
  pen.setLineDash([]);
  if (cell >= SMALL + 1 && (owner >= 0 || owner === SHARED)) {
    pen.font = `${SMALL}px ${palette.font}`;
    pen.textAlign = "center";
    pen.fillStyle = owner === SHARED ? palette.paper : TINT_INK;
    pen.fillText(owner === SHARED ? "s" : GLYPHS[owner] ?? "·", x + cell / 2, y + cell / 2 + 4);
  }
  pen.globalAlpha = 1;
}

/** In words. @param {Trace} run @param {number} time */
function heldAt(run, time) {
  const held = { requests: 0, shared: 0, cached: 0 };
  for (const [owner, count] of ownersAt(run, time)) {
    if (owner >= 0) held.requests += count;
    else if (owner === SHARED) held.shared += count;
    else if (owner !== FREE) held.cached += count;
  }
  return held;
}

export { drawBlocks, heldAt };
