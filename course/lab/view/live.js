// The front page's server: it runs for as long as it's in sight. Four switches, a bet, and the last minute to zoom into.
import { make, oneOf, say } from "./elements.js";
import { drawLiveStrip } from "./live_strip.js";
import { KEPT_S, LiveTraffic, WINDOW_S } from "./live_traffic.js";
import { drawingLoop } from "./loop.js";
import { paletteOf } from "./paint.js";
import { number, seconds } from "./say.js";
import { PHASES, PHASE_NAMES } from "./trace.js";
/** @typedef {import("./port.js").TabPython} TabPython */
/** @typedef {Record<string, number | string | boolean>} LiveFields */

/** @type {{field: string, label: string, options: (number | string | boolean)[], names: (option: any) => string}[]} */
const SWITCHES = [
  { field: "max_num_seqs", label: "Slots", options: [4, 12], names: String },
  { field: "enable_chunked_prefill", label: "Chunked prefill", options: [true, false], names: (on) => (on ? "on" : "off") },
  { field: "enable_prefix_caching", label: "Prefix cache", options: [true, false], names: (on) => (on ? "on" : "off") },
  { field: "batching", label: "Batching", options: ["continuous", "static", "none"], names: (each) => (each === "none" ? "one at a time" : each) },
];
/** @type {LiveFields} */
const USUAL = Object.fromEntries(SWITCHES.map(({ field, options }) => [field, options[0]]));
/** Python is asked for so much more whenever less than that is ahead. */
const AHEAD_S = 0.5;
/** Spans of the axis, from a minute to a few steps. */
const SPANS = [60, 30, 12, 6, 3, 1.5, 0.75];
const OPENING = 2;
/** What the bet is on, and how many requests after it decide. */
const BET = { max_num_seqs: 12 }, DECIDING = 10;

/** @param {string} address @returns {{seed: number, fields: LiveFields}} what a link says; what it says of anything unknown counts for nothing */
function liveFromAddress(address) {
  const said = new URLSearchParams(address), fields = { ...USUAL };
  for (const { field, options } of SWITCHES) {
    const chosen = options.find((option) => String(option) === said.get(field));
    if (chosen !== undefined) fields[field] = chosen;
  }
  return { seed: Math.abs(Math.trunc(Number(said.get("seed")))) || 0, fields };
}

/** @param {number} seed @param {LiveFields} fields */
function liveToAddress(seed, fields) {
  const changed = Object.entries(fields).filter(([field, value]) => value !== USUAL[field]);
  const said = new URLSearchParams([...(seed ? [["seed", String(seed)]] : []), ...changed.map(([field, value]) => [field, String(value)])]);
  return said.size ? `?${said}` : location.pathname;
}

