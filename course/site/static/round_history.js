// Which rounds were sat in this browser, and what came out: kept here only.
"use strict";

/* exported minillmRoundHistory */
const minillmRoundHistory = (() => {
  /** @typedef {{round: string, draw: number, when: string, level: string}} Sat */
  const KEY = "minillm rounds";

  /** Oldest first. @returns {Sat[]} */
  function all() {
    try { return JSON.parse(localStorage.getItem(KEY) ?? "[]"); } catch { return []; } // nothing is kept, or it's no JSON
  }

  /** @param {string} round */
  const of = (round) => all().filter((each) => each.round === round);

  /** @param {string} round @param {number} draw @param {string} level */
  function add(round, draw, level) {
    const sat = { round, draw, when: new Date().toISOString().slice(0, 10), level };
    try { localStorage.setItem(KEY, JSON.stringify([...all(), sat])); } catch { /* a browser may refuse to keep anything */ }
  }

  /** The draw that was sat least often, the first of those. @param {string} round @param {number} draws how many there are */
  function next(round, draws) {
    const counts = Array.from({ length: draws }, (_, draw) => of(round).filter((each) => each.draw === draw).length);
    return counts.indexOf(Math.min(...counts));
  }

  /** In words, the latest first; empty where it's the first time. @param {string} round */
  const told = (round) => of(round).reverse().map((each) => `${each.when}: ${each.level}`).join("; ");

  return { add, next, told };
})();

document.querySelectorAll("[data-round]").forEach((place) => {
  const told = minillmRoundHistory.told(place.getAttribute("data-round") ?? "");
  if (told) place.textContent = `You sat it. ${told}.`;
});
