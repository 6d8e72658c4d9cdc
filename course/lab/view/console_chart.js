// Charts of the incident console: drawn as wide as their place, so that type keeps its size; colours are the page's.

const SVG = "http://www.w3.org/2000/svg";
const TYPE_PX = 11;
const TOP_PX = 8;
/** Pixels beside the axes, for what is written there. */
const MARGIN = { left: 40, right: 8, bottom: 30 };
const DOT_PX = 2;

/**
 * @typedef {import("./console_types.js").Panel} Panel
 * @typedef {{left: number, right: number, bottom: number}} Margin
 * @typedef {{x: (value: number) => number, y: (value: number) => number, left: number, right: number, floor: number}} Scales left, right, floor: where the axes end, px
 */

/** @param {string} name @param {Record<string, string | number>} attributes @param {...(Node | string)} children */
function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  element.append(...children);
  return element;
}

/** @param {number} x @param {number} y the baseline @param {string} words @param {string} look @param {"start" | "middle" | "end"} anchor */
const word = (x, y, words, look = "", anchor = "start") => draw("text", { x, y, class: look, "font-size": TYPE_PX, "text-anchor": anchor }, words);

/** Round numbers from low to high, about so many. @param {number} low @param {number} high @param {number} count @returns {number[]} */
function ticks(low, high, count) {
  const raw = (high - low || 1) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5, 10].find((each) => each * power >= raw) ?? 10);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + 1e-9 * step; at += 1) found.push(at * step);
  return found;
}

/** @param {number} value */
function short(value) {
  const size = Math.abs(value);
  if (size >= 10_000) return `${Math.round(value / 1000)}k`;
  return String(Number(value.toPrecision(3))).replace("-", "−");
}

/**
 * An empty drawing with both axes.
 * @param {SVGElement} svg its size is that of its place
 * @param {{x: [number, number], y: [number, number], xLabel: string, yLabel: string, yTick?: (value: number) => string, margin?: Margin}} axes
 * @returns {Scales | null} null: it isn't on screen
 */
function axes(svg, { x: [first, last], y: [low, high], xLabel, yLabel, yTick = short, margin = MARGIN }) {
  const width = svg.clientWidth, height = svg.clientHeight, { left } = margin, right = width - margin.right, floor = height - margin.bottom, top = TOP_PX + 14;
  svg.replaceChildren();
  if (right < left + 20 || floor < top + 20) return null;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const x = (/** @type {number} */ value) => left + ((value - first) / (last - first || 1)) * (right - left);
  const y = (/** @type {number} */ value) => floor - ((value - low) / (high - low || 1)) * (floor - top);
  for (const at of ticks(low, high, 3)) {
    svg.append(draw("line", { x1: left, x2: right, y1: y(at), y2: y(at), class: "mm-grid" }), word(left - 5, y(at) + 4, yTick(at), "mm-tick", "end"));
  }
  for (const at of ticks(first, last, width / 75)) svg.append(word(x(at), floor + 13, short(at), "mm-tick", "middle"));
  svg.append(word(0, TOP_PX + 2, yLabel, "mm-tick"), word(right, floor + 26, xLabel, "mm-tick", "end"));
  return { x, y, left, right, floor };
}

/** @param {[number, number | null][]} points @param {Scales} scales */
function pathOf(points, { x, y }) {
  let isOn = false;
  return points.map(([at, value]) => {
    if (value === null) {
      isOn = false;
      return "";
    }
    const step = `${isOn ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    isOn = true;
    return step;
  }).join("");
}

/** A panel of a dashboard. @param {SVGElement} svg @param {Panel} panel */
function drawPanel(svg, panel) {
  const points = panel.lines.flatMap((each) => each.points).filter(([, value]) => value !== null);
  const xs = points.map(([x]) => x), ys = points.map(([, y]) => /** @type {number} */ (y));
  const top = panel.high ?? Math.max(...ys, panel.limit ?? 0, 1e-9) * 1.06;
  const scales = axes(svg, { x: [Math.min(...xs), Math.max(...xs)], y: [0, top], xLabel: panel.x, yLabel: panel.y });
  if (!scales) return;
  if (panel.limit !== null) {
    const at = scales.y(panel.limit);
    svg.append(draw("line", { x1: scales.left, x2: scales.right, y1: at, y2: at, class: "mm-limit" }), word(scales.left + 4, at - 3, panel.limit_name, "mm-limitname"));
  }
  let legend = scales.right;
  panel.lines.forEach((each, i) => {
    if (each.style === "points") {
      for (const [x, y] of each.points) {
        if (y !== null) svg.append(draw("circle", { cx: scales.x(x), cy: scales.y(y), r: DOT_PX, class: `mm-dot mm-series${i % 4}` }));
      }
      return;
    }
    // The second is dashed: where two lie on each other, both are seen.
    svg.append(draw("path", { d: pathOf(each.points, scales), class: `mm-path mm-series${i % 4}`, ...(i === 1 ? { "stroke-dasharray": "6 4" } : {}) }));
  });
  for (const [i, each] of [...panel.lines.entries()].reverse()) {
    if (panel.lines.length < 2) break;
    svg.append(word(legend, TOP_PX + 2, each.name, "mm-legend", "end"));
    legend -= each.name.length * 6.2 + 6;
    svg.append(draw("line", { x1: legend - 18, x2: legend, y1: TOP_PX - 2, y2: TOP_PX - 2, class: `mm-path mm-series${i % 4}`, ...(i === 1 ? { "stroke-dasharray": "6 4" } : {}) }));
    legend -= 30;
  }
}

/**
 * The failure curve: which share of requests missed the SLO, by the minute in which they arrived.
 * @param {SVGElement} svg @param {import("./console_types.js").State} state
 * @param {number} now the minute up to which it is drawn: it moves
 * @param {Margin} margin
 * @returns {Scales | null}
 */
function drawFailures(svg, state, now, margin = MARGIN) {
  const { relief, target, onset } = state, percent = (/** @type {number} */ share) => `${Math.round(100 * share)}%`;
  const scales = axes(svg, { x: [onset, Math.max(now, 2)], y: [0, 1], xLabel: "minutes since the page", yLabel: "requests that missed the SLO, by arrival", yTick: percent, margin });
  if (!scales) return null;
  const { x, y, floor } = scales, until = Math.min(now, relief?.minute ?? now), points = state.curve.filter(([minute]) => minute <= until), allowed = y(1 - target);
  if (points.length) {
    points.push([until, points[points.length - 1][1]]); // a point is the middle of its minutes
    const line = pathOf(points, scales);
    svg.append(draw("path", { d: `${line}L${x(until).toFixed(1)} ${floor}L${x(points[0][0]).toFixed(1)} ${floor}Z`, class: "mm-burning" }), draw("path", { d: line, class: "mm-failing" }));
  }
  if (relief && now > relief.minute) svg.append(draw("line", { x1: x(relief.minute), x2: x(now), y1: y(relief.failing), y2: y(relief.failing), class: "mm-healed" }));
  const isLate = x(0) > scales.right - 40;
  svg.append(draw("line", { x1: scales.left, x2: scales.right, y1: allowed, y2: allowed, class: "mm-allowed" }), word(scales.left + 4, allowed - 4, `${percent(1 - target)} allowed`, "mm-legend"),
    draw("line", { x1: x(0), x2: x(0), y1: y(1), y2: floor, class: "mm-paged" }), word(x(0) + (isLate ? -4 : 4), y(0.5) + 4, "paged", "mm-legend", isLate ? "end" : "start"));
  return scales;
}

export { draw, drawFailures, drawPanel, word };
