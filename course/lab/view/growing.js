// The run that a cell plays, while it goes on: its timeline alone. Beside it the notebook says in words how far it is.
import { make } from "./elements.js";
import { keepLastFrames } from "./keep.js";
import { listenTo } from "./held_model.js";
import { drawingLoop } from "./loop.js";
import { paletteOf } from "./paint.js";
import { Axis, Playhead } from "./playhead.js";
import { seconds } from "./say.js";
import { drawTimeline, heightOf } from "./timeline.js";
import { extend } from "./trace.js";
/** @typedef {import("./trace.js").Trace} Trace */
/** @typedef {{id: number, run: Trace | null}} Growing another id is another run */

/** Heights, CSS pixels: a row, and the highest of all. */
const ROW = 14, MOST = 320;
/** The axis is as long from the beginning. */
const LEAST_S = 5;

/** @param {{model: import("./view.js").Model, el: HTMLElement}} given @returns {() => void} what ends it */
function renderGrowing({ model, el }) {
  const playhead = new Playhead(), axis = new Axis();
  const timeline = make("canvas", { class: "mm-timeline", role: "img", "aria-label": "The run as it goes on" });
  const root = make("div", { class: "mm-dash mm-growing" }, timeline);
  el.append(root);
  /** @type {Growing} */ let now = { id: 0, run: null };
  let palette = paletteOf(root, false), height = 0;
  const { wake, stop } = drawingLoop(root, { frame, restyle: () => { palette = paletteOf(root, false); } });

  function load() {
    const told = /** @type {Growing} */ (model.get("shown")), isNew = told.id !== now.id;
    now = structuredClone(told);
    if (!now.run) return;
    playhead.hear(now.run.end, now.run.state === "running", performance.now());
    if (isNew) {
      playhead.follow();
      axis.reset(Math.max(...now.run.rows.map(({ due }) => due + 1), now.run.end, LEAST_S));
      height = Math.max(height, heightOf(now.run, ROW, MOST)); // a cell's second run moves nothing
      timeline.style.height = `${height}px`;
    }
    wake();
  }

  /** @param {{id?: number, more?: import("./trace.js").More}} message */
  function hear({ id, more }) {
    if (!now.run || !more || id !== now.id) return;
    extend(now.run, more);
    playhead.hear(now.run.end, now.run.state === "running", performance.now());
    wake();
  }

  /** @param {number} passed @param {number} at @returns {boolean} */
  function frame(passed, at) {
    const { run } = now;
    if (!run) return false;
    const isMoving = playhead.tick(passed, at), { time } = playhead;
    const isSliding = axis.tick(time, run.state === "running" ? null : 1.02 * run.end, passed);
    drawTimeline(timeline, { run, ghost: null, time, low: axis.low, high: axis.high, row: null, cursor: isMoving }, palette);
    timeline.setAttribute("aria-label", `${run.traffic}: ${run.rows.length} requests as of ${seconds(time)}`);
    return isMoving || isSliding;
  }

  const deafen = listenTo(model, { "change:shown": load, "msg:custom": hear });
  keepLastFrames();
  load();
  if (now.run?.state === "running") model.send({ do: "whole" }); // opened in mid-run: what came before now
  return () => {
    stop();
    deafen();
  };
}

export { renderGrowing };
