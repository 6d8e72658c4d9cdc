// A design round on a page: Python in the tab judges. Which numbers are drawn stands in the address, or follows from how
// often it was sat in this browser, which keeps that to itself.
import { openedOnPage } from "./opened.js";
import { isUnderWay, playedKey } from "./played.js";
import { keptIn } from "./progress.js";
import { mountRound } from "./round.js";
/** @typedef {{round: string, seed: number, when: string, level: string}} Sat */

/** Oldest first. @param {string} round @returns {Sat[]} */
const sittingsOf = (round) => keptIn("rounds.json").done.filter((/** @type {Sat} */ each) => each.round === round);

/** In words, the latest first; empty where it's the first time. @param {string} round */
const sittingsTold = (round) => sittingsOf(round).reverse().map(({ when, level }) => `${when.slice(0, "2026-01-05".length)}: ${level}`).join("; ");

/** @param {HTMLElement} el with the round's id in data-round, and the worker's script in data-python */
async function mountRoundPage(el) {
  const round = el.dataset.round ?? "", before = sittingsTold(round);
  const said = new URLSearchParams(location.search).get("seed");
  const next = sittingsOf(round).length, left = Array.from({ length: next }, (_, i) => i).find((i) => isUnderWay(playedKey("round", { round, seed: i })));
  const seed = said === null ? left ?? next : Math.abs(Math.trunc(Number(said))) || 0; // another tab may have sat it since this one began
  const opened = await openedOnPage(el, "round", { round, seed }, "Drawing the numbers …", true);
  if (!opened) return;
  const told = before && `You've sat it before (${before}). ${sittingsOf(round).some((each) => each.seed === seed) ? "You've seen these numbers." : "This time it has other numbers."}`;
  mountRound(el, opened.port, opened.start, told);
}

/** On the list of rounds: what was reached, beside each. @param {HTMLElement} el with the round's id in data-sat */
function tellSittings(el) {
  const told = sittingsTold(el.dataset.sat ?? "");
  if (told) el.textContent = `You sat it. ${told}.`;
}

export { mountRoundPage, tellSittings };
