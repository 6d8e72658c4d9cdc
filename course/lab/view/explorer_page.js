// A lesson's explorer on a page: recorded at some settings; where its figures need no model, Python in the tab draws it at all of them.
import { make, say, trouble } from "./elements.js";
import { newestOnly } from "./late_python.js";
/** @typedef {import("./late_python.js").LatePython} LatePython */
/** @typedef {import("./recorded_frames.js").Recorded} Recorded */
/** @typedef {{label: string, kind: string, stops: string[], start: number}} Control kind: "range" or "choice"; stops: what stands at each place */
/** @typedef {{place: string, given: unknown[]}} Source the function that makes it, and what a notebook gives that */

const FRAME_MS = 250;
const MEASURED = "Recorded on 2 cores, at some settings. The notebook draws every one, on your machine.";
const RECORDED = "Recorded at some settings. Move a control, and Python starts in this tab and draws every one.";
const LIVE = "Drawn in this tab, by the notebook's own Python.";

/**
 * One control: it goes from place to place.
 * @param {Control} control @param {() => void} moved
 */
function controlAt(control, moved) {
  let { stops } = control, at = control.start;
  const isRange = control.kind === "range", reading = make("b", {});
  const input = isRange ? make("input", { type: "range", min: 0, step: 1 }) : make("select", {});
  /** @param {number} place */
  function put(place) {
    at = place;
    input.value = String(place);
    reading.textContent = isRange ? ` ${stops[place]}` : "";
    if (isRange) input.setAttribute("aria-valuetext", stops[place]);
  }
  /** With more places; it stays where it is. @param {string[]} finer */
  function refine(finer) {
    const same = finer.indexOf(stops[at]), share = at / Math.max(stops.length - 1, 1);
    stops = finer;
    if (input instanceof HTMLInputElement) input.max = String(stops.length - 1);
    else input.replaceChildren(...stops.map((stop, place) => new Option(stop, String(place))));
    put(same < 0 ? Math.round(share * (stops.length - 1)) : same);
  }
  refine(stops);
  input.addEventListener("input", () => { put(Number(input.value)); moved(); });
  return { element: make("label", {}, control.label, reading, input), put, refine, at: () => at, last: () => stops.length - 1 };
}

/**
 * @param {HTMLElement} panel with its picture, and what it is in data attributes
 * @param {LatePython} python @param {(name: string) => Promise<Recorded>} load
 */
function mountExplorer(panel, python, load) {
  /** @type {Control[]} */ const known = JSON.parse(panel.dataset.controls ?? "[]");
  /** @type {Source | null} */ const source = JSON.parse(panel.dataset.explorer ?? "null");
  /** @type {number | undefined} */ let opened;
  let state = source ? python.hindrance ? "recorded" : "offered" : "recorded";
  const stage = make("div", { class: "stage" }, ...panel.childNodes), note = make("p", { class: "yours", role: "status" });
  stage.querySelector("p > em")?.parentElement?.remove(); // the settings in words: the controls show them
  const controls = known.map((control, i) => controlAt(control, () => void moved(i)));
  const strip = make("div", { class: "controls" }, ...controls.map(({ element }) => element));
  panel.classList.add("explorer");
  panel.append(strip, stage, note);
  say(note, source ? python.hindrance || RECORDED : MEASURED);

  /** @param {string} words what is waited for */
  const waits = (words) => say(note, words ? `${words} Until then: the nearest recording.` : "Drawing …");
  const redraw = newestOnly(async (/** @type {number[]} */ at) => {
    panel.setAttribute("aria-busy", "true");
    try {
      stage.innerHTML = await python.ask("explorer.draw", { at }, opened, waits);
      say(note, LIVE);
    } catch (error) {
      say(note, trouble(error));
    }
    panel.setAttribute("aria-busy", "false");
  });

  async function start() {
    state = "starting";
    try {
      const number = await python.ask("explorer.open", { ...source }, undefined, waits);
      /** @type {Control[]} */ const finer = await python.ask("explorer.controls", {}, number, waits);
      finer.forEach(({ stops }, i) => controls[i].refine(stops));
      [opened, state] = [number, "live"];
      panel.dataset.isLive = "yes";
      await redraw(controls.map((control) => control.at()));
    } catch (error) {
      state = "recorded";
      panel.setAttribute("aria-busy", "false");
      say(note, trouble(error));
    }
  }

  /** @param {number} i which control was */
  async function showRecorded(i) {
    if (state === "starting" && !navigator.onLine) return; // recordings aren't kept for later, and Python draws in a moment
    try {
      const { frames } = await load(panel.dataset.frames ?? ""), places = () => controls.map((control) => control.at()).join(",");
      if (opened !== undefined) return;
      if (!(places() in frames) && state === "recorded") { // many controls: one at a time was recorded, the others where they start
        controls.forEach((control, other) => { if (other !== i) control.put(known[other].start); });
      }
      panel.setAttribute("aria-busy", String(!(places() in frames))); // what isn't of these settings is pale
      stage.innerHTML = frames[places()] ?? stage.innerHTML;
    } catch (error) {
      stage.textContent = String(error);
    }
  }

  /** @param {number} i which control was */
  async function moved(i) {
    if (state === "live") return redraw(controls.map((control) => control.at()));
    if (state === "offered") void start();
    return showRecorded(i);
  }

  if (panel.dataset.plays === "true") strip.prepend(playButton(controls[0], () => void moved(0)));
}

/** Moves a control by itself, from wherever it stands. @param {ReturnType<typeof controlAt>} control @param {() => void} moved */
function playButton(control, moved) {
  let timer = 0;
  const button = make("button", { type: "button" }, "▶ Play");
  const stop = () => { clearInterval(timer); timer = 0; say(button, "▶ Play"); };
  const go = (/** @type {number} */ place) => { control.put(place); moved(); };
  const play = () => {
    say(button, "❚❚ Pause");
    if (control.at() === control.last()) go(0);
    timer = window.setInterval(() => (control.at() < control.last() ? go(control.at() + 1) : stop()), FRAME_MS);
  };
  button.addEventListener("click", () => (timer ? stop() : play()));
  return button;
}

export { mountExplorer };
