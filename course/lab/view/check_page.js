// A lesson's check on a page, where its keys need no model: Python in the tab asks and grades.
import { make, oneOf, say, trouble } from "./elements.js";
import { noteDone } from "./progress.js";
/** @typedef {import("./late_python.js").LatePython} LatePython */
/** @typedef {{asks: string, unit: string, options: string[], many: boolean}} Question */
/** @typedef {{told: string, head: string, kept: Record<string, any>}} Graded told, head: HTML */

/** @param {Question} question @param {(written: string) => void} check */
function questionRow({ asks, unit, options, many }, check) {
  let written = "";
  const field = options.length
    ? oneOf({ label: asks, options, names: (option) => option, chosen: "", choose: (option) => { written = option; } }).element
    : make("input", { type: "text", "aria-label": asks, autocomplete: "off", placeholder: many ? "one, two, …" : "",
      oninput: (/** @type {InputEvent} */ event) => { written = /** @type {HTMLInputElement} */ (event.target).value; },
      onkeydown: (/** @type {KeyboardEvent} */ event) => { if (event.key === "Enter") check(written); } });
  const told = make("div", { role: "status" });
  const button = make("button", { type: "button", onclick: () => check(written) }, "Check");
  return { told, element: make("li", {}, make("p", {}, asks), make("div", { class: "mm-check-line" }, field, unit, button), told) };
}

/** @param {HTMLElement} el with the questions as text, and its lesson in data-check @param {LatePython} python */
function mountCheck(el, python) {
  const note = make("p", { class: "yours", role: "status" }), begin = make("button", { type: "button" }, "Answer here");
  if (python.hindrance) {
    el.prepend(make("p", { class: "yours" }, `It's graded by Python in the tab. ${python.hindrance}`));
    return;
  }
  begin.addEventListener("click", async () => {
    begin.disabled = true;
    try {
      const wait = (/** @type {string} */ words) => say(note, words || "Working out the keys …");
      const number = await python.ask("check.open", { lesson: el.dataset.check }, undefined, wait);
      const { questions, head } = await python.ask("check.questions", {}, number, wait);
      el.replaceChildren(...card(questions, head, (given) => python.ask("check.answer", given, number, () => {})));
      el.dataset.isLive = "yes";
      /** @type {HTMLElement | null} */ (el.querySelector("input, button"))?.focus();
    } catch (error) {
      begin.disabled = false;
      say(note, trouble(error));
    }
  });
  el.prepend(begin, note);
}

/** @param {Record<string, Question>} questions @param {string} head @param {(given: Record<string, unknown>) => Promise<Graded>} grade */
function card(questions, head, grade) {
  const top = make("div", {});
  top.innerHTML = head;
  const rows = Object.entries(questions).map(([name, question]) => {
    const row = questionRow(question, async (written) => {
      if (!written) { say(row.told, "Answer first."); return; }
      say(row.told, "Checking …"); // some keys are worked out by simulating, for seconds
      try {
        const graded = await grade({ question: name, written });
        row.told.innerHTML = graded.told;
        top.innerHTML = graded.head;
        noteDone(graded.kept);
      } catch (error) {
        say(row.told, trouble(error));
      }
    });
    return row;
  });
  return [top, make("ol", { class: "mm-dash mm-check" }, ...rows.map(({ element }) => element))];
}

export { mountCheck };
