// A sum of one minute on a page: today's, or an earlier day's. Python in the tab asks and judges.
import { countdown } from "./countdown.js";
import { make, oneOf, say } from "./elements.js";
import { openedOnPage } from "./opened.js";
import { dayOf } from "./progress.js";
/** @typedef {{day: string, question: string, units: string[], minute: number, told: string[] | null, lesson: string}} Sum */

const DAY_MS = 864e5;

/** @param {string} day */
const dayBefore = (day) => new Date(Date.parse(day) - DAY_MS).toISOString().slice(0, 10);

/** @param {HTMLElement} el with the worker's script in data-python */
async function mountNapkin(el) {
  const today = dayOf(new Date());
  const opened = await openedOnPage(el, "napkin", { day: today }, "Asking for today's sum …");
  if (!opened) return;
  const { port } = opened;
  const heading = make("h2", { tabindex: -1 }), body = make("div", {}), said = make("p", { class: "mm-said", role: "alert" }), on = make("button", { type: "button", class: "mm-run" });
  el.append(make("div", { class: "mm-dash mm-drill mm-napkin" }, heading, body, make("div", { class: "mm-foot" }, said, on)));
  /** @type {() => Promise<void> | void} */ let onward = () => {};
  on.addEventListener("click", async () => {
    try {
      said.textContent = "";
      await onward();
    } catch (problem) {
      said.textContent = problem instanceof Error ? problem.message : String(problem);
    }
  });

  /** @param {Sum} sum */
  function waiting(sum) {
    say(heading, sum.day === today ? "Today's sum" : `The sum of ${sum.day}`);
    body.replaceChildren(make("p", {}, "One minute, a number with its unit, no calculator. Within 20% is right, from half to double is the right order."));
    say(on, "Start a minute");
    onward = () => asking(sum);
  }

  /** @param {Sum} sum */
  function asking(sum) {
    const clock = countdown({ total: sum.minute, used: 0, state: "running" });
    const number = make("input", { type: "text", "aria-label": "Your answer", autocomplete: "off" });
    let unit = sum.units.length === 1 ? sum.units[0] : "";
    const units = oneOf({ label: "Its unit", options: sum.units, names: (each) => each, chosen: unit, choose: (each) => { unit = each; } });
    number.addEventListener("keydown", (event) => { if (event.key === "Enter") on.click(); });
    body.replaceChildren(clock.element, make("p", { class: "mm-asks-this" }, sum.question), make("div", { class: "mm-field" }, number, units.element));
    say(on, "Answer");
    onward = async () => {
      told(await port.ask({ do: "answer", number: number.value, unit, seconds: clock.used() }));
      clock.end();
    };
    number.focus();
  }

  /** @param {Sum} sum */
  function told(sum) {
    say(heading, "The working");
    const lines = (sum.told ?? []).slice(0, -1); // the last one names the lesson: here it's a link
    body.replaceChildren(...lines.map((line) => make("p", {}, line)), make("p", {}, "More about it in ", make("a", { href: `${sum.lesson}.html` }, `lesson ${sum.lesson}`), "."));
    say(on, "Another day's sum");
    onward = async () => { waiting(await port.ask({ do: "turn", day: dayBefore(sum.day) })); };
    heading.focus();
  }

  waiting(opened.start);
}

export { mountNapkin };
