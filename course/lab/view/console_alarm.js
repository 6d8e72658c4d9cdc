// The console's left: the alarm, the clock, what burns, and the failure curve as far as it has come.
import { drawFailures } from "./console_chart.js";
import { make, say } from "./elements.js";
/** @typedef {import("./console_types.js").State} State */

const MS_A_MINUTE = 90, LONGEST_MS = 1500;
/** Shares of the month's error budget from which its bar changes colour: 2% in an hour is what pages people. */
const AMBER = 0.02, RED = 0.05;

/** A figure's unit stays on its line. @param {string} words */
const unbroken = (words) => words.replace(/(\d) (?=(?:µs|ms|s|min|GB)\b)/g, "$1\u00a0");

/** @param {number} share */
const percent = (share) => `${Math.round(100 * share)}%`;

/** @returns {{element: HTMLElement, update: (state: State) => void, end: () => void}} */
function alarmPane() {
  const alarm = make("p", { class: "mm-alarmed" }), told = make("div", { class: "mm-briefing", tabindex: 0, role: "region", "aria-label": "The service and its SLO" });
  const [minute, failing, waiting, burned] = ["mm-minute", "", "", ""].map((look) => make("b", { class: look }));
  const fill = make("i"), bar = make("div", { class: "mm-budget", role: "meter", "aria-label": "Error budget of the month, burned", "aria-valuemin": 0, "aria-valuemax": 100 }, fill);
  const gauge = (/** @type {HTMLElement} */ value, /** @type {string} */ words) => make("div", { class: "mm-gauge" }, value, make("span", {}, words));
  const burnedWords = make("span", {});
  const failingWords = make("span", {}, "missed the SLO so far");
  const gauges = make("div", { class: "mm-gauges" }, gauge(minute, "minutes since the page"), make("div", { class: "mm-gauge" }, failing, failingWords),
    gauge(waiting, "requests waiting"), make("div", { class: "mm-gauge mm-wide" }, burned, burnedWords, bar));
  const chart = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  chart.setAttribute("role", "img");
  chart.classList.add("mm-failures");
  const element = make("section", { class: "mm-pane mm-alarm", "aria-label": "Alarm" }, make("h2", {}, "You've been paged"), alarm, gauges, chart, told);
  /** @type {State | null} */ let state = null;
  /** What is on screen: it follows the state. */
  const shown = { minute: 0, failing: 0, waiting: 0, burned: 0 };
  let from = { ...shown }, began = 0, lasts = 0, timer = 0;

  function show() {
    if (!state) return;
    say(minute, String(Math.round(shown.minute)));
    say(failing, state.relief ? `${state.relief.minute} min` : percent(shown.failing));
    say(failingWords, state.relief ? "until users were helped" : "missed the SLO so far");
    say(waiting, state.relief ? "–" : String(Math.round(shown.waiting)));
    say(burned, `${(100 * shown.burned).toFixed(1)}%`);
    say(burnedWords, `of the month's error budget burned${state.relief ? "" : `, at ${Math.round(state.rate)} times the rate it allows`}`);
    fill.style.width = percent(Math.min(shown.burned, 1));
    bar.dataset.level = shown.burned >= RED ? "red" : shown.burned >= AMBER ? "amber" : "calm";
    bar.setAttribute("aria-valuenow", String(Math.round(100 * Math.min(shown.burned, 1))));
    element.classList.toggle("mm-calm", state.relief !== null);
    drawFailures(chart, state, shown.minute);
  }

  /** @param {number} at ms */
  function frame(at) {
    timer = 0;
    if (!state) return;
    const done = lasts ? Math.min(Math.max(at - began, 0) / lasts, 1) : 1;
    for (const name of /** @type {(keyof typeof shown)[]} */ (Object.keys(shown))) shown[name] = from[name] + done * (state[name] - from[name]);
    show();
    if (done < 1) timer = requestAnimationFrame(frame);
  }

  const size = new ResizeObserver(show);
  size.observe(chart);
  return {
    element,
    update(now) {
      const isFirst = state === null;
      state = now;
      const { page } = now;
      say(alarm, unbroken(page.alarm));
      if (isFirst) told.append(...[page.story, page.service, page.promise, `Simulated, with ${page.basis}.`].filter(Boolean).map((words) => make("p", {}, unbroken(words))));
      chart.setAttribute("aria-label", `Minute ${now.minute}: ${percent(now.failing)} of requests missed the SLO so far, ${percent(1 - now.target)} may.`);
      from = { ...shown };
      began = performance.now();
      const isStill = isFirst || matchMedia("(prefers-reduced-motion: reduce)").matches;
      lasts = isStill ? 0 : Math.min(MS_A_MINUTE * Math.abs(now.minute - shown.minute), LONGEST_MS);
      if (isStill) frame(began);
      else if (!timer) timer = requestAnimationFrame(frame);
    },
    end() {
      cancelAnimationFrame(timer);
      size.disconnect();
    },
  };
}

export { alarmPane, percent };
