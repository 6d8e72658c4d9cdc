// A sum of one minute: today's, as `minillm napkin` asks it on that date, or any other day's of those that are here (course/napkin).
"use strict";

(() => {
  /**
   * @typedef {{question: string, value: number, unit: string, units: string[], told: string, working: string[], lesson: string}} Sum
   * @typedef {{first: string, sums: Sum[], minute_s: number, near: number, order: number, bare: string[], lessons: Record<string, string>}} Sums
   */

  const { Refused, make, choice, line } = minillmSteps;

  /** What an answer is worth, as course/napkin/napkin.py has it. @param {Sums} all @param {Sum} sum @param {string} typed */
  function judge(all, sum, typed) {
    const found = minillmWritten.amount(typed);
    if (!found || !(found.value > 0)) throw new Refused("One number above 0, please.");
    if (found.unit !== sum.unit && !(found.unit === null && all.bare.includes(sum.unit))) {
      throw new Refused(`The unit of this answer is ${sum.unit ? `one of ${sum.units.join(", ")}` : "a plain count"}; “${typed.trim()}” ${found.unit === null ? "has none" : "isn't"}.`);
    }
    const off = found.value / sum.value;
    if (Math.abs(off - 1) <= all.near) return "Right.";
    const words = off >= 1 / all.order && off <= all.order ? "Right order" : "Off";
    const times = Number((off > 1 ? off : 1 / off).toPrecision(3)).toLocaleString("en-US");
    return `${words}: too ${off > 1 ? "high" : "low"} by a factor of ${times}.`;
  }

  /** The date that it is here, as 2026-01-05. @param {Date} moment */
  const dateOf = (moment) => [moment.getFullYear(), moment.getMonth() + 1, moment.getDate()].map((each) => String(each).padStart(2, "0")).join("-");

  /** Days from one date to another. @param {string} from @param {string} to */
  const days = (from, to) => Math.round((Date.parse(to) - Date.parse(from)) / 864e5);

  Object.assign(window, { minillmNapkins: { judge, dateOf, days } });
  const stage = document.getElementById("napkin");
  const given = /** @type {Sums | undefined} */ (/** @type {any} */ (window).minillmSums);
  if (!stage || !given) return;
  const [home, all] = [stage, given];
  const today = days(all.first, dateOf(new Date()));
  const isHere = today >= 0 && today < all.sums.length;
  const last = isHere ? today : all.sums.length - 1;

  /** @param {number} place */
  function show(place) {
    home.replaceChildren();
    const sum = all.sums[place];
    const day = new Date(Date.parse(all.first) + place * 864e5).toISOString().slice(0, 10);
    const title = place === today ? "Today's sum" : `The sum of ${day}`;
    const rows = [make("p", "One minute, a number with its unit, no calculator. Within 20% is right, from half to double is the right order.")];
    if (!isHere) rows.push(make("p", "This copy of the site has no sum for today: minillm napkin has. Here are older ones.", { role: "status" }));
    minillmSteps.step(home, title, rows, "Start a minute", () => {
      const clock = minillmSteps.clock(all.minute_s);
      const number = line("Your answer", { autocomplete: "off" });
      const unit = choice("Its unit", Object.fromEntries(sum.units.map((each) => [each, each])));
      const fields = [make("p", sum.question, { class: "prompt" }), clock.shown, number.wrapped, ...(sum.units.length > 1 ? [unit.wrapped] : [])];
      minillmSteps.step(home, "The question", fields, "Answer", () => {
        const typed = number.input.value.trim();
        const isBare = minillmWritten.read(typed)?.behind === "";
        const verdict = typed ? `${judge(all, sum, isBare ? `${typed} ${unit.select.value}` : typed)} You took ${clock.used()} s of ${all.minute_s}${clock.used() > all.minute_s ? ", which costs nothing" : ""}.` : "";
        clock.stop();
        result(place, verdict);
      });
      number.input.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
        if (event.key === "Enter") number.wrapped.closest("section").querySelector("button").click();
      });
      number.input.focus();
    }, true);
  }

  /** @param {number} place @param {string} verdict */
  function result(place, verdict) {
    const sum = all.sums[place];
    const list = make("ul");
    sum.working.forEach((row) => list.append(make("li", row)));
    const more = make("p", "More about it in ");
    more.append(make("a", `lesson ${sum.lesson}`, { href: `${all.lessons[sum.lesson]}.html` }), ".");
    const told = [...(verdict ? [make("p", verdict)] : []), make("p", `It's ${sum.told}.`), list, more];
    minillmSteps.step(home, "The working", told, "Another day's sum", () => show((place + last) % (last + 1)));
  }

  show(last);
})();
