// The dashboard: controls, the answer, one stacked bar, one timeline, the KV cache. It is told events and moments, never pictures.
import { drawBlocks, heldAt } from "./blocks.js";
import { controlPanel } from "./controls.js";
import { keepKeys, make, oneOf, say } from "./elements.js";
import { headline, phaseBars } from "./headline.js";
import { listenTo } from "./held_model.js";
import { keepLastFrames } from "./keep.js";
import { drawingLoop } from "./loop.js";
import { clean, paletteOf } from "./paint.js";
import { Axis, Playhead } from "./playhead.js";
import { exactNoise, moved, seconds, shown, why } from "./say.js";
import { drawTimeline, placeAt } from "./timeline.js";
import { PHASE_NAMES, bordersAt, extend, fullestMoment, meanPhases, phaseAt, stepAt, textAt } from "./trace.js";
/** @typedef {import("./trace.js").Trace} Trace */
/** @typedef {import("./say.js").Noise} Noise */
/** @typedef {import("./controls.js").Fields} Fields */

/**
 * Something to try: a change, and a bet on what it does.
 * @typedef {{id: string, label: string, traffic: string, first: Fields, change: Fields, watch: string, note: string}} Recipe
 */
/**
 * What does not change.
 * @typedef {object} Spec
 * @property {import("./controls.js").Control[]} controls
 * @property {Fields} start where they start
 * @property {{name: string, about: string}[]} traffics
 * @property {string} own the traffic that is a prompt of one's own; "" = there is none
 * @property {Recipe[]} recipes
 * @property {string} where another server, if it is one that is watched
 * @property {boolean} isRecorded runs come from recordings
 */
/** @typedef {{traffic: string, seed: number, prompt: string, patterns: boolean, fields: Fields}} Settings */
/**
 * What is on show.
 * @typedef {object} Shown
 * @property {number} id of the run: another one begins anew
 * @property {Trace | null} run
 * @property {Trace | null} before the run that it is compared with
 * @property {string} beforeName
 * @property {Noise} noise once it has ended
 * @property {[string, Trace][]} pinned
 * @property {string} note on noise, or on where the run is from
 * @property {string} recipe whose second run this is: its bet is revealed
 */
/** @typedef {{state: "idle" | "busy" | "failed", words: string}} Status */
/** @typedef {{do: "run" | "stop" | "pin" | "whole"} | {do: "recipe", id: string}} Order */
/**
 * Who knows: the kernel, or recordings.
 * @typedef {object} Model
 * @property {(name: string) => any} get
 * @property {(name: string, value: unknown) => void} set
 * @property {() => void} save_changes
 * @property {(order: Order) => void} send
 * @property {(event: string, heard: (message: any) => void) => void} on
 * @property {(event: string, heard: (message: any) => void) => void} off
 */

const UNSURE = "nothing";
/** The phases that a bet is on: the other two are milliseconds. */
const BETS = ["queue", "prefill", "decode", UNSURE];
/** Numbers are written so often, pictures with every frame. */
const WORDS_MS = 100;

