// A drill, one step a screen: the clock and what's next always in sight. It knows a port and nothing of who answers there.
import { countdown } from "./countdown.js";
import { verdictOf } from "./drill_verdict.js";
import { make, say, trouble } from "./elements.js";
import { fieldOf, paragraphs, searchOf } from "./fields.js";
import { listenTo } from "./held_model.js";
import { kernelPort } from "./kernel_port.js";
/** @typedef {import("./drill_types.js").State} State */
/** @typedef {import("./drill_types.js").Action} Action */

/** @type {Record<string, string>} What each step is. */
const COMES = {
  Write: "Read the prompt, ask the interviewer what you need, and write as you would speak.",
  Commit: "What dominates, what comes second, the number that's asked for, fixes in order, and what would change your mind.",
  Pushback: "The interviewer pushes back, one question at a time.",
  Statements: "Eight sentences about this case: true or not, and how sure are you?",
  Calibration: "Grade two sample answers.",
  Yourself: "Grade your own answer, quoting from it.",
  Verdict: "A level, as far as it can be computed, and why.",
};

/**
 * @param {HTMLElement} el @param {import("./drill_types.js").Port} port @param {State} start
 * @param {string} startClass of the button that starts the clock
 * @returns {{show: (state: State) => void, end: () => void}}
 */
function mountDrill(el, port, start, startClass = "") {
  let state = start, shownStep = "", isBusy = false;
  /** @type {() => Action} */ let onward = () => ({ do: "look" });
  const steps = make("ol", { class: "mm-steps", "aria-label": "Steps" }), clock = countdown(start.clock);
  const heading = make("h2", { tabindex: -1 }), stage = make("div", { class: "mm-stagebody" }), next = make("p", { class: "mm-next" }), said = make("p", { class: "mm-said", role: "status" });
  const on = make("button", { type: "button", class: "mm-run", onclick: () => act(onward()) });
  const gone = make("p", { class: "mm-gone" }, "From an earlier session: run this cell to take it.");
  const root = make("div", { class: "mm-dash mm-drill", role: "group", "aria-label": start.title, "data-lm-suppress-shortcuts": "true" }, gone,
    make("div", { class: "mm-drillhead" }, make("strong", {}, start.title), steps, clock.element), heading, stage, make("div", { class: "mm-foot" }, next, said, on));
  el.append(root);

  /** @param {Action} action */
  async function act(action) {
    if (isBusy) return;
    isBusy = true;
    root.setAttribute("aria-busy", "true");
    try {
      const after = await port.ask(action);
      said.textContent = "";
      show(after);
    } catch (problem) {
      said.textContent = trouble(problem);
    } finally {
      isBusy = false;
      root.removeAttribute("aria-busy");
    }
  }

  const told = make("div", { class: "mm-told-facts", role: "status" }), asked = make("p", { class: "mm-lead" });
  function tellFacts() {
    told.replaceChildren(...state.asking.told.map(({ asks, says }) => make("p", {}, make("b", {}, `${asks} `), says)));
    say(asked, `You may ask ${state.asking.left} more.`);
  }

  function context() {
    stage.replaceChildren(make("p", {}, "The prompt appears when the clock starts. The clock never stops you: running over is information."),
      make("dl", { class: "mm-plan" }, ...state.steps.flatMap((name) => (COMES[name] ? [make("dt", {}, name), make("dd", {}, COMES[name])] : []))));
    on.className = `mm-run ${startClass}`.trim();
    say(on, `Start ${Math.round(state.clock.total / 60)} minutes`);
    onward = () => ({ do: "start" });
  }

  function writing() {
    const text = make("textarea", { rows: 14, "aria-label": "Your answer", placeholder: "Write as you would speak." });
    const menu = searchOf({ key: "", label: "Ask the interviewer", options: state.asking.options, about: "", long: false });
    const ask = make("button", { type: "button", onclick: () => act({ do: "ask", fact: menu.value() }) }, "Ask");
    const asking = make("div", { class: "mm-asking" }, make("h3", {}, "Ask the interviewer"), make("div", { class: "mm-askline" }, menu.element, ask), asked, told);
    asking.hidden = !state.asking.options.length;
    stage.replaceChildren(make("div", { class: "mm-writing" }, make("div", {}, make("div", { class: "mm-asks-this" }, ...paragraphs(state.prompt)), asking), text));
    on.className = "mm-run";
    say(on, "Hand in");
    onward = () => ({ do: "hand_in", text: text.value });
  }

  /** @param {import("./drill_types.js").Stage} given */
  function answering(given) {
    const fields = given.fields.map((field) => ({ key: field.key, ...fieldOf(field) }));
    const behind = make("details", { class: "mm-behind" }, make("summary", {}, "The prompt, and what you wrote"), ...paragraphs(state.prompt), make("h3", {}, "Your answer"), ...paragraphs(state.text));
    stage.replaceChildren(behind, ...paragraphs(given.text), make("div", { class: `mm-fields mm-fields-${given.part.toLowerCase().replace(" ", "-")}` }, ...fields.map((each) => each.element)));
    say(on, given.part === "Commit" ? "Commit" : given.part === "Pushback" ? "Reply" : "Go on");
    onward = () => ({ do: "go_on", filled: Object.fromEntries(fields.map((each) => [each.key, each.value()])) });
  }

  /** @param {State} now */
  function show(now) {
    const isFirst = shownStep === "";
    state = now;
    clock.hear(now.clock);
    const problem = now.stage?.part === "Commit" ? now.stage.text : ""; // what couldn't be read: all that was filled in stays
    if (problem) say(said, problem);
    const key = JSON.stringify([now.at, now.clock.state, now.stage && [now.stage.title, problem ? "" : now.stage.text, now.stage.fields.map((each) => each.key)]]);
    steps.replaceChildren(...now.steps.map((name, i) => make("li", i === now.at ? { "aria-current": "step" } : { class: i < now.at ? "mm-past-step" : "" }, name)));
    say(next, now.at + 1 < now.steps.length ? `Then: ${now.steps[now.at + 1].toLowerCase()}` : "That's the last step.");
    tellFacts();
    root.dataset.step = now.steps[now.at];
    if (key === shownStep) return;
    shownStep = key;
    say(heading, now.verdict ? (now.verdict.level ? `Hire at ${now.verdict.level}, as far as that can be computed` : "No hire yet, as far as that can be computed") : now.stage?.title ?? (now.clock.state === "waiting" ? "Before the clock starts" : "Write as you would speak"));
    on.hidden = now.verdict !== null;
    if (now.verdict) stage.replaceChildren(...verdictOf(now.verdict));
    else if (now.stage) answering(now.stage);
    else if (now.clock.state === "waiting") context();
    else writing();
    stage.scrollTop = 0;
    if (!isFirst) (now.stage || now.verdict ? heading : stage.querySelector("textarea") ?? heading).focus({ preventScroll: true });
  }

  show(start);
  return { show, end: clock.end };
}

/**
 * In a notebook: a kernel answers.
 * @param {{model: import("./kernel_port.js").KernelModel, el: HTMLElement}} given
 */
function renderDrill({ model, el }) {
  const shown = mountDrill(el, kernelPort(model), model.get("state"), model.get("start_class"));
  const deafen = listenTo(model, { "change:state": () => shown.show(model.get("state")) });
  return () => {
    deafen();
    shown.end();
  };
}

export { mountDrill, renderDrill };
