// An exercise on a page: an editor, the course's own judge, hints with their prices, and the engine with one's own part in it.
import { make, say } from "./elements.js";
import { heldModel } from "./held_model.js";
import { Refused, TabPython } from "./port.js";
import { noteExercise, standingOf } from "./progress.js";
import { render } from "./view.js";
/** @typedef {import("./trace.js").Trace} Trace */

/**
 * What the page knows of it (course/tab/exercises.py).
 * @typedef {object} Workpiece
 * @property {string} id
 * @property {number} points
 * @property {string} stub
 * @property {{text: string, cost: number}[]} hints
 * @property {string} serves what its part does in the engine; "" = it is none
 */
/** @typedef {{name: string, earned: number, possible: number, feedback: string}} Criterion */

/** An answer that isn't done by then is stopped: the tab's Python is started anew. */
const PATIENCE_MS = 120_000;
const INDENT = "    ";

/** What was written in this browser. @param {string} id @param {string} stub where nothing was */
function keptText(id, stub) {
  try { return localStorage.getItem(`minillm-answer-${id}`) ?? stub; } catch { return stub; }
}

/** A browser may refuse to keep anything. @param {string} id @param {string} text */
function keepText(id, text) {
  try { localStorage.setItem(`minillm-answer-${id}`, text); } catch { /* not kept */ }
}

/** It took too long. */
class Late extends Refused {}

/**
 * An answer, or a refusal where it doesn't come in time.
 * @param {Promise<any>} answer @param {number} patience ms @returns {Promise<any>}
 */
async function inTime(answer, patience) {
  let timer = 0;
  const late = new Promise((_, failed) => {
    timer = setTimeout(() => failed(new Late(`stopped: not done after ${patience / 1000} s. Is there a loop that never ends?`)), patience);
  });
  try {
    return await Promise.race([answer, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** A run beside another one, to look through. @param {Trace} run @param {Trace} before @returns {import("./view.js").Model} */
function besideModel(run, before) {
  return heldModel({
    spec: { controls: [], start: {}, traffics: [{ name: run.traffic, about: run.about }], own: "", recipes: [], where: "", isRecorded: true },
    settings: { traffic: run.traffic, seed: 0, prompt: "", patterns: false, fields: {} }, status: { state: "idle", words: "" },
    shown: { id: 1, run, before, beforeName: "built-in", noise: {}, pinned: [], note: "", recipe: "" },
  });
}

/** Tab and Enter as in an editor; Escape, then Tab, leaves it. @param {HTMLTextAreaElement} editor @param {() => void} changed */
function editing(editor, changed) {
  let isLeaving = false;
  editor.addEventListener("keydown", (event) => {
    if (event.key === "Escape") isLeaving = true;
    else if (event.key === "Tab" && !isLeaving) {
      event.preventDefault();
      if (event.shiftKey) dedent(editor);
      else put(editor, INDENT);
    } else if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      const before = editor.value.slice(0, editor.selectionStart), line = before.slice(before.lastIndexOf("\n") + 1);
      put(editor, `\n${/^ */.exec(line)?.[0] ?? ""}${line.trimEnd().endsWith(":") ? INDENT : ""}`);
    } else if (event.key !== "Shift") isLeaving = false;
    changed();
  });
  editor.addEventListener("input", changed);
}

/** @param {HTMLTextAreaElement} editor @param {string} text */
function put(editor, text) {
  editor.setRangeText(text, editor.selectionStart, editor.selectionEnd, "end");
}

/** Takes one indent from the line of the caret. @param {HTMLTextAreaElement} editor */
function dedent(editor) {
  const start = editor.value.lastIndexOf("\n", editor.selectionStart - 1) + 1, at = editor.selectionStart;
  const most = Math.min(/^ */.exec(editor.value.slice(start))?.[0].length ?? 0, INDENT.length);
  editor.setRangeText("", start, start + most, "preserve");
  editor.selectionStart = editor.selectionEnd = Math.max(at - most, start);
}

/** @param {string} name @param {string} text */
function savedAsFile(name, text) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "text/x-python" })), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

