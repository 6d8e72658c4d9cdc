// Bets: choose, lock, see the example run, be scored. Kept in this browser only.
"use strict";

(() => {
  /**
   * @typedef {{question: string, options: string[] | null, unit: string, whole: boolean, between: [number, number] | null}} Bet
   * @typedef {{answer: string | number, also: string[]}} Outcome
   */
  const RIGHT = 1.1; // as in course/lab/predict.py: full marks within this factor ...
  const FAR = 4; // ... and none from here on

  /** Points of an answer, 0 to 1: what `Prediction` gives.
   * @param {Bet} bet @param {string | number} choice @param {Outcome} outcome @returns {number} */
  function points(bet, choice, outcome) {
    const measured = outcome.answer;
    if (typeof measured === "string" || choice === measured) {
      return choice === measured || outcome.also.includes(String(choice)) ? 1 : 0;
    }
    const said = Number(choice);
    if (measured <= 0 || said <= 0) return 0;
    const off = Math.max(said / measured, measured / said);
    const full = Math.log(FAR / (bet.whole ? 1 : RIGHT));
    return Math.round(100 * Math.min(Math.max(Math.log(FAR / off) / full, 0), 1)) / 100;
  }

  /** @param {string} key @returns {string | null} */
  function remembered(key) {
    try { return localStorage.getItem(key); } catch { return null; } // a browser may refuse to keep anything
  }

  /** @param {string} key @param {string | null} value */
  function remember(key, value) {
    try {
      if (value === null) localStorage.removeItem(key);
      else localStorage.setItem(key, value);
    } catch { /* not kept */ }
  }

  /** @param {string} tag @param {Record<string, string>} attributes @param {string} words @returns {HTMLElement} */
  function make(tag, attributes = {}, words = "") {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = words;
    return element;
  }

  /** Three digits, as people write them. @param {number} value @returns {string} */
  const short = (value) => String(Number(value.toPrecision(3)));

  /** A choice among options, or a number: its element, and what is chosen (null: nothing yet).
   * @param {Bet} bet @param {string} name @returns {{element: HTMLElement, chosen: () => string | number | null, set: (value: string) => void}} */
  function picker(bet, name) {
    const fields = make("fieldset");
    fields.append(make("legend", { class: "hidden" }, bet.question));
    if (bet.options) {
      const inputs = bet.options.map((option) => {
        const label = make("label");
        const input = /** @type {HTMLInputElement} */ (make("input", { type: "radio", name, value: option }));
        label.append(input, ` ${option}`);
        fields.append(label);
        return input;
      });
      return {
        element: fields,
        chosen: () => inputs.find((input) => input.checked)?.value ?? null,
        set: (value) => inputs.forEach((input) => { input.checked = input.value === value; }),
      };
    }
    const [low, high] = bet.between ?? [0, 1e9];
    const isLog = !bet.whole && bet.between !== null && low > 0 && high >= 10 * low;
    const input = /** @type {HTMLInputElement} */ (make("input", bet.between
      ? { type: "range", min: "0", max: bet.whole ? String(high - low) : "200", step: "1", value: "0", "aria-label": bet.question }
      : { type: "number", min: "0", step: "any", "aria-label": bet.question }));
    const value = () => {
      if (!bet.between) return Number(input.value);
      const at = Number(input.value);
      if (bet.whole) return low + at;
      return isLog ? low * (high / low) ** (at / 200) : low + ((high - low) * at) / 200;
    };
    const reading = make("output");
    let said = false;
    const read = (/** @type {number} */ number) => {
      said = true;
      reading.textContent = `${short(number)} ${bet.unit}`;
      input.setAttribute("aria-valuetext", reading.textContent); // its value is only a place on the slider
    };
    const say = () => read(value());
    input.addEventListener("input", say);
    if (bet.between) fields.append(make("small", {}, `${short(low)} to ${short(high)} ${bet.unit}`));
    fields.append(input, reading);
    return {
      element: fields,
      chosen: () => (said ? Number(short(value())) : null),
      set: (kept) => {
        const number = Number(kept);
        input.value = !bet.between ? kept : String(bet.whole ? number - low
          : isLog ? (200 * Math.log(number / low)) / Math.log(high / low) : (200 * (number - low)) / (high - low));
        read(number);
      },
    };
  }

  /** @param {HTMLElement} section */
  function play(section) {
    const holder = section.querySelector("[data-bet]");
    if (!holder) return;
    const asked = holder.getAttribute("data-bet") ?? "{}";
    const bet = /** @type {Bet} */ (JSON.parse(asked));
    const key = `minillm:bet:${asked}`; // with all of its answers: on whatever page it stands, it is the same bet
    const outcomes = /** @type {HTMLDetailsElement[]} */ ([...document.querySelectorAll(`details.outcome[data-of="${section.id}"]`)]);
    const scored = outcomes.map((each) => each.querySelector("[data-outcome]")).find(Boolean);
    const outcome = scored ? /** @type {Outcome} */ (JSON.parse(scored.getAttribute("data-outcome") ?? "{}")) : null;
    const isOffered = !bet.options || !outcome || bet.options.includes(String(outcome.answer));
    const { element, chosen, set } = picker(bet, section.id);
    const lock = /** @type {HTMLButtonElement} */ (make("button", { type: "button" }, "Lock it, and see"));
    const again = make("button", { type: "button", class: "quiet" }, "Bet again");
    const told = make("div", { role: "status" });
    holder.querySelector("ul")?.remove();
    section.setAttribute("aria-label", `Your bet: ${bet.question}`);
    section.append(element, lock, again, told);
    // Pictures further down that would tell how it ends: in their place stands how to see them.
    const later = outcomes.filter((each) => each.previousElementSibling?.matches(".prose, .output"));
    const instead = later.map((each) => {
      const words = make("p", { class: "yours" }, "Shown when your bet is locked: ");
      words.append(make("a", { href: `#${section.id}` }, "to the bet"));
      each.before(words);
      return words;
    });

    /** @param {string | number | null} choice null: open again */
    function show(choice) {
      const isLocked = choice !== null;
      section.classList.toggle("locked", isLocked);
      element.toggleAttribute("disabled", isLocked);
      lock.hidden = isLocked;
      again.hidden = !isLocked;
      for (const each of outcomes) {
        each.hidden = !isLocked;
        each.open = isLocked;
        const summary = each.children[0]; // it asks to bet first where no script runs
        summary.textContent = (summary.textContent ?? "").replace(". Bet first.", "");
      }
      for (const words of instead) words.hidden = isLocked;
      told.replaceChildren();
      if (choice === null) return;
      const won = outcome && isOffered ? points(bet, choice, outcome) : null;
      const said = `You said ${typeof choice === "number" ? `${short(choice)} ${bet.unit}` : choice}.`;
      const word = won === null ? "" : won === 1 ? "Right. " : won === 0 ? "Not this time. " : `Close: ${Math.round(won * 100)}% of the point. `;
      const was = outcome && typeof outcome.answer === "number" ? ` It was ${short(outcome.answer)} ${bet.unit}.` : "";
      const ran = scored ? `${isOffered ? was : " It came out as none of the answers offered: no points either way."} ${scored.textContent?.trim()}` : " The example run is below.";
      told.append(make("p", { class: `verdict${won === 0 ? " wrong" : won !== null && won < 1 ? " half" : ""}` }, `${word}${said}${ran}`));
    }

    lock.addEventListener("click", () => {
      const choice = chosen();
      if (choice === null) { told.textContent = "Choose an answer first."; return; }
      remember(key, String(choice));
      const won = outcome && (isOffered ? points(bet, choice, outcome) : 0); // null: nothing scores it here
      section.dispatchEvent(new CustomEvent("minillm:bet", { bubbles: true, detail: { points: won } })); // for progress_page.js
      show(choice);
      again.focus();
    });
    again.addEventListener("click", () => { remember(key, null); show(null); element.querySelector("input")?.focus(); });
    const kept = remembered(key);
    if (kept !== null) set(kept);
    show(kept === null ? null : bet.options ? kept : Number(kept));
  }

  document.querySelectorAll(".bet").forEach((section) => play(/** @type {HTMLElement} */ (section)));
  Object.assign(window, { minillmBets: { points } });
})();
