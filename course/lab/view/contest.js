// The number to beat on a page: an editor, one trace played in the tab, and the ladder.
import { make, say } from "./elements.js";
import { Refused, TabPython } from "./port.js";
import { editing, inTime, keepText, keptText, savedAsFile } from "./workshop.js";

/** @typedef {{goodput: number, ladder: Record<string, {goodput: number}>, lost: Record<string, Record<string, number>>, line: string}} Score course/challenge/result.py */

const CONTEST = "number-to-beat";
/** A trace that isn't over by then is stopped. */
const TRACE_PATIENCE_MS = 300_000;

/** @param {HTMLElement} el with the starter file as JSON in data-contest, and the worker's script in data-python */
function mountContest(el) {
  /** @type {{starter: string, lines: number}} */ const given = JSON.parse(el.dataset.contest ?? "");
  const editor = make("textarea", { class: "mm-editor", spellcheck: false, autocapitalize: "off", rows: 30, "aria-label": "Your policy, Python" });
  const seed = make("input", { type: "number", min: 0, max: 999999, value: 1, "aria-label": "Seed of the trace" });
  const playButton = make("button", { type: "button", class: "mm-run", onclick: () => void play() }, "Play this trace");
  const backButton = make("button", { type: "button", onclick: () => { if (confirm("Replace what you've written with the starter file?")) { editor.value = given.starter; keep(); } } }, "Start over");
  const count = make("span", { class: "mm-moment" }), outcome = make("div", { class: "mm-outcome", role: "status" });
  el.replaceChildren(make("div", { class: "mm-dash mm-workshop" }, editor,
    make("div", { class: "mm-bar" }, playButton, make("label", {}, "Seed ", seed), make("button", { type: "button", onclick: () => savedAsFile("policy.py", editor.value) }, "Save as a file"), backButton, count), outcome));
  editor.value = keptText(CONTEST, given.starter);
  editing(editor, keep);
  keep();

  function keep() {
    keepText(CONTEST, editor.value);
    const lines = editor.value.split("\n").length - (editor.value.endsWith("\n") ? 1 : 0);
    say(count, `${lines} of ${given.lines} lines`);
  }

  async function play() {
    playButton.disabled = true;
    const python = new TabPython(new URL(el.dataset.python ?? "", document.baseURI), (stage) =>
      say(outcome, stage ? `Python is starting in this tab: ${stage} …` : "Playing the trace: some 700 requests on three replicas, half a minute or so …"));
    try {
      /** @type {Score} */ const score = await inTime(python.ask("challenge.play", { text: editor.value, seed: Math.abs(Math.trunc(Number(seed.value))) || 0 }), TRACE_PATIENCE_MS);
      show(score);
    } catch (error) {
      say(outcome, error instanceof Refused ? error.message : `Python in this tab failed: ${error}`);
    }
    python.end();
    playButton.disabled = false;
  }

  /** @param {Score} score */
  function show({ ladder, lost, line }) {
    const rungs = Object.entries(ladder).sort(([, a], [, b]) => b.goodput - a.goodput), most = rungs[0][1].goodput;
    outcome.replaceChildren(
      make("ul", { class: "mm-rungs" }, ...rungs.map(([name, { goodput }]) => make("li", { class: name === "yours" ? "mm-yours" : "" },
        make("span", {}, name), make("i", { style: `width: ${(100 * goodput) / most}%` }), make("b", {}, goodput.toFixed(2))))),
      make("p", {}, "Requests a second that were answered within their limits. ",
        Object.entries(lost).map(([kind, ways]) => `${kind}: ${Object.entries(ways).map(([way, number]) => `${number} ${way}`).join(", ")}`).join("; "), "."),
      make("p", {}, "The line of this trace, which ", make("code", {}, "minillm beat verify"), " reads: ", make("code", {}, line)));
  }
}

export { mountContest };