/** @param {HTMLElement} el with the exercise as JSON in data-exercise, and the worker's script in data-python */
function mountExercise(el) {
  /** @type {Workpiece} */ const work = JSON.parse(el.dataset.exercise ?? "");
  const costs = work.hints.map(({ cost }) => cost), { best, hints: hintsRead } = standingOf(work.id, work.points, costs);
  let numHints = hintsRead;
  /** @type {TabPython | null} */ let python = null;
  let endBeside = () => {};

  const editor = make("textarea", { class: "mm-editor", spellcheck: false, autocapitalize: "off", "aria-label": "Your answer, Python", rows: Math.min(keptText(work.id, work.stub).split("\n").length + 4, 40) });
  const outcome = make("div", { class: "mm-outcome", role: "status" }), hints = make("ol", { class: "mm-hints" }), beside = make("div", {});
  const checkButton = make("button", { type: "button", class: "mm-run", onclick: () => void check() }, "Check");
  const serveButton = make("button", { type: "button", onclick: () => void serve() }, "Serve with mine");
  const hintButton = make("button", { type: "button", onclick: () => { numHints += 1; noteExercise(work.id, { event: "hint", number: numHints }); showHints(); } });
  const backButton = make("button", { type: "button", onclick: () => { if (confirm("Replace what you've written with the starter file?")) { editor.value = work.stub; keep(); } } }, "Start over");
  const fileButton = make("button", { type: "button", onclick: () => savedAsFile(`${work.id.replaceAll("-", "_")}.py`, editor.value) }, "Save as a file");
  const bar = make("div", { class: "mm-bar" }, checkButton, ...(work.serves ? [serveButton] : []), hintButton, fileButton, backButton);
  const root = make("div", { class: "mm-dash mm-workshop" }, editor, bar, hints, outcome, beside);
  editor.value = keptText(work.id, work.stub);
  el.replaceChildren(root);
  editing(editor, keep);
  showHints();
  if (best) say(outcome, `Your best so far: ${best} of ${work.points} points.`);

  function keep() {
    keepText(work.id, editor.value);
  }

  function showHints() {
    hints.replaceChildren(...work.hints.slice(0, numHints).map(({ text }) => make("li", {}, text)));
    const next = work.hints[numHints];
    hintButton.hidden = !next;
    if (next) say(hintButton, `Hint ${numHints + 1} of ${work.hints.length} (costs ${Number(next.cost.toFixed(2))} points)`);
  }

  /** Asks the tab's Python, which is started for the first question. @param {string} name @returns {Promise<any>} */
  async function ask(name) {
    checkButton.disabled = serveButton.disabled = true;
    python ??= new TabPython(new URL(el.dataset.python ?? "", document.baseURI), (stage) => say(outcome, stage ? `Python is starting in this tab: ${stage} …` : "Checking …"));
    say(outcome, "Asking Python …");
    try {
      return await inTime(python.ask(name, { exercise: work.id, text: editor.value }), PATIENCE_MS);
    } catch (error) {
      if (error instanceof Late || !(error instanceof Refused)) {
        python.end();
        python = null;
      }
      say(outcome, error instanceof Error ? error.message : String(error));
      return null;
    } finally {
      checkButton.disabled = serveButton.disabled = false;
    }
  }

  async function check() {
    /** @type {{criteria: Criterion[], seed: number, printed: string} | null} */ const graded = await ask("exercise.check");
    if (!graded) return;
    const earned = graded.criteria.reduce((sum, each) => sum + each.earned, 0);
    const cost = costs.slice(0, numHints).reduce((sum, each) => sum + each, 0);
    noteExercise(work.id, { event: "attempt", seed: graded.seed, score: earned, max_score: work.points, hints: numHints });
    const items = graded.criteria.map(({ name, earned: got, possible, feedback }) =>
      make("li", { class: got === possible ? "mm-right-part" : "mm-wrong-part" }, make("b", {}, `${got === possible ? "✓" : got ? "◐" : "✗"} ${name} (${Number(got.toFixed(2))}/${possible}) `), feedback));
    outcome.replaceChildren(make("b", {}, `${Number(earned.toFixed(2))} of ${work.points}`), cost ? ` · hints cost ${Number(cost.toFixed(2))}` : "", make("ul", {}, ...items),
      make("p", {}, `Seed ${graded.seed}; every check asks new questions.`), ...(graded.printed ? [make("p", {}, "Your code printed:"), make("pre", {}, graded.printed)] : []));
  }

  async function serve() {
    /** @type {{ours: Trace, yours: Trace, notes: string[]} | null} */ const served = await ask("exercise.serve");
    if (!served) return;
    say(outcome, served.notes.length ? served.notes.join(" ") : "Your part served this traffic from beginning to end, on a simulated GPU; the engine's own is beside it.");
    endBeside();
    beside.replaceChildren();
    endBeside = render({ model: besideModel(served.yours, served.ours), el: beside });
  }
}

export { editing, inTime, keepText, keptText, mountExercise, savedAsFile };
