// Something that Python in the tab plays, for a page's view: it is opened, and from then on asked by its number.
import { make, say } from "./elements.js";
import { noteDone } from "./progress.js";
import { Refused, TabPython } from "./port.js";

/**
 * @param {HTMLElement} el where the view will stand, with the worker's script in data-python; meanwhile it says what is waited for
 * @param {string} kind such as "incident" @param {Record<string, unknown>} given which one
 * @param {string} preparing what Python does then, in words
 * @returns {Promise<{port: {ask: (action: unknown) => Promise<any>}, start: any} | null>} null: it can't be had, and the page says why
 */
async function openedOnPage(el, kind, given, preparing) {
  const told = make("p", { role: "status" });
  el.replaceChildren(told);
  if (location.protocol === "file:") {
    say(told, "A page opened from disk can't start Python. Run `make site`: it serves the site, and this can be played there.");
    return null;
  }
  const python = new TabPython(new URL(el.dataset.python ?? "", document.baseURI), (stage) => say(told, stage ? `Python is starting in this tab: ${stage} …` : preparing));
  try {
    const number = await python.ask(`${kind}.open`, given);
    const port = { ask: (/** @type {unknown} */ action) => python.ask(`${kind}.act`, { action }, number).then(noted, inWords) };
    const start = await port.ask({ do: "look" });
    el.replaceChildren();
    el.dataset.isLive = "yes";
    return { port, start };
  } catch (error) {
    say(told, `This can't be played here: ${error instanceof Error ? error.message : error}`);
    return null;
  }
}

/** What Python says is to be kept of it goes into the reader's progress. @param {any} state */
function noted(state) {
  if (state.kept) noteDone(state.kept);
  return state;
}

/** A refusal as it is; a bug of ours in a sentence. @param {unknown} error @returns {never} */
function inWords(error) {
  if (error instanceof Refused) throw error;
  console.error(error);
  throw new Error("Python in this tab failed. Reload the page to begin again.");
}

export { openedOnPage };
