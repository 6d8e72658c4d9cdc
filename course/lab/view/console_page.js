// The console on a page: Python in the tab answers. Which incident it is stands in the address.
import { mountConsole } from "./console.js";
import { make, say } from "./elements.js";
import { TabPython } from "./port.js";

/** @typedef {{seed: number | null, difficulty: number, day: string}} Wanted seed null: the incident of a day */

/** The date that it is here, as 2026-01-05. @param {Date} now */
function dayOf(now) {
  return [now.getFullYear(), now.getMonth() + 1, now.getDate()].map((each) => String(each).padStart(2, "0")).join("-");
}

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
  const told = make("p", { role: "status" });
  el.replaceChildren(told);
  if (location.protocol === "file:") {
    say(told, "A page opened from disk can't start Python. Run `make site`: it serves the site, and incidents can be played there.");
    return;
  }
  const wanted = wantedIncident(location.search, new Date());
  const python = new TabPython(new URL(el.dataset.python ?? "", document.baseURI), (stage) =>
    say(told, stage ? `Python is starting in this tab: ${stage} …` : "Your phone is about to ring: a service is being simulated, healthy and after something broke …"));
  try {
    const number = await python.ask("incident.open", wanted);
    const port = { ask: (/** @type {unknown} */ action) => python.ask("incident.act", { action }, number) };
    const start = await port.ask({ do: "look" });
    el.replaceChildren();
    mountConsole(el, port, start);
    el.dataset.isLive = "yes";
  } catch (error) {
    say(told, `This incident can't be played here: ${error instanceof Error ? error.message : error}`);
  }
}

/** Fills the links of the list: today's, and one that nobody has seen. @param {HTMLElement} el */
function linkIncidents(el) {
  const today = el.querySelector("[data-today]"), another = el.querySelector("form");
  if (today) today.setAttribute("href", `incident.html?day=${dayOf(new Date())}`);
  const seed = /** @type {HTMLInputElement | null | undefined} */ (another?.querySelector("[name=seed]"));
  if (seed) seed.value = String(Math.floor(Math.random() * 1e6));
}

export { linkIncidents, mountIncident, wantedIncident };
