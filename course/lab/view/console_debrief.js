// What the console shows when it's over: what was asked, what was deployed and what was true, over the failure curve.
import { percent } from "./console_alarm.js";
import { draw, drawFailures, word } from "./console_chart.js";
import { make } from "./elements.js";
/** @typedef {import("./console_types.js").State} State */
/** @typedef {import("./console_types.js").Debrief} Debrief */
/** @typedef {import("./console_types.js").Do} Do */

const LANE_PX = 22, AXIS_PX = 34;
const LANES = ["asked", "deployed", "truth"];
const MARGIN_PX = { left: 58, right: 16, bottom: AXIS_PX + LANES.length * LANE_PX };

/** @param {string} kind */
const laneOf = (kind) => (kind === "asked" ? 0 : kind.startsWith("deployed") || kind.startsWith("rolled") || kind.startsWith("kept") ? 1 : kind === "committed" || kind === "suspected" ? 0 : -1);

/** @param {SVGElement} svg @param {State} state @param {Debrief} debrief */
function drawStory(svg, state, debrief) {
  const last = Math.max(state.minute, ...debrief.milestones.map((each) => each.minute ?? 0), 2);
  const scales = drawFailures(svg, state, last, MARGIN_PX);
  if (!scales) return;
  const lane = (/** @type {number} */ i) => scales.floor + AXIS_PX + (i + 0.5) * LANE_PX;
  LANES.forEach((name, i) => svg.append(draw("line", { x1: scales.left, x2: scales.right, y1: lane(i), y2: lane(i), class: "mm-grid" }), word(0, lane(i) + 4, name, "mm-tick")));
  for (const [i, { name, minute }] of debrief.milestones.entries()) {
    if (minute === null) continue;
    const x = scales.x(minute), isLeft = x > scales.right - 130;
    svg.append(draw("line", { x1: x, x2: x, y1: scales.y(1), y2: lane(2), class: "mm-milestone" }),
      word(x + (isLeft ? -4 : 4), scales.y(1) + 12 + 14 * i, `${name}, ${minute} min`, "mm-legend mm-named", isLeft ? "end" : "start"));
  }
  for (const event of state.events) {
    const at = laneOf(event.kind);
    if (at < 0) continue;
    const done = state.deployed.find((each) => each.minute === event.minute && event.words === each.names);
    const look = at === 0 ? (event.kind === "asked" ? "mm-mark-asked" : "mm-mark-said") : event.kind.startsWith("rolled") ? "mm-mark-back" : done?.restored ? "mm-mark-fixed" : "mm-mark-failed";
    const x = scales.x(event.minute), y = lane(at);
    const shape = at === 0 && event.kind === "asked" ? draw("circle", { cx: x, cy: y, r: 4, class: look })
      : at === 0 ? draw("rect", { x: x - 4, y: y - 4, width: 8, height: 8, class: look })
        : draw("path", { d: `M${x} ${y + 7}V${y - 7}L${x + 10} ${y - 3}L${x} ${y + 1}`, class: look });
    shape.append(draw("title", {}, `minute ${event.minute}, ${event.kind}${event.words ? `: ${event.words}` : ""}`));
    svg.append(shape);
  }
  const healed = state.relief?.minute ?? last;
  svg.append(draw("rect", { x: scales.x(state.onset), y: lane(2) - 7, width: Math.max(scales.x(healed) - scales.x(state.onset), 1), height: 14, class: "mm-truthbar" }));
  svg.append(word(scales.x(state.onset) + 5, lane(2) + 4, debrief.cause, "mm-truthname"));
}

/** Words, with the addresses in them as links. @param {string} words */
const linked = (words) => words.split(/(https:\/\/\S+)/).map((part, i) => (i % 2 ? make("a", { href: part, target: "_blank", rel: "noreferrer" }, part) : part));

/** @param {Debrief} debrief */
function marksOf(debrief) {
  return make("table", { class: "mm-marks" }, make("caption", { class: "mm-hide" }, "Points by criterion"), make("tbody", {}, ...debrief.criteria.map((each) => make("tr", {},
    make("th", { scope: "row" }, each.name), make("td", { class: "mm-points" }, make("i", { style: `--share:${each.possible ? each.earned / each.possible : 0}` }), `${Number(each.earned.toFixed(1))} of ${each.possible}`),
    make("td", {}, each.feedback)))));
}

