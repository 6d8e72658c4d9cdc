// A number as people write it, read as course/drills/written.py and amounts.py read it: "about 2.2 GB", "at most 87.6".
"use strict";

/* exported minillmWritten */
const minillmWritten = (() => {
  /** @typedef {{value: number, unit: string | null}} Amount */
  const rules = /** @type {{hedge: string, number: string, multiples: Record<string, number>, a_second: string, also: Record<string, string>,
   *   known: Record<string, [string, number]>}} */ (/** @type {any} */ (window).minillmUnits);
  const hedge = new RegExp(rules.hedge, "i");
  const number = new RegExp(rules.number);
  const aSecond = new RegExp(rules.a_second, "g");

  /** The one number of a text, and the words behind it; null if there is none, or more than one. @param {string} text */
  function read(text) {
    let left = text.trim();
    for (let before = ""; left !== before;) [before, left] = [left, left.replace(hedge, "")];
    const found = number.exec(left);
    if (!found) return null;
    const [dollar, digits, power, multiple, behind, atLast] = found.slice(1).map((each) => each ?? "");
    const plain = digits.replaceAll(",", "");
    const value = Number(power && !/e/i.test(plain) ? `${plain}e${power}` : plain) * (rules.multiples[multiple.toLowerCase()] ?? 1);
    return { value, behind: dollar || behind.trim() || atLast.trim() };
  }

  /** What words behind a number may name, the longest first. @param {string} behind */
  function namesIn(behind) {
    const words = behind.toLowerCase().replace(aSecond, "/s").replace(/[ .!,;]+$/, "").split(" ");
    return words.map((_, i) => words.slice(0, words.length - i).join(" ").replace(/[,;]+$/, "")).map((name) => rules.also[name] ?? name);
  }

  /** In base units; null if nothing was written.
   * @param {string} text @param {string} unit from a menu; empty = it stands behind the number, or was left out
   * @returns {Amount | null} @throws {minillmSteps.Refused} it can't be read */
  function amount(text, unit = "") {
    if (!text.trim()) return null;
    const found = read(text);
    if (!found) throw new minillmSteps.Refused(`“${text.trim()}” isn't one number: write it as 5.4, 1,056 or 80 ms.`);
    if (!Number.isFinite(found.value)) throw new minillmSteps.Refused(`“${text.trim()}” is too large a number.`);
    const named = namesIn(found.behind).map((name) => rules.known[name]).find(Boolean);
    const chosen = unit ? rules.known[namesIn(unit)[0]] : undefined;
    if (named && chosen && String(named) !== String(chosen)) {
      throw new minillmSteps.Refused(`“${text.trim()}” has a unit of its own, which isn't ${unit}: which of the two is it?`);
    }
    const base = chosen ?? named;
    if (base) return { value: found.value * base[1], unit: base[0] };
    return { value: found.value, unit: found.behind ? "" : null };
  }

  return { read, namesIn, amount };
})();
