// The capacity worksheet: how many replicas, GPUs and dollars. Python answers, on paper while a slider moves; by simulation afterwards, where a
// kernel can.
import { keepKeys, make, oneOf, say } from "./elements.js";
import { listenTo } from "./held_model.js";
import { keepLastFrames } from "./keep.js";

/**
 * One thing that is asked: a choice, or a number.
 * @typedef {object} Field
 * @property {string} name
 * @property {string} label
 * @property {string} group
 * @property {string[]} [options] of a choice
 * @property {string} [unit] of a number
 * @property {number} [low] its ends, 0 or above
 * @property {number} [high]
 * @property {boolean} [whole]
 * @property {string | number} value
 */
/**
 * What does not change.
 * @typedef {object} SheetSpec
 * @property {Field[]} fields
 * @property {Record<string, number | null>} dollars of a GPU and hour, by card
 * @property {PaperAnswer} answer to what the fields say at first
 * @property {boolean} isSimulated a kernel refines what is asked
 */
/** @typedef {Record<string, string | number>} Values */
/**
 * @typedef {object} PaperAnswer
 * @property {string} words
 * @property {number | null} replicas null: no number of them does it
 * @property {[string, string, string][]} rows what, how much, and why
 */
/**
 * What a simulation found.
 * @typedef {object} Refined
 * @property {Values | null} asked for which values
 * @property {number} replicas
 * @property {number} low the fewest and the most that its error leaves open
 * @property {number} high
 * @property {string} trouble why there is no answer; "" = there is
 * @property {string} html where the numbers come from
 */

/** Untouched for so long, it's worth a simulation. */
const REST_MS = 800;
/** Squares of the pictogram at most: with more GPUs, each stands for several. */
const MOST_SQUARES = 320;
const NOTCHES = 200;

/** A slider's place of a value, and back: ratios where the ends are far apart. @param {Field} field */
function scaleOfField({ low = 0, high = 1, whole = false }) {
  const isRatio = low > 0 && high >= 20 * low;
  const to = (/** @type {number} */ value) => (isRatio ? Math.log(Math.max(value, low) / low) / Math.log(high / low) : (value - low) / (high - low));
  const from = (/** @type {number} */ share) => (isRatio ? low * (high / low) ** share : low + share * (high - low));
  const round = (/** @type {number} */ value) => (whole ? Math.round(value) : Number(value.toPrecision(2)));
  return { place: (/** @type {number} */ value) => Math.round(NOTCHES * Math.min(Math.max(to(value), 0), 1)),
    value: (/** @type {number} */ place) => round(from(place / NOTCHES)) };
}

/** @param {Field} field @param {(value: number) => void} changed */
function numberField(field, changed) {
  const scale = scaleOfField(field);
  const exact = make("input", { type: "number", min: field.low, step: "any", value: field.value, "aria-label": `${field.label}, exactly` });
  const slider = make("input", { type: "range", min: 0, max: NOTCHES, value: scale.place(Number(field.value)), "aria-label": field.label });
  exact.addEventListener("input", () => { slider.value = String(scale.place(Number(exact.value))); changed(Number(exact.value)); });
  slider.addEventListener("input", () => {
    exact.value = String(scale.value(Number(slider.value)));
    slider.setAttribute("aria-valuetext", exact.value);
    changed(Number(exact.value));
  });
  slider.setAttribute("aria-valuetext", exact.value);
  return make("div", { class: "mm-ask" }, make("span", { class: "mm-label" }, field.label), slider, exact, make("span", {}, field.unit ?? ""));
}

/** @param {Field} field @param {(value: string) => void} changed */
function choiceField(field, changed) {
  const one = oneOf({ label: field.label, options: field.options ?? [], names: (option) => option, chosen: String(field.value), choose: changed });
  return make("div", { class: "mm-ask mm-pick" }, make("span", { class: "mm-label" }, field.label), one.element);
}

/** The GPUs as squares, a replica's side by side. @param {HTMLElement} element @param {number} replicas @param {number} each GPUs */
function drawFleet(element, replicas, each) {
  const gpus = replicas * each, per = Math.ceil(gpus / MOST_SQUARES);
  const drawn = per === 1 ? Array(replicas).fill(each) : [Math.ceil(gpus / per)];
  element.replaceChildren(...drawn.map((count) => make("span", {}, ...Array.from({ length: count }, () => make("i")))));
  element.style.setProperty("--square", `${gpus <= 48 ? 18 : gpus <= 128 ? 12 : 8}px`);
  element.setAttribute("aria-label", `${gpus} GPUs in ${replicas} replicas${per > 1 ? `; a square is ${per} of them` : ""}`);
  element.title = element.getAttribute("aria-label") ?? "";
}