/** @param {{model: Model, el: HTMLElement}} given @returns {() => void} what ends it */
function render({ model, el }) {
  /** @type {Spec} */ const spec = model.get("spec");
  const names = Object.fromEntries(spec.controls.map((control) => [control.field, control]));
  const playhead = new Playhead(), axis = new Axis();
  /** @type {Trace | null} */ let run = null;
  /** @type {Shown} */ let now = model.get("shown");
  /** @type {Noise} */ let noise = {};
  /** @type {Record<string, string>} */ const bets = {};
  /** @type {Recipe | null} */ let recipe = null;
  /** @type {number | null} */ let hovered = null;
  /** @type {number | null} */ let hoverTime = null;
  let chosenRow = 0, lastWords = 0;

  // ------------------------------------------------------------------ what there is
  const runButton = make("button", { type: "button", class: "mm-run", onclick: () => order({ do: "run" }) }, "▶ Run");
  const stopButton = make("button", { type: "button", onclick: () => order({ do: "stop" }) }, "■ Stop");
  const pinButton = make("button", { type: "button", title: "Keep this run on show as A, B or C", onclick: () => order({ do: "pin" }) }, "Pin");
  const resetButton = make("button", { type: "button", title: "All controls back to where they started",
    onclick: () => change({ fields: spec.start }) }, "Reset");
  const patterns = make("button", { type: "button", role: "switch", class: "mm-plain", title: "Hatch the phases' colours",
    onclick: () => change({ patterns: !settings().patterns }) }, "Patterns");
  const traffic = oneOf({ label: "Traffic", options: spec.traffics.map((each) => each.name), names: (name) => name,
    chosen: settings().traffic, help: (name) => spec.traffics.find((each) => each.name === name)?.about ?? "",
    choose: (name) => change({ traffic: name }) });
  const seed = make("input", { type: "number", min: 0, max: 999, "aria-label": "Seed: another one gives other requests of the same kind",
    title: "Another seed gives other requests of the same kind", onchange: () => change({ seed: Number(seed.value) || 0 }) });
  const prompt = make("input", { type: "text", class: "mm-prompt", placeholder: "Type a prompt, then press Run", "aria-label": "Your own prompt",
    oninput: () => change({ prompt: prompt.value }),
    onkeydown: (/** @type {KeyboardEvent} */ event) => { if (event.key === "Enter" && !runButton.disabled) runButton.click(); } });
  const chips = spec.recipes.map((each) => make("button", { type: "button", class: "mm-chip", title: each.watch, onclick: () => bet(each) }, each.label));
  const recipes = make("div", { class: "mm-recipes", role: "group", "aria-label": "Things to try" }, make("span", {}, "Try"), ...chips);
  const controls = controlPanel(spec.controls, settings().fields, (fields) => change({ fields }));
  const status = make("div", { class: "mm-status", role: "status" });
  const top = headline(), bars = phaseBars();
  const betBox = make("div", { class: "mm-bet", hidden: true });
  const reason = make("p", { class: "mm-why", tabindex: -1 });
  const timeline = make("canvas", { class: "mm-timeline", role: "img", "aria-label": "Where each request's time went" });
  const blocks = make("canvas", { class: "mm-blocks", role: "img", "aria-label": "Who holds the KV cache" });
  const blocksTitle = make("div", { class: "mm-title mm-kv" }), rowTitle = make("span", {}), rowText = make("div", { class: "mm-text", tabindex: 0, role: "group", "aria-label": "The request's text" });
  const scrub = make("input", { type: "range", min: 0, max: 1000, value: 1000, "aria-label": "Moment", oninput: () => freeze((Number(scrub.value) / 1000) * (run?.end ?? 0)) });
  const playButton = make("button", { type: "button", class: "mm-plain", onclick: replay }, "▶ Replay");
  const moment = make("span", { class: "mm-moment" });
  const side = make("div", { class: "mm-side" }, ...(spec.where ? [] : [blocksTitle, blocks]),
    make("div", { class: "mm-title mm-rowline" }, rowTitle,
      make("button", { type: "button", class: "mm-plain", "aria-label": "The request before", onclick: () => choose(chosenRow - 1) }, "‹"),
      make("button", { type: "button", class: "mm-plain", "aria-label": "The next request", onclick: () => choose(chosenRow + 1) }, "›")), rowText);
  const gone = make("div", { class: "mm-gone" }, "From an earlier session: it can be looked through; run this cell to use it.");
  const root = make("div", { class: `mm-dash${spec.where ? " mm-remote" : ""}`, role: "group", "aria-label": "Dashboard" },
    gone, make("div", { class: "mm-bar" }, runButton, stopButton, traffic.element, make("span", { class: "mm-right" },
      ...(spec.isRecorded ? [] : [make("label", { class: "mm-seed" }, "seed", seed), pinButton]), resetButton, patterns)),
    make("div", { class: "mm-tries" }, recipes, prompt),
    make("div", { class: "mm-body" }, spec.where ? make("div", { class: "mm-where" }, spec.where) : controls.element,
      make("div", { class: "mm-main" }, status, make("div", { class: "mm-top" }, top.element, betBox), bars.element, reason,
        make("div", { class: "mm-stage" }, make("div", { class: "mm-drawn" }, timeline, make("div", { class: "mm-scrub" }, playButton, scrub, moment)), side))));
  el.append(root);
  let palette = paletteOf(root, settings().patterns);
  const { wake, stop } = drawingLoop(root, { frame, restyle: () => { palette = paletteOf(root, settings().patterns); } });

  /** @returns {Settings} */
  function settings() { return model.get("settings"); }

  /** @param {Partial<Settings>} some */
  function change(some) {
    model.set("settings", { ...settings(), ...some });
    model.save_changes();
    refresh();
  }

  /** @param {Order} what */
  function order(what) {
    recipe = what.do === "recipe" ? recipe : null;
    closeBet(reason); // where it's told how the bet ended
    model.send(what);
  }

  // ------------------------------------------------------------------ bets
  /** The focus goes on, if the bet had it. @param {HTMLElement | undefined} next */
  function closeBet(next) {
    const hadFocus = betBox.contains(document.activeElement);
    betBox.hidden = true;
    if (hadFocus) next?.focus();
  }

  /** Sets a recipe's traffic and first settings, and asks. @param {Recipe} each */
  function bet(each) {
    recipe = each;
    change({ traffic: each.traffic, fields: { ...spec.start, ...each.first } });
    let said = bets[each.id] ?? "";
    const hint = make("span", { role: "status" });
    const lock = make("button", { type: "button", class: "mm-run", onclick: () => {
      if (!said) { say(hint, "Choose an answer first."); return; }
      bets[each.id] = said;
      order({ do: "recipe", id: each.id });
    } }, "Lock it, and run both");
    const answers = oneOf({ label: "Your bet", options: BETS, chosen: said, choose: (answer) => { said = answer; say(hint, ""); },
      names: (answer) => (answer === UNSURE ? "nothing, beyond noise" : PHASE_NAMES[answer]) });
    betBox.replaceChildren(
      make("p", {}, make("b", {}, `${changesOf(each.change, { ...spec.start, ...each.first })}, on ${each.traffic}. `), each.watch, " Which phase changes most?"),
      make("div", { class: "mm-answers" }, answers.element, lock,
        make("button", { type: "button", class: "mm-plain", onclick: () => { closeBet(chips[spec.recipes.indexOf(each)]); recipe = null; } }, "Not now"), hint));
    betBox.hidden = false;
    /** @type {HTMLElement | null} */ (answers.element.querySelector("[tabindex='0']"))?.focus();
  }

  /** What became of a bet. @param {Recipe} each */
  function verdictOf(each) {
    if (!run || !now.before || !bets[each.id]) return "";
    const isUnsure = Object.values(noise).some((judged) => judged.verdict === "unsure");
    const answer = moved(run, now.before, noise);
    const said = bets[each.id] === UNSURE ? "nothing" : PHASE_NAMES[bets[each.id]];
    if (!answer && isUnsure) return `You said ${said}. There aren't enough repeats yet to tell it from noise: lock it again.`;
    const told = bets[each.id] === (answer || UNSURE) ? "right" : `it is ${answer ? PHASE_NAMES[answer] : "nothing"}`;
    return `You said ${said}: ${told}. ${why(run, now.before, noise)} ${each.note}`;
  }

  /** In words: "slots 4 → 12". @param {Fields} to @param {Fields} from */
  function changesOf(to, from) {
    return Object.entries(to).filter(([field, value]) => from[field] !== value).map(([field, value]) =>
      `${names[field]?.label ?? field} ${shown(from[field], names[field]?.names)} → ${shown(value, names[field]?.names)}`).join(", ");
  }

  // ------------------------------------------------------------------ what is told
  function load() {
    const isNew = model.get("shown").id !== now.id || !run;
    now = model.get("shown");
    run = now.run ? structuredClone(now.run) : null;
    noise = now.before && run ? (run.on && !Object.keys(now.noise).length ? exactNoise(run, now.before) : now.noise) : {};
    if (run) {
      playhead.hear(run.end, run.state === "running", performance.now());
      if (isNew) {
        axis.reset(run.state === "running" ? 1.05 * Math.max(now.before?.end ?? 0, ...run.rows.map(({ due }) => due + 1)) : wholeOf());
        chosenRow = Math.min(chosenRow, run.rows.length - 1);
        if (run.state === "running") playhead.follow();
        else if (matchMedia("(prefers-reduced-motion: reduce)").matches) playhead.finish();
        else playhead.play();
      }
    }
    refresh();
  }

  /** @param {{more?: import("./trace.js").More, id?: number}} message */
  function hear({ more, id }) {
    if (!more || !run || id !== now.id) return;
    extend(run, more);
    playhead.hear(run.end, run.state === "running", performance.now());
    wake();
  }

  function refresh() {
    const { state, words: said } = /** @type {Status} */ (model.get("status")), wanted = settings(), isBusy = state === "busy";
    const isOwn = spec.own !== "" && wanted.traffic === spec.own;
    traffic.set(wanted.traffic);
    traffic.hold(isBusy);
    controls.set(wanted.fields);
    controls.hold(isBusy);
    recipes.hidden = isOwn;
    prompt.hidden = !isOwn;
    if (prompt.value !== wanted.prompt) prompt.value = wanted.prompt;
    seed.value = String(wanted.seed);
    seed.disabled = isBusy || isOwn;
    runButton.disabled = isBusy || (isOwn && !wanted.prompt.trim());
    stopButton.disabled = !isBusy;
    pinButton.disabled = isBusy || !run || run.state === "running";
    resetButton.disabled = isBusy;
    for (const chip of chips) chip.disabled = isBusy;
    patterns.setAttribute("aria-checked", String(wanted.patterns));
    root.classList.toggle("mm-patterned", wanted.patterns);
    const differs = run && now.before ? changesOf(run.config, now.before.config) : "";
    const changed = differs ? `changed: ${differs}` : now.before ? "nothing changed" : "";
    const told = run ? [`${run.state === "running" ? "running" : run.state} · ${run.traffic}: ${run.about}`, changed, now.note.includes(run.on) ? "" : run.on, now.note] : [];
    const line = state === "failed" ? `This cannot run. ${said}` : said || told.filter(Boolean).join(" · ");
    say(status, line || "Press Run: the requests appear here as they arrive.");
    status.title = line;
    status.classList.toggle("mm-failed", state === "failed");
    palette = paletteOf(root, wanted.patterns);
    wake();
  }

  // ------------------------------------------------------------------ what is drawn
  function wholeOf() {
    return run ? 1.02 * Math.max(run.end, now.before?.end ?? 0, 0.05) : 1;
  }

  /** @param {number} passed seconds @param {number} at ms @returns {boolean} */
  function frame(passed, at) {
    let isMoving = playhead.tick(passed, at);
    if (run) {
      const whole = run.state === "running" || playhead.mode === "live" ? null : wholeOf();
      isMoving = axis.tick(playhead.time, whole, passed) || isMoving;
      isMoving = draw(at, isMoving) || isMoving;
    }
    root.dataset.drawn = String(Number(root.dataset.drawn ?? 0) + 1); // for the benchmark: pictures so far
    root.dataset.mode = playhead.mode;
    return isMoving;
  }

  /** @param {number} at ms @param {boolean} isMoving @returns {boolean} whether something is left to settle */
  function draw(at, isMoving) {
    if (!run) return false;
    const time = hoverTime ?? playhead.time, isOver = run.state !== "running" && time >= run.end;
    const isFull = isOver && hoverTime === null;
    drawTimeline(timeline, scene(time), palette);
    drawBlocks(blocks, run, isFull ? fullestMoment(run) : time, hovered, palette);
    const others = /** @type {[string, Trace][]} */ ([...(now.before ? [[now.beforeName, now.before]] : []), ...now.pinned.filter(([name]) => name !== now.beforeName)]);
    const isSettled = bars.show(run, others, noise, time);
    if (at - lastWords >= WORDS_MS || !isMoving) {
      lastWords = at;
      words(time, isFull);
    }
    return !isSettled;
  }

  /** @param {number} time @returns {import("./timeline.js").Scene} */
  function scene(time) {
    const cursor = hoverTime !== null || playhead.mode !== "still";
    return { run: /** @type {Trace} */ (run), ghost: now.before, time, low: axis.low, high: axis.high, row: hovered, cursor };
  }

  /** @param {number} time @param {boolean} isFull */
  function words(time, isFull) {
    if (!run) return;
    top.show(run, now.before, noise, time, palette);
    const step = stepAt(run, time), held = heldAt(run, isFull ? fullestMoment(run) : time);
    const outcome = recipe && now.recipe === recipe.id && isFull ? verdictOf(recipe) : "";
    const tokens = step?.shares.reduce((sum, [, count]) => sum + count, 0);
    say(reason, isFull ? outcome || why(run, now.before, noise) : step
      ? `At ${seconds(time)}: a step of ${seconds(step.end - step.start)} with ${tokens} token${tokens === 1 ? "" : "s"}; ${step.running} running, ${step.waiting} waiting.`
      : run.blocks ? `At ${seconds(time)}: no step runs.` : `At ${seconds(time)}.`);
    say(blocksTitle, `KV blocks ${isFull ? "at their fullest" : "now"}: ${held.requests} of ${run.blocks} held${held.shared ? `, ${held.shared} shared (s)` : ""}${held.cached ? `, ${held.cached} kept for reuse` : ""}`);
    row(hovered ?? chosenRow, time);
    say(moment, `${playhead.mode === "frozen" ? "‖ " : ""}${seconds(Math.min(time, run.end))}`);
    const place = String(Math.round((1000 * Math.min(time, run.end)) / Math.max(run.end, 1e-9)));
    if (document.activeElement !== scrub || playhead.mode !== "frozen") scrub.value = place;
    scrub.setAttribute("aria-valuetext", seconds(time));
    say(playButton, playhead.mode === "playing" ? "» End" : "▶ Replay");
    playButton.disabled = scrub.disabled = run.state === "running";
    const means = meanPhases(run, time);
    timeline.setAttribute("aria-label", `${run.rows.length} requests as of ${seconds(time)}. Mean per phase: ${Object.entries(means).map(([phase, value]) => `${PHASE_NAMES[phase]} ${seconds(value)}`).join(", ")}.`);
  }

  /** A request in words. @param {number} i @param {number} time */
  function row(i, time) {
    const each = run?.rows[i];
    if (!each) return;
    const phase = phaseAt(each, time), borders = bordersAt(each, time);
    const state = each.refused ? `refused: ${each.refused}` : !borders ? "not sent yet" : phase || `${["stop", "length"].includes(each.reason) ? "done" : each.reason}, ${seconds(borders[5] - borders[0])}`;
    say(rowTitle, `#${i} · ${PHASE_NAMES[state] ?? state}${each.cached ? ` · ${each.cached} of ${each.prompt} cached` : ""}`);
    rowTitle.title = each.asked;
    const written = textAt(each, time);
    say(rowText, written || (each.asked ? `“${each.asked}”` : ""));
    rowText.classList.toggle("mm-asked", !written);
  }

  // ------------------------------------------------------------------ what is touched
  /** @param {number} i */
  function choose(i) {
    if (run) chosenRow = (i + run.rows.length) % run.rows.length;
    hovered = null;
    wake();
  }

  /** @param {number} time */
  function freeze(time) {
    hoverTime = null;
    if (run && time >= run.end) playhead.finish();
    else playhead.freeze(time);
    wake();
  }

  function replay() {
    if (playhead.mode === "playing") playhead.finish();
    else playhead.play();
    wake();
  }

  timeline.addEventListener("pointermove", (event) => {
    if (!run) return;
    const found = placeAt(timeline, scene(0), event.offsetX, event.offsetY);
    hovered = found.row;
    hoverTime = run.state === "running" || playhead.mode !== "still" || found.time === null || found.time >= run.end ? null : found.time;
    wake();
  });
  timeline.addEventListener("pointerleave", () => {
    hovered = hoverTime = null;
    wake();
  });
  timeline.addEventListener("click", (event) => {
    if (!run || run.state === "running") return;
    const found = placeAt(timeline, scene(0), event.offsetX, event.offsetY);
    if (found.row !== null) chosenRow = found.row;
    if (playhead.mode === "frozen") freeze(run.end);
    else if (found.time !== null) freeze(found.time);
  });
  root.addEventListener("keydown", (event) => { if (event.key === "Escape" && playhead.mode === "frozen" && run) freeze(run.end); });
  keepKeys(root);
  const deafen = listenTo(model, { "change:shown": load, "change:settings": refresh, "change:status": refresh, "msg:custom": hear });
  keepLastFrames();
  load();
  if (now.run?.state === "running") model.send({ do: "whole" }); // opened in mid-run: what came before now
  return () => {
    stop();
    deafen();
    clean(timeline);
  };
}

export { render };