/** @param {{python: TabPython, el: HTMLElement}} given @returns {Promise<() => void>} what ends it */
async function renderLive({ python, el }) {
  const { seed, fields } = liveFromAddress(location.search);
  const server = await python.ask("server.open", { seed, fields });
  let settings = await python.ask("server.settings", {}, server);
  const traffic = new LiveTraffic();
  traffic.hear(await python.ask("server.go_on", { until: SPANS[OPENING] }, server)); // as if it had been on for a while
  /** @type {number[]} */ const changes = [];
  let time = traffic.known, zoom = OPENING, isPaused = false, isInSight = true, isAsking = false, drag = 0;
  /** How far back from now the axis ends, when it stands. */
  let back = 0;
  /** @type {{said: string, rollout: number} | null} */ let bet = null;
  let failed = "";

  // ------------------------------------------------------------------ what there is
  const switches = SWITCHES.map(({ field, label, options, names }) => {
    const chosen = oneOf({ label, options, names, chosen: settings.fields[field], choose: (option) => void change({ [field]: option }) });
    return { field, chosen, element: make("span", { class: "mm-live-switch" }, make("span", {}, label), chosen.element) };
  });
  const figures = ["TTFT p50", "worst gap between tokens", "tokens/s", "queued now"].map((name) => {
    const value = make("b", {});
    return { value, element: make("div", { class: "mm-live-figure" }, make("span", {}, name), value) };
  });
  const strip = make("canvas", { class: "mm-live-strip", role: "img", "aria-label": "Requests and steps", tabindex: 0 });
  const pause = make("button", { type: "button", onclick: turnPause }, "‖ Stop here");
  const closer = make("button", { type: "button", "aria-label": "Closer", onclick: () => zoomBy(1) }, "+");
  const wider = make("button", { type: "button", "aria-label": "Wider", onclick: () => zoomBy(-1) }, "−");
  const span = make("span", { class: "mm-moment" }), told = make("div", { class: "mm-live-told", role: "status" });
  let betOn = "";
  const lockButton = make("button", { type: "button", class: "mm-run", disabled: true, onclick: () => void lock(betOn) }, "Lock it");
  const answers = oneOf({ label: "Your bet", options: ["queue", "prefill", "decode", "nothing"], chosen: "",
    names: (each) => PHASE_NAMES[each] ?? each, choose: (said) => { betOn = said; lockButton.disabled = false; } });
  const asked = make("div", { class: "mm-live-bet" }, make("b", {}, "A bet: "), "twelve slots instead of four. Which phase gets shorter? ", answers.element, lockButton);
  const root = make("div", { class: "mm-dash mm-live", role: "group", "aria-label": "A server, live" },
    make("div", { class: "mm-live-switches" }, ...switches.map(({ element }) => element)),
    make("div", { class: "mm-live-figures" }, ...figures.map(({ element }) => element)), strip,
    make("div", { class: "mm-live-below" }, pause, wider, closer, span), asked, told);
  if (settings.fields.max_num_seqs !== USUAL.max_num_seqs) asked.hidden = true;
  el.replaceChildren(root);
  let palette = paletteOf(root, false);
  const { wake, stop } = drawingLoop(root, { frame, restyle: () => { palette = paletteOf(root, false); } });

  /** @param {LiveFields} some */
  async function change(some) {
    try {
      settings = await python.ask("server.change", { fields: some }, server);
      traffic.rollout += 1;
      changes.push(traffic.known);
      history.replaceState(null, "", liveToAddress(seed, settings.fields));
      if (bet && bet.rollout !== traffic.rollout - 1) {
        bet = null;
        say(told, "You rolled out another change, so this bet is off.");
      } else if (!bet) say(told, "Rolled out: requests from now on go to a server with these settings. The ones in flight stay where they are.");
    } catch (error) {
      say(told, String(error instanceof Error ? error.message : error));
    }
    for (const { field, chosen } of switches) chosen.set(settings.fields[field]);
    if (settings.fields.max_num_seqs !== USUAL.max_num_seqs) asked.hidden = true;
    wake();
  }

  /** @param {string} said */
  async function lock(said) {
    if (bet) return;
    bet = { said, rollout: traffic.rollout };
    asked.hidden = true;
    strip.focus(); // the button that had it is gone: next is what decides the bet
    say(told, `Locked: ${PHASE_NAMES[said] ?? said}. Twelve slots are being rolled out; ${DECIDING} requests will decide.`);
    await change(BET);
  }

  /** Tells what became of the bet, once enough requests have ended. */
  function judge() {
    if (!bet || traffic.rollout !== bet.rollout + 1) return;
    const before = traffic.meansOf(bet.rollout, time), after = traffic.meansOf(bet.rollout + 1, time);
    if (after.count < DECIDING || !before.count) return;
    const gains = before.means.map((mean, k) => mean - after.means[k]), most = Math.max(...gains), k = gains.indexOf(most);
    const isNothing = most < 0.05 * before.means.reduce((sum, mean) => sum + mean, 0), answer = isNothing ? "nothing" : PHASES[k];
    const words = isNothing ? "no phase got shorter by 5% of a request's time" : `${PHASE_NAMES[answer]} went from ${seconds(before.means[k])} to ${seconds(after.means[k])} a request`;
    say(told, `You said ${PHASE_NAMES[bet.said] ?? bet.said}: ${bet.said === answer ? "right" : "not this time"}. ${words[0].toUpperCase()}${words.slice(1)} (means of ${before.count} requests before and ${after.count} after).`);
    bet = null;
  }

  // ------------------------------------------------------------------ time
  async function ask() {
    isAsking = true;
    try {
      traffic.hear(await python.ask("server.go_on", { until: traffic.known + AHEAD_S }, server));
    } catch (error) {
      failed = `Python in this tab failed: ${error}. Reload the page.`;
    }
    isAsking = false;
  }

  /** @param {number} passed seconds @returns {boolean} */
  function frame(passed) {
    const goesOn = isInSight && !isPaused && !failed;
    if (goesOn) {
      time = Math.min(time + passed, traffic.known);
      if (!isAsking && traffic.known - time < AHEAD_S) void ask();
    }
    draw();
    return goesOn;
  }

  function draw() {
    const shownAt = Math.max(time - back, 0);
    drawLiveStrip(strip, { traffic, time: shownAt, span: SPANS[zoom], slots: settings.slots, budget: settings.budget, changes }, palette);
    const { ttft, worstGap, tokensPerS, queued, running } = traffic.figuresAt(shownAt);
    [seconds(ttft), seconds(worstGap), number(tokensPerS), String(queued)].forEach((words, k) => say(figures[k].value, words));
    strip.setAttribute("aria-label", `The last ${SPANS[zoom]} seconds: ${running} requests running, ${queued} queued.`);
    say(pause, isPaused ? "▶ Go on" : "‖ Stop here");
    say(span, `${SPANS[zoom]} s${isPaused ? ` until ${seconds(shownAt)}; drag to go back` : ""} · figures over ${WINDOW_S} s`);
    wider.disabled = zoom === 0;
    closer.disabled = zoom === SPANS.length - 1;
    if (failed) say(told, failed);
    judge();
  }

  // ------------------------------------------------------------------ what is touched
  function turnPause() {
    isPaused = !isPaused;
    back = 0;
    wake();
  }

  /** @param {number} by */
  function zoomBy(by) {
    zoom = Math.min(Math.max(zoom + by, 0), SPANS.length - 1);
    wake();
  }

  /** @param {number} by seconds back */
  function move(by) {
    isPaused = true;
    back = Math.min(Math.max(back + by, 0), Math.min(time, KEPT_S) - SPANS[zoom] / 4);
    wake();
  }

  strip.addEventListener("wheel", (event) => {
    if (!isPaused) return; // the page scrolls
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move((-event.deltaX / strip.clientWidth) * SPANS[zoom]);
    else zoomBy(event.deltaY < 0 ? 1 : -1);
  }, { passive: false });
  strip.addEventListener("pointerdown", (event) => { drag = event.clientX; strip.setPointerCapture(event.pointerId); });
  strip.addEventListener("pointermove", (event) => {
    if (!event.buttons || Math.abs(event.clientX - drag) < 2) return;
    move(((event.clientX - drag) / strip.clientWidth) * SPANS[zoom]);
    drag = event.clientX;
  });
  strip.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: 0.2, ArrowRight: -0.2 }[event.key];
    if (by) move(by * SPANS[zoom]);
    else if (event.key === "+" || event.key === "-") zoomBy(event.key === "+" ? 1 : -1);
    else if (event.key === " ") pause.click();
    else return;
    event.preventDefault();
  });
  const sight = new IntersectionObserver((entries) => {
    isInSight = entries[entries.length - 1].isIntersecting;
    wake();
  });
  sight.observe(strip);
  isPaused = matchMedia("(prefers-reduced-motion: reduce)").matches;
  wake();
  return () => {
    stop();
    sight.disconnect();
    void python.ask("server.close", {}, server);
  };
}

export { liveFromAddress, liveToAddress, renderLive };
