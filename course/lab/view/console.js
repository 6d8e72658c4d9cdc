// The incident console: alarm, evidence, actions; at the end the debrief. It knows a port and nothing of who answers there.
import { actionsPane } from "./console_actions.js";
import { alarmPane } from "./console_alarm.js";
import { debriefPane } from "./console_debrief.js";
import { evidencePane } from "./console_evidence.js";
import { make, trouble } from "./elements.js";
import { listenTo } from "./held_model.js";
import { kernelPort } from "./kernel_port.js";
/** @typedef {import("./console_types.js").State} State */
/** @typedef {import("./console_types.js").Action} Action */
/** @typedef {import("./console_types.js").Port} Port */

/** @type {Partial<Record<Action["do"], string>>} */
const WORKING = {
  ask: "Looking …", deploy: "Simulating the same traffic, before and after …", grade: "Grading …", compare: "Simulating a dozen changes, each by itself; a minute or so …",
};

/**
 * @param {HTMLElement} el @param {Port} port @param {State} start
 * @returns {{show: (state: State) => void, end: () => void}} show: a state that came by another way
 */
function mountConsole(el, port, start) {
  let isBusy = false;
  const root = make("div", { class: "mm-dash mm-console", role: "group", "aria-label": `Incident console: ${start.title}`, "data-lm-suppress-shortcuts": "true" });

  /** @type {import("./console_types.js").Do} */
  async function act(action, beside) {
    if (isBusy) return null;
    isBusy = true;
    root.setAttribute("aria-busy", "true");
    beside.classList.remove("mm-refused");
    beside.textContent = WORKING[action.do] ?? "";
    try {
      const state = await port.ask(action);
      beside.textContent = "";
      show(state);
      return state;
    } catch (problem) {
      beside.classList.add("mm-refused");
      beside.textContent = trouble(problem);
      return null;
    } finally {
      isBusy = false;
      root.removeAttribute("aria-busy");
    }
  }

  const alarm = alarmPane(), evidence = evidencePane(), actions = actionsPane(start, act, evidence.look);
  const again = make("button", { type: "button", class: "mm-again" }, "Back to the debrief");
  const panes = make("div", { class: "mm-panes" }, alarm.element, evidence.element, actions.element);
  const debrief = debriefPane(act, () => { turn(false); again.focus(); }); // the button that was pressed is hidden
  again.addEventListener("click", () => { turn(true); debrief.element.querySelector("h2")?.focus(); });
  const practice = make("p", { class: "mm-practice" }, "Practice: you've been told this incident's cause before.");
  const gone = make("p", { class: "mm-gone" }, "From an earlier session: run this cell to play.");
  practice.hidden = !start.practice;
  root.append(gone, practice, again, panes, debrief.element);
  el.append(root);

  /** @param {boolean} toDebrief */
  function turn(toDebrief) {
    panes.hidden = toDebrief;
    debrief.element.hidden = !toDebrief;
    again.hidden = toDebrief || !root.dataset.over;
  }

  /** @param {State} state */
  function show(state) {
    for (const each of [alarm, evidence, actions]) each.update(state);
    root.dataset.minute = String(state.minute);
    if (state.debrief && !root.dataset.over) {
      root.dataset.over = "yes";
      turn(true);
    }
    debrief.update(state);
  }

  turn(false);
  show(start);
  return { show, end: () => { for (const each of [alarm, evidence, debrief]) each.end(); } };
}

/**
 * In a notebook: a kernel answers.
 * @param {{model: import("./kernel_port.js").KernelModel, el: HTMLElement}} given
 */
function renderConsole({ model, el }) {
  const shown = mountConsole(el, kernelPort(model), model.get("state"));
  const deafen = listenTo(model, { "change:state": () => shown.show(model.get("state")) });
  return () => {
    deafen();
    shown.end();
  };
}

export { mountConsole, renderConsole };
