// A canvas that keeps its size in CSS pixels, so that type is as large on a phone as on a wide screen; and the theme's colours.
import { PHASES } from "./trace.js";

/** The smallest type, CSS pixels. */
const SMALL = 11;
const TINTS = ["#EAE8B6", "#BAC9F6", "#E9BFB8", "#B2F1FD", "#B7B484"];
const TINT_INK = "#1f2328";

/**
 * Colours as they are now: they change with the theme.
 * @typedef {object} Palette
 * @property {string} ink
 * @property {string} soft
 * @property {string} faint
 * @property {string} paper
 * @property {string} alarm
 * @property {string} font
 * @property {Record<string, string | CanvasPattern>} phase
 * @property {Record<string, string>} flat phases without patterns
 */

/** @param {HTMLElement} root @param {boolean} patterns @returns {Palette} */
function paletteOf(root, patterns) {
  const style = getComputedStyle(root);
  /** @param {string} name */
  const colour = (name) => style.getPropertyValue(`--mm-${name}`).trim();
  const flat = Object.fromEntries(PHASES.map((phase) => [phase, colour(phase)]));
  const phase = patterns ? Object.fromEntries(PHASES.map((each) => [each, patternOf(each, flat[each])])) : flat;
  return { ink: colour("ink"), soft: colour("soft"), faint: colour("faint"), paper: colour("paper"), alarm: colour("alarm"),
    font: style.fontFamily, phase, flat };
}

/** Strokes of each phase's pattern on a tile of 6 by 6. Decode, the largest area, is plain. @type {Record<string, number[][]>} */
const STROKES = {
  queue: [[-1, 7, 7, -1, 1.6]], prefill: [[-1, -1, 7, 7, 0.9]], first_token: [[1.5, 0, 1.5, 6, 1.2]], decode: [],
  stream: [[-1, 7, 7, -1, 1], [-1, -1, 7, 7, 1]],
};

/** @param {string} phase @param {string} colour @returns {CanvasPattern | string} */
function patternOf(phase, colour) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  if (!pen) return colour;
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 6, 6);
  pen.strokeStyle = "#fff";
  for (const [x, y, toX, toY, width] of STROKES[phase]) {
    pen.lineWidth = width;
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(toX, toY);
    pen.stroke();
  }
  return pen.createPattern(tile, "repeat") ?? colour;
}

/**
 * An empty canvas of the element's size, its unit a CSS pixel.
 * @param {HTMLCanvasElement} canvas
 * @returns {{pen: CanvasRenderingContext2D, width: number, height: number} | null}
 */
function clean(canvas) {
  const pen = canvas.getContext("2d"), sharp = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (!pen || !width || !height) return null;
  const [wide, high] = [Math.round(width * sharp), Math.round(height * sharp)];
  if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, { width: wide, height: high });
  pen.setTransform(sharp, 0, 0, sharp, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

/**
 * @param {CanvasRenderingContext2D} pen @param {Palette} palette
 * @param {string} words @param {number} x @param {number} y the baseline
 * @param {{fill?: string, align?: CanvasTextAlign, weight?: string, rim?: boolean}} [look] rim: readable across a line
 */
function write(pen, palette, words, x, y, { fill = palette.ink, align = "left", weight = "normal", rim = false } = {}) {
  pen.font = `${weight} ${SMALL}px ${palette.font}`;
  pen.textAlign = align;
  if (rim) {
    pen.strokeStyle = palette.paper;
    pen.lineWidth = 3;
    pen.lineJoin = "round";
    pen.strokeText(words, x, y);
  }
  pen.fillStyle = fill;
  pen.fillText(words, x, y);
}

export { SMALL, TINTS, TINT_INK, clean, paletteOf, write };
