// Recorded runs in the kernel's place, for pages that have none.
import { heldModel } from "./held_model.js";
import { renderLive } from "./live.js";
import { renderPlayer } from "./player.js";
import { TabPython } from "./port.js";
import { fromAddress, tabModel } from "./tab.js";
import { render } from "./view.js";
/** @typedef {import("./trace.js").Trace} Trace */
/** @typedef {import("./view.js").Settings} Settings */
/** @typedef {import("./view.js").Spec} Spec */
/** @typedef {import("./view.js").Order} Order */

/** @typedef {{fields: Record<string, unknown>, run: Trace}} Recorded fields: those that differ from where the controls start */
/** @typedef {{spec: Spec, note: string, runs: Record<string, Recorded[]>}} Library runs by traffic; the first has no changes */

/**
 * @param {Library} library
 * @returns {import("./view.js").Model}
 */
function recordedModel(library) {
  /** @type {Record<string, any>} */
  const state = {
    spec: { ...library.spec, isRecorded: true },
    settings: { traffic: library.spec.traffics[0].name, seed: 0, prompt: "", patterns: false, fields: library.spec.start },
    status: { state: "idle", words: "" },
  };
  const model = heldModel(state, send);
  let count = 0;
  /** @param {Trace} run @param {Trace | null} before @param {string} beforeName @param {string} recipe */
  function show(run, before, beforeName, recipe) {
    count += 1;
    model.set("shown", { id: count, run, before, beforeName, noise: {}, pinned: before && recipe ? [[beforeName, before]] : [], note: library.note, recipe });
  }

  /** @param {string} traffic @param {Record<string, unknown>} fields */
  function find(traffic, fields) {
    const { start } = library.spec;
    return library.runs[traffic]?.find((each) => Object.entries({ ...start, ...each.fields }).every(([name, value]) => fields[name] === value));
  }

  /** @param {Order} order */
  function send(order) {
    const settings = /** @type {Settings} */ (state.settings), { start, recipes } = library.spec;
    if (order.do === "recipe") {
      const recipe = recipes.find((each) => each.id === order.id);
      if (!recipe) return;
      const fields = { ...start, ...recipe.first, ...recipe.change };
      const [first, second] = [find(recipe.traffic, { ...start, ...recipe.first }), find(recipe.traffic, fields)];
      model.set("settings", { ...settings, traffic: recipe.traffic, fields });
      if (first && second) show(second.run, first.run, "A", recipe.id);
    } else if (order.do === "run") {
      const found = find(settings.traffic, settings.fields), before = state.shown.run;
      model.set("status", found ? { state: "idle", words: "" }
        : { state: "failed", words: "Nobody recorded this combination: change one thing at a time here. In the notebook every one of them runs." });
      if (found) show(found.run, before?.traffic === settings.traffic && before !== found.run ? before : null, "previous", "");
    }
  }

  show(library.runs[state.settings.traffic][0].run, null, "", "");
  return model;
}

/** What was packed by gzip, in base64. @param {string} packed @returns {Promise<any>} */
async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed), (each) => each.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** Puts a player in the place of each run that the page holds. */
async function mountPlayers() {
  for (const el of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-replay]"))) {
    const played = await unpack(el.dataset.replay ?? "");
    el.replaceChildren();
    renderPlayer({ model: heldModel({ played }), el });
  }
}

/**
 * Fills each place on the page that asks for a dashboard: with recordings first, and with Python in the tab once it is there.
 * @param {string} packed
 */
async function mountAll(packed) {
  /** @type {Library} */ const library = await unpack(packed);
  for (const el of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-dashboard]"))) {
    el.replaceChildren();
    const model = recordedModel(library), end = render({ model, el });
    if (el.dataset.python) void takeOver(el, el.dataset.python, model, end);
  }
}

/**
 * Python in this tab, once it is there; what it is waiting for is told to the page.
 * @param {string} script the worker's @param {string} until what the page shows meanwhile
 */
function startedPython(script, until) {
  return new TabPython(new URL(script, document.baseURI), (stage) => tellState(stage && `Python is starting in this tab: ${stage} … Until then ${until}.`));
}

/** @param {string} words */
function tellState(words) {
  const told = document.querySelector("[data-python-state]");
  if (told) told.textContent = words;
}

/** A page opened from disk may start no worker. */
const mayStart = () => location.protocol !== "file:";

/**
 * From recordings to runs: the settings stay, and so does what is on show.
 * @param {HTMLElement} el @param {string} script the worker's @param {import("./view.js").Model} recorded @param {() => void} end
 */
async function takeOver(el, script, recorded, end) {
  if (!mayStart()) return;
  try {
    const python = startedPython(script, "these are recordings");
    /** @type {Spec} */ const spec = await python.ask("dashboard.spec");
    const link = fromAddress(location.search, spec), was = /** @type {Settings} */ (recorded.get("settings"));
    const isLinked = location.search.length > 1;
    const model = tabModel(python, spec, isLinked ? link : { ...link, traffic: was.traffic, fields: { ...spec.start, ...was.fields } }, recorded.get("shown").run);
    end();
    el.replaceChildren();
    render({ model, el });
    el.dataset.isLive = "yes";
    tellState("Live: every run is made in this tab, by the course's own scheduler on a simulated GPU.");
    if (isLinked) model.send({ do: "run" });
  } catch (error) {
    tellState(`Python did not start in this tab (${error}): these are recordings.`);
  }
}

/** Python is 18 MB and seconds of a phone's time: not for who reads the first lines and leaves. @param {Element} el @returns {Promise<void>} */
const inSight = (el) => new Promise((seen) => {
  new IntersectionObserver((entries, sight) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    sight.disconnect();
    seen();
  }).observe(el);
});

/** Puts a server that goes on in the place of what was recorded of one. */
async function mountLive() {
  for (const el of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-live]"))) {
    if (!el.dataset.live || !mayStart()) continue;
    await inSight(el);
    try {
      await renderLive({ python: startedPython(el.dataset.live, "this is a recording"), el });
      el.dataset.isLive = "yes";
      tellState("Live in this tab: the course's own scheduler serves endless traffic, on a simulated L4 with an 8B. The address keeps what you set.");
    } catch (error) {
      tellState(`Python did not start in this tab (${error}): this is a recording.`);
    }
  }
}

export { mountAll, mountLive, mountPlayers };
