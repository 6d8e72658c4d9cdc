// What can be changed, grouped by the phase it acts on. What was changed is marked, and can be taken back alone.
import { make, oneOf } from "./elements.js";
import { shown } from "./say.js";
import { PHASE_NAMES } from "./trace.js";

/**
 * @typedef {object} Control
 * @property {string} field EngineConfig's name for it
 * @property {string} label
 * @property {string} help
 * @property {string} phase
 * @property {boolean} first shown at once; the others behind "more"
 * @property {unknown[]} choices none: a switch
 * @property {Record<string, string>} names of choices, where they aren't their own
 */
/** @typedef {Record<string, unknown>} Fields */

/** So many choices in words stand side by side; more, or numbers, are stepped through. */
const MOST_SIDE_BY_SIDE = 3;

/**
 * @param {Control[]} controls @param {Fields} start @param {(fields: Fields) => void} changed
 * @returns {{element: HTMLElement, set: (fields: Fields) => void, hold: (held: boolean) => void}}
 */
function controlPanel(controls, start, changed) {
  let fields = { ...start }, isHeld = false;
  /** @type {(() => void)[]} */ const refreshers = [];
  const refresh = () => refreshers.forEach((each) => each());
  /** @param {string} field @param {unknown} value */
  function choose(field, value) {
    fields = { ...fields, [field]: value };
    refresh();
    changed(fields);
  }

  /** @param {Control} control */
  function line(control) {
    const { field, label, help, phase, names } = control;
    const inner = control.choices.length ? chooser(control) : toggle(control);
    const back = make("button", { type: "button", class: "mm-back", onclick: () => choose(field, start[field]) }, "↺");
    const element = make("div", { class: "mm-control", title: help, style: `--phase: var(--mm-${phase})` },
      make("span", { class: "mm-label" }, label), back, inner);
    refreshers.push(() => {
      const isChanged = fields[field] !== start[field];
      element.classList.toggle("mm-changed", isChanged);
      back.disabled = !isChanged || isHeld;
      back.setAttribute("aria-label", `${label}: back to ${shown(start[field], names)}`);
      back.title = `back to ${shown(start[field], names)}`;
    });
    return element;
  }

  /** @param {Control} control */
  function toggle({ field, label }) {
    const button = make("button", { type: "button", class: "mm-switch", role: "switch", "aria-label": label,
      onclick: () => choose(field, !fields[field]) });
    refreshers.push(() => {
      button.setAttribute("aria-checked", String(Boolean(fields[field])));
      button.disabled = isHeld;
    });
    return button;
  }

  /** @param {Control} control */
  function chooser({ field, label, choices, names }) {
    if (choices.length <= MOST_SIDE_BY_SIDE && choices.every((choice) => typeof choice === "string")) {
      const one = oneOf({ label, options: choices, names: (choice) => shown(choice, names), chosen: fields[field],
        choose: (choice) => choose(field, choice) });
      refreshers.push(() => { one.set(fields[field]); one.hold(isHeld); });
      return one.element;
    }
    return stepper(field, label, choices, names);
  }

  /** @param {string} field @param {string} label @param {unknown[]} choices @param {Record<string, string>} names */
  function stepper(field, label, choices, names) {
    const value = make("span", { class: "mm-value" });
    /** @param {number} by */
    function step(by) {
      const next = choices[choices.indexOf(fields[field]) + by];
      if (next !== undefined && !isHeld) choose(field, next);
    }
    const less = make("span", { class: "mm-less", onclick: () => step(-1) }, "−");
    const more = make("span", { class: "mm-more", onclick: () => step(1) }, "+");
    const spin = make("div", { class: "mm-stepper", role: "spinbutton", tabindex: 0, "aria-label": label, "aria-valuemin": 0,
      "aria-valuemax": choices.length - 1,
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
        if (!by) return;
        event.preventDefault();
        step(by);
      } }, less, value, more);
    refreshers.push(() => {
      const place = choices.indexOf(fields[field]);
      value.textContent = shown(fields[field], names);
      spin.setAttribute("aria-valuenow", String(place));
      spin.setAttribute("aria-valuetext", value.textContent);
      spin.setAttribute("aria-disabled", String(isHeld));
      less.classList.toggle("mm-end", place <= 0);
      more.classList.toggle("mm-end", place === choices.length - 1);
    });
    return spin;
  }

  const element = make("div", { class: "mm-controls", role: "group", "aria-label": "Techniques" });
  const rest = make("div", { class: "mm-rest" });
  for (const [home, wanted] of /** @type {[HTMLElement, boolean][]} */ ([[element, true], [rest, false]])) {
    for (const phase of Object.keys(PHASE_NAMES)) {
      const here = controls.filter((control) => control.phase === phase && control.first === wanted);
      if (!here.length) continue;
      home.append(make("div", { class: "mm-group", style: `--phase: var(--mm-${phase})` }, PHASE_NAMES[phase]), ...here.map(line));
    }
  }
  if (rest.childElementCount) {
    element.append(make("details", { class: "mm-others" },
      make("summary", {}, `${controls.filter((control) => !control.first).length} more`), rest));
  }
  refresh();
  return {
    element,
    set: (now) => { fields = { ...now }; refresh(); },
    hold: (held) => { isHeld = held; refresh(); },
  };
}

export { controlPanel };
