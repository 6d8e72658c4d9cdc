// Eight chats with a real model in this tab: its weights are fetched on request, and all of them share one engine's steps.
import { make, oneOf, say } from "./elements.js";
import { drawLiveStrip } from "./live_strip.js";
import { LiveTraffic } from "./live_traffic.js";
import { drawingLoop } from "./loop.js";
import { paletteOf } from "./paint.js";
import { Refused, TabPython } from "./port.js";
import { number, seconds } from "./say.js";
import { PHASES, PHASE_NAMES, percentile } from "./trace.js";
/** @typedef {import("./live_traffic.js").News & {said: Record<string, string>}} ChatNews */
/** @typedef {Record<string, number | string | boolean>} ChatFields */

const QUESTIONS = [
  "Why is the sky blue?", "What is a photon?", "What is a queue in computing?", "Why do cats purr?",
  "How do I boil an egg?", "Write two lines about the sea.", "Give me a tip for better sleep.", "Why is water wet?",
];
/** @type {{field: string, label: string, options: (number | string | boolean)[], names: (option: any) => string}[]} */
const CHAT_SWITCHES = [
  { field: "max_num_seqs", label: "Slots", options: [8, 4, 1], names: String },
  { field: "max_num_batched_tokens", label: "Tokens a step", options: [64, 16, 256], names: String },
  { field: "batching", label: "Batching", options: ["continuous", "static"], names: String },
  { field: "enable_prefix_caching", label: "Prefix cache", options: [true, false], names: (on) => (on ? "on" : "off") },
];
const LENGTHS = [48, 96, 24], TEMPERATURES = [0, 0.7];
/** Seconds of the axis. */
const CHAT_SPANS = [24, 12, 6, 3, 1.5];
/** So far behind what is known the picture may be, seconds. */
const LATEST_S = 0.4;
const MEGA = 1e6;
/** What can be bet on: how many times as long a chat waits for a token beside seven others. */
const TIMES = [1, 2, 4, 8];

/** @param {HTMLElement} el with the worker's script in data-python, the model's folder in data-model and its size in data-bytes */
function mountChats(el) {
  if (location.protocol === "file:") {
    el.replaceChildren(make("p", {}, "A page opened from disk can't start Python. Run ", make("code", {}, "make site"), ": it serves the site, and the model runs there."));
    return;
  }
  const bytes = Number(el.dataset.bytes), megabytes = number(Math.round(bytes / MEGA));
  const folder = new URL(el.dataset.model ?? "", document.baseURI);
  const bar = make("progress", { max: bytes, value: 0, hidden: true, "aria-label": "Fetched" });
  const told = make("p", { role: "status" }, `The model is SmolLM2-135M, its weights in 4 bits: ${megabytes} MB, fetched once and kept by this browser. With it, the page takes about 500 MB of memory.`);
  const fetchButton = make("button", { type: "button", class: "mm-run", onclick: () => void begin() }, `Fetch the model (${megabytes} MB)`);
  el.replaceChildren(make("div", { class: "mm-dash mm-chats" }, told, fetchButton, bar));
  let stage = "", tell = () => {};
  // Python starts with the page: by the time somebody has read it, only the model is missing.
  const python = new TabPython(new URL(el.dataset.python ?? "", document.baseURI), (now) => { stage = now; tell(); });
  void isKept(folder).then((kept) => { if (kept) say(fetchButton, "Start the model (this browser has it)"); });

  async function begin() {
    fetchButton.disabled = true;
    let done = 0;
    tell = () => say(told, done < bytes ? `Fetching the model: ${number(Math.round(done / MEGA))} of ${megabytes} MB${stage ? `. Python: ${stage}` : ""} …` : `Starting: ${stage || "the engine"} …`);
    try {
      bar.hidden = false;
      await python.load(folder, (now) => { done = now; bar.value = now; tell(); });
      const server = await python.ask("chats.open", { fields: {} });
      await renderChats({ python, server, el });
      el.dataset.isLive = "yes";
    } catch (error) {
      say(told, `The model could not be started: ${error instanceof Error ? error.message : error}. Reload the page to try again.`);
      bar.hidden = true;
    }
  }
}

/** Whether this browser has the weights already. @param {URL} folder the model's */
async function isKept(folder) {
  try {
    const { weights } = await (await fetch(new URL("model.json", folder))).json();
    return Boolean(await (await caches.open("minillm-weights")).match(new URL(weights, folder)));
  } catch {
    return false; // a private window may keep nothing
  }
}

/** What an answer's time went into. @param {LiveTraffic} traffic @param {number} i the request */
function phasesInWords(traffic, i) {
  const { borders = [], tokens = [] } = traffic.requests.get(i) ?? {};
  const told = PHASES.map((phase, k) => `${PHASE_NAMES[phase]} ${seconds(borders[k + 1] - borders[k])}`);
  return `${told.join(" · ")} (${tokens.length} tokens)`;
}