/** @param {{model: import("./view.js").Model, el: HTMLElement}} given @returns {() => void} what ends it */
function renderSheet({ model, el }) {
  /** @type {SheetSpec} */ const spec = model.get("spec");
  /** @type {Values} */ let values = Object.fromEntries(spec.fields.map((field) => [field.name, field.value]));
  let timer = 0;
  const figures = ["replicas", "GPUs", "dollars an hour"].map((name) => {
    const value = make("b", {});
    return { value, card: make("div", {}, value, make("span", {}, name)) };
  });
  const fleet = make("div", { class: "mm-fleet", role: "img" }), told = make("p", { class: "mm-sheet-told", role: "status" });
  const rows = make("div", { class: "mm-rows" }), source = make("div", { class: "mm-source" });
  const groups = [...new Set(spec.fields.map(({ group }) => group))].map((group) => make("fieldset", {}, make("legend", {}, group),
    ...spec.fields.filter((field) => field.group === group).map((field) => {
      const changed = (/** @type {string | number} */ value) => { values = { ...values, [field.name]: value }; moved(); };
      return field.options ? choiceField(field, changed) : numberField(field, changed);
    })));
  const gone = make("div", { class: "mm-gone" }, "From an earlier session: run this cell to simulate again.");
  const root = make("div", { class: "mm-dash mm-sheet", role: "group", "aria-label": "Capacity worksheet" }, gone,
    make("div", { class: "mm-answer" }, make("div", { class: "mm-figures" }, ...figures.map(({ card }) => card)), fleet), told,
    make("div", { class: "mm-asked-for" }, ...groups), rows, source);
  keepKeys(root);
  el.append(root);

  /** @param {number | null} replicas @param {string} words */
  function answer(replicas, words) {
    const each = Number(values.gpus), dollars = Number(values.price) || spec.dollars[String(values.card)];
    const written = (/** @type {number} */ count) => count.toLocaleString("en", count < 1e6 ? {} : { notation: "compact", maximumSignificantDigits: 3 });
    const shown = (/** @type {number} */ count) => (replicas ? written(count) : "–");
    say(figures[0].value, shown(replicas ?? 0));
    say(figures[1].value, shown((replicas ?? 0) * each));
    say(figures[2].value, replicas && dollars ? `$${written(Math.round(dollars * replicas * each))}` : "–");
    drawFleet(fleet, replicas ?? 0, each);
    say(told, words);
  }

  /** @param {PaperAnswer} found */
  function onPaper({ words, replicas, rows: facts }) {
    const after = spec.isSimulated ? "Let go, and it's simulated." : "Simulate your own traffic before you buy.";
    root.dataset.state = "paper";
    source.replaceChildren();
    rows.replaceChildren(...facts.map(([name, value, why]) => make("div", {}, make("span", {}, name), make("b", {}, value), make("span", { class: "mm-told" }, why))));
    answer(replicas, replicas ? `${words} ${after}` : words);
  }

  /** Whether an answer is to what the fields say now. @param {Values | null} asked */
  const isNow = (asked) => Boolean(asked) && Object.entries(values).every(([name, value]) => asked?.[name] === value);

  function moved() {
    model.set("asked", values);
    model.save_changes();
    if (!spec.isSimulated) return;
    clearTimeout(timer);
    timer = window.setTimeout(() => {
      root.dataset.state = "simulating";
      say(told, "On paper; a simulation looks for the knee …");
      model.set("rested", values);
      model.save_changes();
    }, REST_MS);
  }

  function estimated() {
    /** @type {PaperAnswer & {asked: Values | null}} */ const found = model.get("paper");
    if (isNow(found.asked)) onPaper(found);
  }

  function refined() {
    /** @type {Refined} */ const found = model.get("refined");
    if (!isNow(found.asked)) return;
    root.dataset.state = "simulated";
    const span = found.low === found.high ? "" : `, ${found.low} to ${found.high} within its error`;
    answer(found.trouble ? null : found.replicas, found.trouble || `Simulated: ${found.replicas} replicas${span}.`);
    rows.replaceChildren();
    source.innerHTML = found.html;
  }

  const end = listenTo(model, { "change:paper": estimated, "change:refined": refined });
  keepLastFrames();
  onPaper(spec.answer);
  return () => {
    clearTimeout(timer);
    end();
  };
}

export { renderSheet };
