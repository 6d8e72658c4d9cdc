// Something that Python in the tab plays, for a page's view: it is opened, and from then on asked by its number.
import { make, say } from "./elements.js";
import { keepDrafts, keepPlayed, playedBefore, playedKey } from "./played.js";
import { noteDone } from "./progress.js";
import { Refused, TabPython } from "./port.js";

/**
 * @param {HTMLElement} el where the view will stand, with the worker's script in data-python; meanwhile it says what is waited for
 * @param {string} kind such as "incident" @param {Record<string, unknown>} given which one
 * @param {string} preparing what Python does then, in words @param {boolean} isLong a reload goes on where it was
 * @returns {Promise<{port: {ask: (action: unknown) => Promise<any>}, start: any, isResumed: boolean} | null>} null: it can't be had, and the page says why
 */
async function openedOnPage(el, kind, given, preparing, isLong = false) {
  const told = make("p", { role: "status" });
  el.replaceChildren(told);
  if (location.protocol === "file:") {
    say(told, "A page opened from disk can't start Python. Run `make site`: it serves the site, and this can be played there.");
    return null;
  }
  const python = new TabPython(new URL(el.dataset.python ?? "", document.baseURI), (stage) => say(told, stage ? `Python is starting in this tab: ${stage} …` : preparing));
  const key = playedKey(kind, given), played = isLong ? playedBefore(key) : { deeds: [], drafts: {} };
  const forgotten = (/** @type {unknown} */ error) => { keepPlayed(key, null); throw error; };
  const isResumed = played.deeds.length > 0;
  let latest = played.deeds.at(-1)?.at ?? 0;
  const now = () => { latest = Math.max(latest, Date.now() / 1000); return latest; }; // a clock that is set back takes no time away
  try {
    const number = await python.ask(`${kind}.open`, given);
    let isTimed = false;
    const act = (/** @type {unknown} */ action, /** @type {number} */ at) => python.ask(`${kind}.act`, isTimed ? { action, at } : { action }, number);
    let start = await act({ do: "look" }, now());
    isTimed = "clock" in start;
    for (const [i, { action, at }] of played.deeds.entries()) {
      say(told, `Going back to where you were: step ${i + 1} of ${played.deeds.length} …`);
      await act(action, at).catch(forgotten); // what can't be played again mustn't stand in the way of a new beginning
    }
    if (isResumed) start = await act({ do: "look" }, now());
    const port = { async ask(/** @type {unknown} */ action) {
      const at = now(), state = await act(action, at).then(noted, inWords);
      played.deeds.push({ action, at });
      played.isOver ||= Boolean(state.kept);
      if (isLong) keepPlayed(key, played);
      return state;
    } };
    el.replaceChildren();
    if (isResumed) el.append(make("p", { class: "yours" }, "You're back where you were. ", make("button", { type: "button", class: "quiet", onclick: () => { keepPlayed(key, null); location.reload(); } }, "Begin again")));
    if (isLong) requestAnimationFrame(() => keepDrafts(el, key, played)); // the view stands by then
    el.dataset.isLive = "yes";
    return { port, start, isResumed };
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
