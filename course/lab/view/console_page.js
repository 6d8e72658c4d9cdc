// The console on a page: Python in the tab answers. Which incident it is stands in the address.
import { mountConsole } from "./console.js";
import { openedOnPage } from "./opened.js";
import { dayOf, keptIn } from "./progress.js";

/** @typedef {{seed: number | null, difficulty: number, day: string}} Wanted seed null: the incident of a day */

/** @param {string} address @param {Date} now @returns {Wanted} what it says of nothing known counts for nothing */
function wantedIncident(address, now) {
  const said = new URLSearchParams(address), seed = Math.trunc(Number(said.get("seed") ?? Number.NaN));
  const difficulty = [1, 2, 3].find((each) => String(each) === said.get("difficulty")) ?? 1;
  if (Number.isFinite(seed) && seed >= 0) return { seed, difficulty, day: "" };
  const day = said.get("day") ?? "";
  return { seed: null, difficulty, day: /^\d{4}-\d\d-\d\d$/.test(day) && !Number.isNaN(Date.parse(day)) ? day : dayOf(now) };
}

/** @param {HTMLElement} el with the worker's script in data-python */
async function mountIncident(el) {
  const preparing = "Your phone is about to ring: a service is being simulated, healthy and after something broke …";
  const opened = await openedOnPage(el, "incident", wantedIncident(location.search, new Date()), preparing, true);
  if (!opened) return;
  const isTold = !opened.isResumed && keptIn("incidents.json").names.includes(opened.start.title); // on an earlier visit: Python here remembers none
  mountConsole(el, opened.port, { ...opened.start, practice: opened.start.practice || isTold });
}

/** Fills the links of the list: today's, and one that nobody has seen. @param {HTMLElement} el */
function linkIncidents(el) {
  const today = el.querySelector("[data-today]"), another = el.querySelector("form");
  if (today) today.setAttribute("href", `incident.html?day=${dayOf(new Date())}`);
  const seed = /** @type {HTMLInputElement | null | undefined} */ (another?.querySelector("[name=seed]"));
  if (seed) seed.value = String(Math.floor(Math.random() * 1e6));
}

export { linkIncidents, mountIncident, wantedIncident };
