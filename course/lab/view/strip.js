// How the values behind a figure spread: as many bars as fit, those of an earlier run hanging below.
import { clean } from "./paint.js";

const BAR = 4;

/** Into so many equal pieces from 0 to the largest. @param {number[]} values @param {number} largest @param {number} pieces */
function counted(values, largest, pieces) {
  const counts = Array(pieces).fill(0);
  for (const value of values) counts[Math.min(Math.floor((value / largest) * pieces), pieces - 1)] += 1;
  return counts;
}

/**
 * @param {HTMLCanvasElement} canvas @param {number[]} now @param {number[]} before none: there is no earlier run
 * @param {import("./paint.js").Palette} palette
 */
function drawStrip(canvas, now, before, palette) {
  const ready = clean(canvas), largest = Math.max(...now, ...before, 0);
  if (!ready || largest <= 0) return;
  const { pen, width, height } = ready, pieces = Math.floor(width / BAR), middle = before.length ? height * 0.58 : height - 1;
  for (const [values, towards, colour] of /** @type {[number[], number, string][]} */ ([[now, -1, palette.ink], [before, 1, palette.soft]])) {
    const counts = counted(values, largest, pieces), most = Math.max(...counts, 1), high = towards < 0 ? middle : height - middle;
    pen.fillStyle = colour;
    counts.forEach((count, i) => {
      const size = count ? Math.max((count / most) * (high - 1), 1.5) : 0; // a single slow one is what to look for
      pen.fillRect(i * BAR, towards < 0 ? middle - size : middle + 1, BAR - 1, size);
    });
  }
  pen.fillStyle = palette.faint;
  pen.fillRect(0, middle, width, 1);
}

export { drawStrip };
