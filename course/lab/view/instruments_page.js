// What a page has of a lesson's instruments: explorers, worksheets and a check, with one Python for all of them.
import { mountCheck } from "./check_page.js";
import { make, say, trouble } from "./elements.js";
import { mountExplorer } from "./explorer_page.js";
import { heldModel } from "./held_model.js";
import { LatePython, newestOnly } from "./late_python.js";
import { frameShelf } from "./recorded_frames.js";
import { renderSheet } from "./sheet.js";
/** @typedef {import("./sheet.js").SheetSpec} SheetSpec */
/** @typedef {import("./sheet.js").Values} Values */

/** A worksheet that Python in the tab answers. @param {HTMLElement} el with the worksheet, packed @param {LatePython} python */
async function mountSheet(el, python) {
  const bytes = Uint8Array.from(atob(el.dataset.sheet ?? ""), (each) => each.charCodeAt(0));
  /** @type {SheetSpec & {asks: string}} */
  const spec = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  const model = heldModel({ spec }), note = make("p", { class: "yours", role: "status" }), view = make("div", {});
  const answered = newestOnly(async (/** @type {Values} */ asked) => {
    try {
      model.set("paper", { asked, ...await python.ask(spec.asks, { asked }, undefined, (words) => say(note, words)) });
      el.dataset.isLive = "yes";
      say(note, "");
    } catch (error) {
      say(note, trouble(error));
    }
  });
  model.on("change:asked", () => (python.hindrance ? say(note, `${python.hindrance} The answer is to what was asked at first.`) : void answered(model.get("asked"))));
  el.replaceChildren(note, view);
  renderSheet({ model, el: view });
}

/** @param {string} script the worker's; "" = there is none */
function mountInstruments(script) {
  const python = new LatePython(script), load = frameShelf();
  for (const el of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-sheet]"))) void mountSheet(el, python);
  for (const el of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-frames]"))) mountExplorer(el, python, load);
  for (const el of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-check]"))) mountCheck(el, python);
}

export { mountInstruments };
