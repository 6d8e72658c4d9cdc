// A clock that counts down, and then what is over. It never stops anybody.
import { make, say } from "./elements.js";
/** @typedef {{total: number, used: number, state: "waiting" | "running" | "stopped"}} Clock seconds, used up to when this was told */

const TICK_MS = 250, LAST_S = 60;

/** @param {number} seconds */
const face = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;

/**
 * @param {Clock} start @returns {{element: HTMLElement, hear: (clock: Clock) => void, used: () => number, end: () => void}}
 */
function countdown(start) {
  let clock = start, heardAt = Date.now();
  const time = make("b", { role: "timer", "aria-label": "Time left" }), words = make("span", {}), left = make("i", {});
  const element = make("div", { class: "mm-clock" }, time, words, make("div", { class: "mm-left" }, left));
  const used = () => clock.used + (clock.state === "running" ? (Date.now() - heardAt) / 1000 : 0);

  function tick() {
    const rest = clock.total - used();
    say(time, face(rest < 0 ? -rest : Math.ceil(rest)));
    say(words, clock.state === "waiting" ? "on the clock" : `${rest < 0 ? "over time" : "left"}${clock.state === "stopped" ? ", handed in" : ""}`);
    left.style.width = `${100 * Math.max(0, Math.min(1, rest / clock.total))}%`;
    element.classList.toggle("mm-late", clock.state !== "waiting" && rest < (clock.total > LAST_S ? LAST_S : 0));
  }

  tick();
  const timer = setInterval(tick, TICK_MS);
  return { element, used, hear(now) { [clock, heardAt] = [now, Date.now()]; tick(); }, end: () => clearInterval(timer) };
}

export { countdown };