/** @param {{python: TabPython, server: number, el: HTMLElement}} given */
async function renderChats({ python, server, el }) {
  let settings = await python.ask("chats.settings", {}, server);
  const traffic = new LiveTraffic();
  let time = 0, zoom = 1, length = LENGTHS[0], temperature = TEMPERATURES[0], isServing = false, failed = "";

  // ------------------------------------------------------------------ what there is
  const chats = QUESTIONS.map((question, i) => {
    const input = make("input", { type: "text", value: question, "aria-label": `Chat ${i + 1}: your message`, maxlength: 600,
      onkeydown: (/** @type {KeyboardEvent} */ event) => { if (event.key === "Enter") void ask([i]); } });
    const send = make("button", { type: "button", onclick: () => void (chats[i].request === null ? ask([i]) : stop(i)) }, "Send");
    const turns = make("div", { class: "mm-turns", tabindex: 0, role: "log", "aria-label": `Chat ${i + 1}` });
    const element = make("section", { class: "mm-chat" }, turns, make("div", { class: "mm-chat-line" }, input, send));
    return { input, send, turns, element, /** @type {number | null} */ request: null, answer: /** @type {HTMLElement | null} */ (null) };
  });
  const switches = CHAT_SWITCHES.map(({ field, label, options, names }) => {
    const chosen = oneOf({ label, options, names, chosen: settings.fields[field], choose: (option) => void change({ [field]: option }) });
    return { field, chosen, element: make("span", { class: "mm-live-switch" }, make("span", {}, label), chosen.element) };
  });
  const lengths = oneOf({ label: "Most tokens", options: LENGTHS, names: String, chosen: length, choose: (option) => { length = option; } });
  const warmth = oneOf({ label: "Temperature", options: TEMPERATURES, names: String, chosen: temperature, choose: (option) => { temperature = option; } });
  const all = make("button", { type: "button", class: "mm-run", onclick: () => void ask(chats.map((_, i) => i)) }, "Send all eight");
  const anew = make("button", { type: "button", onclick: () => void forget() }, "New conversations");
  const figures = ["TTFT p50", "worst gap between tokens", "last step", "tokens/s", "queued now"].map((name) => {
    const value = make("b", {});
    return { value, element: make("div", { class: "mm-live-figure" }, make("span", {}, name), value) };
  });
  const strip = make("canvas", { class: "mm-live-strip", role: "img", "aria-label": "Requests and steps" });
  const wider = make("button", { type: "button", "aria-label": "Wider", onclick: () => zoomBy(-1) }, "−");
  const closer = make("button", { type: "button", "aria-label": "Closer", onclick: () => zoomBy(1) }, "+");
  const span = make("span", { class: "mm-moment" }), told = make("div", { class: "mm-live-told", role: "status" });
  let betOn = 0;
  const lockButton = make("button", { type: "button", class: "mm-run", disabled: true, onclick: () => void lock() }, "Lock it");
  const answers = oneOf({ label: "Your bet", options: TIMES, names: (times) => (times === 1 ? "as long" : `${times} times`), chosen: 0,
    choose: (times) => { betOn = times; lockButton.disabled = isServing; } });
  const bet = make("div", { class: "mm-live-bet" }, make("b", {}, "A bet: "), "with all eight running, how long does a chat wait for each token, compared with one chat alone? ", answers.element, lockButton);
  const root = make("div", { class: "mm-dash mm-live mm-chats", role: "group", "aria-label": "Eight chats, live" },
    make("div", { class: "mm-live-switches" }, ...switches.map(({ element }) => element),
      make("span", { class: "mm-live-switch" }, make("span", {}, "Most tokens"), lengths.element),
      make("span", { class: "mm-live-switch" }, make("span", {}, "Temperature"), warmth.element)),
    make("div", { class: "mm-live-below" }, all, anew), bet, told,
    make("div", { class: "mm-chat-grid" }, ...chats.map(({ element }) => element)),
    make("div", { class: "mm-live-figures" }, ...figures.map(({ element }) => element)), strip,
    make("div", { class: "mm-live-below" }, wider, closer, span));
  el.replaceChildren(root);
  let palette = paletteOf(root, false);
  const loop = drawingLoop(root, { frame, restyle: () => { palette = paletteOf(root, false); } });
  loop.wake();

  // ------------------------------------------------------------------ what is asked
  /** @param {unknown} error */
  const inWords = (error) => (error instanceof Refused ? error.message : `Python in this tab failed: ${error}. Reload the page.`);

  /** @param {number[]} which chats */
  async function ask(which) {
    const asked = which.filter((i) => chats[i].request === null && chats[i].input.value.trim());
    await Promise.all(asked.map(async (i) => {
      const chat = chats[i], text = chat.input.value.trim();
      try {
        chat.request = await python.ask("chats.say", { chat: i, text, max_tokens: length, temperature }, server);
        chat.answer = make("p", { class: "mm-said" });
        chat.turns.append(make("p", { class: "mm-asked" }, text), chat.answer);
        say(chat.send, "Stop");
      } catch (error) {
        say(told, `Chat ${i + 1}: ${inWords(error)}`);
      }
    }));
    await serve();
  }

  /** Seconds of a step in which so many chats decode and none prefills: the middle one. @param {number} count */
  function decodeStep(count) {
    const steps = traffic.steps.filter(({ running, shares }) => running === count && shares.length === count && shares.every(([, , isPrefill]) => !isPrefill));
    return percentile(steps.map(({ start, end }) => end - start), 50);
  }

  /** One chat alone, then all of them, and what that says of the bet. */
  async function lock() {
    bet.hidden = true;
    chats[0].turns.focus(); // the button that had it is gone: next is the chat that goes first
    say(told, `Locked: ${betOn === 1 ? "as long" : `${betOn} times as long`}. Chat 1 goes first, alone; then all eight.`);
    await ask([0]);
    const alone = decodeStep(1);
    await ask(chats.map((_, i) => i));
    const together = decodeStep(chats.length);
    if (failed) return;
    if (alone === null || together === null) {
      say(told, "Your bet isn't decided: in no step did all eight chats decode together. Reload the page to bet again.");
      return;
    }
    const ratio = together / alone, [nearest] = [...TIMES].sort((a, b) => Math.abs(Math.log(ratio / a)) - Math.abs(Math.log(ratio / b)));
    say(told, `You said ${betOn === 1 ? "as long" : `${betOn} times`}: ${nearest === betOn ? "right" : "not this time"}. Alone, a token took ${seconds(alone)}; beside seven others, ${seconds(together)}, `
      + `${number(ratio)} times as long. So eight chats together get ${number(chats.length / ratio)} times the tokens a second. A step reads the weights once, however many chats share it, and multiplies for each of them.`);
  }

  /** @param {number} i */
  async function stop(i) {
    try {
      await python.ask("chats.stop", { number: chats[i].request }, server);
    } catch (error) {
      say(told, `Chat ${i + 1}: ${inWords(error)}`);
    }
  }

  async function forget() {
    await Promise.all(chats.map(async ({ turns, request, input }, i) => {
      if (request !== null) return;
      try {
        await python.ask("chats.forget", { chat: i }, server);
        turns.replaceChildren();
        input.value = QUESTIONS[i];
      } catch (error) {
        say(told, `Chat ${i + 1}: ${inWords(error)}`);
      }
    }));
  }

  /** @param {ChatFields} some */
  async function change(some) {
    try {
      settings = await python.ask("chats.change", { fields: some }, server);
      bet.hidden = true; // it's on the settings as they were
      say(told, "From the next message on. The KV cache begins empty.");
    } catch (error) {
      say(told, inWords(error));
    }
    for (const { field, chosen } of switches) chosen.set(settings.fields[field]);
  }

  /** Steps, a moment's worth at a time, until every answer is whole and taken. */
  async function serve() {
    if (isServing) return;
    isServing = true;
    for (const { chosen } of switches) chosen.hold(true);
    try {
      while (chats.some(({ request }) => request !== null)) {
        hear(await python.ask("chats.go_on", {}, server));
      }
    } catch (error) {
      failed = inWords(error);
    }
    isServing = false;
    for (const { chosen } of switches) chosen.hold(false);
    loop.wake();
  }

  /** @param {ChatNews} news */
  function hear(news) {
    traffic.hear(news);
    time = Math.max(time, traffic.known - LATEST_S);
    for (const chat of chats) {
      if (chat.request === null || !chat.answer) continue;
      chat.answer.append(news.said[chat.request] ?? "");
      chat.turns.scrollTop = chat.turns.scrollHeight;
      if (news.ended.some(({ i }) => i === chat.request)) {
        chat.answer.after(make("p", { class: "mm-told" }, phasesInWords(traffic, chat.request)));
        chat.turns.scrollTop = chat.turns.scrollHeight;
        chat.request = null;
        say(chat.send, "Send");
      }
    }
    loop.wake();
  }

  // ------------------------------------------------------------------ what is drawn
  /** @param {number} passed seconds @returns {boolean} whether it moves on */
  function frame(passed) {
    time = Math.min(time + passed, traffic.known);
    drawLiveStrip(strip, { traffic, time, span: CHAT_SPANS[zoom], slots: settings.slots, budget: settings.budget, changes: [] }, palette);
    const { ttft, worstGap, tokensPerS, queued, running } = traffic.figuresAt(time);
    const lastStep = traffic.steps.filter(({ end }) => end <= time).at(-1);
    [seconds(ttft), seconds(worstGap), seconds(lastStep ? lastStep.end - lastStep.start : null), number(Math.round(tokensPerS)), String(queued)].forEach((words, k) => say(figures[k].value, words));
    strip.setAttribute("aria-label", `The last ${CHAT_SPANS[zoom]} seconds: ${running} requests running, ${queued} queued.`);
    say(span, `${CHAT_SPANS[zoom]} s of this tab's own clock`);
    wider.disabled = zoom === 0;
    closer.disabled = zoom === CHAT_SPANS.length - 1;
    all.disabled = isServing;
    anew.disabled = isServing;
    lockButton.disabled = isServing || !betOn;
    if (failed) say(told, failed);
    return isServing || time < traffic.known;
  }

  /** @param {number} by */
  function zoomBy(by) {
    zoom = Math.min(Math.max(zoom + by, 0), CHAT_SPANS.length - 1);
    loop.wake();
  }
}

export { mountChats };
