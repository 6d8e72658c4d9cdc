// Python in the tab in the kernel's place: every combination of settings runs, on the engine's own scheduler.
import { heldModel } from "./held_model.js";
import { Refused } from "./port.js";
/** @typedef {import("./trace.js").Trace} Trace */
/** @typedef {import("./view.js").Settings} Settings */
/** @typedef {import("./view.js").Spec} Spec */
/** @typedef {import("./view.js").Order} Order */
/** @typedef {import("./port.js").TabPython} TabPython */

const LETTERS = "ABC";

/** What a link to a moment says: settings that aren't the usual ones. @param {Settings} settings @param {Spec} spec */
function toAddress({ traffic, seed, fields }, spec) {
  const changed = Object.entries(fields).filter(([name, value]) => value !== spec.start[name]);
  const said = [["traffic", traffic], ...(seed ? [["seed", String(seed)]] : []), ...changed.map(([name, value]) => [name, JSON.stringify(value)])];
  return `?${new URLSearchParams(said)}`;
}

/** Settings from a link; what it says of anything unknown counts for nothing. @param {string} address @param {Spec} spec @returns {Settings} */
function fromAddress(address, spec) {
  const said = new URLSearchParams(address), fields = { ...spec.start };
  for (const { field, choices } of spec.controls) {
    const offered = choices.length ? choices : [true, false];
    const chosen = offered.find((choice) => JSON.stringify(choice) === said.get(field));
    if (chosen !== undefined) fields[field] = chosen;
  }
  const traffic = spec.traffics.find(({ name }) => name === said.get("traffic"))?.name ?? spec.traffics[0].name;
  return { traffic, seed: Math.abs(Math.trunc(Number(said.get("seed")))) || 0, prompt: "", patterns: false, fields };
}

/**
 * @param {TabPython} python @param {Spec} spec @param {Settings} settings to begin with
 * @param {Trace} first a run to show until there is one
 * @returns {import("./view.js").Model}
 */
function tabModel(python, spec, settings, first) {
  /** @type {Record<string, any>} */
  const state = { spec, settings, status: { state: "idle", words: "" },
    shown: { id: 0, run: first, before: null, beforeName: "previous", noise: {}, pinned: [], note: "", recipe: "" } };
  const model = heldModel(state, send);
  /** @type {[string, Trace][]} */ let pinned = [];
  /** Which requests a run was of. @type {WeakMap<Trace, string>} */ const played = new WeakMap([[first, `${first.traffic} 0`]]);
  let count = 0;

  /** @param {Trace} run @param {Trace | null} before @param {string} beforeName @param {string} recipe */
  function show(run, before, beforeName, recipe) {
    count += 1;
    /** @param {Trace | null} other */
    const isSame = (other) => Boolean(other) && played.get(/** @type {Trace} */ (other)) === played.get(run);
    const beside = pinned.filter(([, other]) => other !== run && isSame(other));
    model.set("shown", { id: count, run, before: isSame(before) ? before : null, beforeName, noise: {}, pinned: beside, note: "", recipe });
  }

  /** @param {string} letter @param {Trace} run */
  function pin(letter, run) {
    pinned = [...pinned.filter(([name]) => name !== letter), [letter, run]];
  }

  /** @param {string} traffic @param {number} seed @param {Trace[]} runs */
  function note(traffic, seed, runs) {
    for (const run of runs) played.set(run, `${traffic} ${seed}`);
  }

  /** @param {Order} order */
  async function work(order) {
    const now = /** @type {Settings} */ (state.settings), before = /** @type {Trace} */ (state.shown.run);
    if (order.do === "pin") {
      if (!pinned.some(([, run]) => run === before)) pin([...LETTERS].find((letter) => !pinned.some(([name]) => name === letter)) ?? pinned[0][0], before);
    } else if (order.do === "recipe") {
      const recipe = spec.recipes.find((each) => each.id === order.id);
      if (!recipe) return;
      model.set("settings", { ...now, traffic: recipe.traffic, fields: { ...spec.start, ...recipe.first, ...recipe.change } });
      const [was, second] = await python.ask("dashboard.recipe", { name: recipe.id, seed: now.seed });
      note(recipe.traffic, now.seed, [was, second]);
      pin("A", was);
      pin("B", second);
      show(second, was, "A", recipe.id);
    } else if (order.do === "run") {
      const run = await python.ask("dashboard.run", { traffic: now.traffic, seed: now.seed, fields: now.fields });
      note(now.traffic, now.seed, [run]);
      show(run, before, "previous", "");
    }
    if (location.protocol !== "file:") history.replaceState(null, "", toAddress(state.settings, spec));
  }

  /** @param {Order} order */
  async function send(order) {
    if (order.do === "stop" || order.do === "whole") return; // a run is over before anyone could
    model.set("status", { state: "busy", words: "The scheduler is working, in this tab." });
    try {
      await work(order);
      model.set("status", { state: "idle", words: "" });
    } catch (error) {
      model.set("status", { state: "failed", words: error instanceof Refused ? error.message : `Python in this tab failed: ${error}. Reload the page.` });
    }
  }

  return model;
}

export { fromAddress, tabModel, toAddress };