/**
 * @param {Do} act @param {() => void} back shows the panes again
 * @returns {{element: HTMLElement, update: (state: State) => void, end: () => void}}
 */
function debriefPane(act, back) {
  const element = make("section", { class: "mm-debrief", "aria-label": "Debrief" });
  /** @type {State | null} */ let state = null;
  const story = document.createElementNS("http://www.w3.org/2000/svg", "svg"), changes = make("div", { class: "mm-compared" });
  story.setAttribute("role", "img");
  story.classList.add("mm-story");
  const redraw = () => { if (state?.debrief) drawStory(story, state, state.debrief); };
  const size = new ResizeObserver(redraw);
  size.observe(story);

  /** @param {Debrief} debrief */
  function compared(debrief) {
    const said = make("p", { class: "mm-said", role: "status" });
    if (!debrief.changes.length) {
      return [make("button", { type: "button", onclick: () => act({ do: "compare" }, said) }, "Simulate each change by itself"), said];
    }
    const deployed = new Set(state?.deployed.map((each) => each.names));
    return [make("ul", {}, ...debrief.changes.map((each) => make("li", { class: each.restored ? "mm-better" : "mm-worse" },
      make("div", { class: "mm-share" }, make("i", { style: `--share:${each.after};--target:${state?.target ?? 1}` }), make("b", {}, percent(each.after))),
      make("span", {}, `${each.text} (${each.effort})${deployed.has(each.text) ? ": yours" : ""}`))))];
  }

  /** @param {State} now @param {Debrief} debrief */
  function build(now, debrief) {
    const heading = make("h2", { tabindex: -1 }, `${Math.round(debrief.score)} of 100: it was ${debrief.cause}`);
    const helped = now.deployed.find((each) => each.quick && !each.canary && each.restored);
    const told = debrief.milestones.map(({ name, minute, enough }) => {
      const isUndone = name === "mitigation" && minute === null && helped;
      return make("div", { class: `mm-gauge ${minute !== null && (enough === null || minute <= enough) ? "mm-better" : "mm-worse"}` },
        make("b", {}, isUndone ? `${helped.minute} min` : minute === null ? "never" : `${minute} min`),
        make("span", {}, `to ${name}${isUndone ? ", undone later" : enough === null ? "" : `; ${enough} are enough`}`));
    });
    const panels = [debrief.missing.length ? `Without data: ${debrief.missing.join("; ")}.` : "", debrief.stale.length ? `Showed last week's data: ${debrief.stale.join("; ")}.` : ""].filter(Boolean);
    story.setAttribute("aria-label", `The incident from its onset to minute ${now.minute}. ${now.events.filter((each) => each.minute >= 0).map((each) => `Minute ${each.minute}: ${each.kind} ${each.words}`).join(". ")}`);
    element.replaceChildren(
      make("div", { class: "mm-debriefhead" }, heading, make("div", { class: "mm-gauges" }, ...told)),
      make("div", { class: "mm-debriefbody", tabindex: 0, role: "region", "aria-label": "Debrief, in full" },
        make("div", {}, story,
          make("p", { class: "mm-marks-key" }, ...["● asked", "■ suspected, committed", "⚑ deployed: green where the SLO was met"].map((words) => make("span", {}, words))),
          make("dl", {}, ...[...debrief.truth, ...panels.map((words) => ["Broken panels", words])].flatMap(([name, words]) => [make("dt", {}, name), make("dd", {}, ...linked(words))])),
          make("h3", {}, "What each change would have done"), changes),
        make("div", {}, marksOf(debrief), ...debrief.notes.map((words) => make("p", {}, words)),
          make("p", { class: "mm-share-line" }, make("code", {}, debrief.share)))),
      make("div", { class: "mm-foot" }, make("button", { type: "button", onclick: back }, "Look at the evidence again")));
    heading.focus({ preventScroll: true });
    heading.scrollIntoView({ block: "nearest" }); // on a phone it stands far above the button that was pressed
  }

  return {
    element,
    update(now) {
      const isNew = state === null && now.debrief !== null;
      if (!now.debrief) return;
      state = now;
      if (isNew) build(now, now.debrief);
      changes.replaceChildren(...compared(now.debrief));
      redraw();
    },
    end: () => size.disconnect(),
  };
}

export { debriefPane };
