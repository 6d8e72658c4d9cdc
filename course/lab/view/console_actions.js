// The console's right: what can be done. Mitigate, ask, diagnose, deploy; what comes of a press is told beside it.
import { percent } from "./console_alarm.js";
import { tableOf } from "./console_evidence.js";
import { make, oneOf, say } from "./elements.js";
/** @typedef {import("./console_types.js").State} State */
/** @typedef {import("./console_types.js").Change} Change */
/** @typedef {import("./console_types.js").Deployed} Deployed */
/** @typedef {import("./console_types.js").Do} Do */
/** @typedef {{element: HTMLElement, update: (state: State) => void}} Part */

const RANKS = 3;
/** From so many changes on they can be searched. */
const SEARCHED = 20;
const NOTHING = { id: "", name: "none" };

/** Where a press is answered. */
const reply = () => make("p", { class: "mm-said", role: "status" });

/** @param {string} label @param {import("./console_types.js").Named[]} options @param {string} none */
function menuOf(label, options, none = "not said") {
  const select = make("select", {}, make("option", { value: "" }, none), ...options.map(({ id, name }) => make("option", { value: id }, name)));
  return { select, element: make("label", { class: "mm-field" }, make("span", {}, label), select) };
}

/** @param {string} label @param {import("./console_types.js").Named[]} options a choice of few, side by side */
function chipsOf(label, options) {
  let chosen = "";
  const chips = oneOf({ label, options: options.map((each) => each.id), names: (id) => options.find((each) => each.id === id)?.name ?? "", chosen, choose: (id) => { chosen = id; } });
  return { element: make("div", { class: "mm-field" }, make("span", {}, label), chips.element), value: () => chosen, hold: chips.hold };
}

/** What a deployment did: before and after, against the target. @param {Deployed} done */
function effectOf(done) {
  const bar = (/** @type {string} */ name, /** @type {number} */ share) => make("div", { class: "mm-share" }, make("span", {}, name),
    make("i", { style: `--share:${share};--target:${done.target}` }), make("b", {}, percent(share)));
  const verdict = !done.possible ? "It can't be built like this." : done.restored ? "The SLO is met." : "The SLO is still missed.";
  const lost = done.lost ? ` Users lose ${percent(done.lost)} of what they asked for.` : "";
  const worse = done.worse.length ? ` Worse now: ${done.worse.join(", ")}.` : "";
  const [before, after] = done.bill.map((dollars) => `$${dollars.toFixed(2)}`);
  const bill = before === after ? `${before} an hour, as before.` : `${before} → ${after} an hour.`;
  const where = done.canary ? "Canary: a tenth of the users. " : done.quick ? `In place at minute ${done.minute}. ` : "Arranged for good: quick changes stay until it's there. ";
  return make("div", { class: `mm-effect ${done.restored ? "mm-better" : "mm-worse"}` },
    bar("before", done.before), bar("after", done.after),
    make("p", {}, make("b", {}, verdict), ` Target ${percent(done.target)}. ${where}${bill}${lost}${worse}`),
    make("details", {}, make("summary", {}, "Latencies before and after"), tableOf(done.names, done.head, done.rows)));
}

/** What can be done before anything is known. @param {Change[]} changes @param {Do} act @returns {Part} */
function mitigatePart(changes, act) {
  const rows = changes.filter((each) => each.now).map((change) => {
    const said = reply(), result = make("div", {});
    const button = make("button", { type: "button", class: "mm-row", onclick: async () => {
      const after = await act({ do: "deploy", changes: [change.id], canary: false }, said);
      if (after) result.replaceChildren(effectOf(after.deployed[after.deployed.length - 1]));
    } }, make("b", {}, change.text), make("small", {}, change.cost.includes(";") ? change.cost.split("; ").slice(1).join("; ") : "no cost to users"));
    const back = make("button", { type: "button", class: "mm-small", onclick: () => act({ do: "roll_back" }, said) }, "Roll back");
    const standing = make("p", { class: "mm-standing" }, "In place.", back);
    return { change, button, standing, result, element: make("li", {}, button, said, result, standing) };
  });
  const lead = make("p", { class: "mm-lead" }, "Can be done right away, each in place after ten minutes. One at a time: the next replaces the last.");
  return {
    element: make("div", {}, lead, make("ul", { class: "mm-list" }, ...rows.map((each) => each.element))),
    update(state) {
      for (const { change, button, standing, result } of rows) {
        const isStanding = state.standing.length === 1 && state.standing[0] === change.id && !state.debrief;
        standing.hidden = !isStanding;
        button.classList.toggle("mm-on", isStanding);
        button.setAttribute("aria-disabled", String(state.debrief !== null));
        if (!isStanding && !state.standing.includes(change.id)) result.classList.add("mm-past");
        else result.classList.remove("mm-past");
      }
    },
  };
}

/** @param {State} start @param {Do} act @param {(id: string, goes: boolean) => void} look @returns {Part} */
function askPart(start, act, look) {
  const rows = start.questions.map((question) => {
    const said = reply(), mark = make("small", {}, `${question.minutes} min`);
    const button = make("button", { type: "button", class: "mm-row mm-question", onclick: async () => {
      if (button.dataset.asked) look(question.id, true);
      else if (await act({ do: "ask", question: question.id }, said)) look(question.id, false); // the answer is here as well
    } }, make("b", {}, question.text), mark);
    return { question, button, mark, said, element: make("li", {}, button, said) };
  });
  const groups = [...new Set(start.questions.map((each) => each.group))].map((group) => make("section", { "aria-label": group }, make("h3", {}, group),
    make("ul", { class: "mm-list" }, ...rows.filter((each) => each.question.group === group).map((each) => each.element))));
  return {
    element: make("div", {}, ...groups),
    update(state) {
      for (const { question, button, mark, said } of rows) {
        const found = state.evidence.find((each) => each.id === question.id);
        if (!found) continue;
        button.dataset.asked = "yes";
        say(mark, "show");
        say(said, found.text);
      }
    },
  };
}

/** @param {State} start @param {Do} act @param {() => void} onMenus @returns {Part} */
function diagnosePart(start, act, onMenus) {
  const said = reply(), saidOfIt = reply();
  const words = make("textarea", { rows: 3, "aria-label": "What you suspect", placeholder: "What do you think it is, and why? In your own words; no points." });
  const write = make("button", { type: "button", class: "mm-run", onclick: async () => { if (await act({ do: "suspect", words: words.value }, said)) onMenus(); } }, "Write it down, and see the menus");
  const first = make("div", {}, make("p", { class: "mm-lead" }, "Write down what you suspect before you see what it could be."), words, write, said);

  const causes = start.suspects, cause = menuOf("The cause", causes);
  const phase = chipsOf("Where the time is lost", start.places), second = chipsOf("A second problem", [NOTHING, ...start.places]);
  const regime = chipsOf("Does it pass by itself?", start.regimes);
  const proofs = make("fieldset", { class: "mm-checks" }, make("legend", {}, "What proves it"));
  const none = make("p", { class: "mm-empty" }, "Ask first: only what was asked can prove anything.");
  proofs.append(none);
  const other = menuOf("Not the cause", causes), by = menuOf("Ruled out by", []);
  const fixes = start.changes.map((each) => ({ id: each.id, name: `${each.text} (${each.cost})` }));
  const ranks = Array.from({ length: RANKS }, (_, i) => menuOf(`Fix, rank ${i + 1}`, fixes, "none"));
  /** @type {Map<string, HTMLInputElement>} */ const boxes = new Map();
  const commit = make("button", { type: "button", class: "mm-run", onclick: () => act({
    do: "commit", cause: cause.select.value, phase: phase.value(), second: second.value(), regime: regime.value(),
    evidence: [...boxes].filter(([, box]) => box.checked).map(([id]) => id), other: other.select.value, by: by.select.value,
    ranked: [...new Set(ranks.map((each) => each.select.value).filter(Boolean))],
  }, saidOfIt) }, "Commit to this");
  const form = make("div", { class: "mm-form" }, cause.element, phase.element, second.element, regime.element, proofs, other.element, by.element,
    ...ranks.map((each) => each.element), make("p", { class: "mm-lead" }, "A diagnosis is committed once."), commit, saidOfIt);
  const done = make("div", { class: "mm-done" });
  return {
    element: make("div", {}, first, form, done),
    update(state) {
      first.hidden = state.hypothesis !== "" || state.diagnosis !== null;
      form.hidden = state.hypothesis === "" || state.diagnosis !== null;
      done.hidden = state.diagnosis === null;
      none.hidden = state.evidence.length > 0;
      for (const found of state.evidence) {
        if (boxes.has(found.id)) continue;
        const box = make("input", { type: "checkbox" });
        boxes.set(found.id, box);
        proofs.append(make("label", {}, box, found.question));
        by.select.append(make("option", { value: found.id }, found.question));
      }
      if (state.diagnosis && !done.childElementCount) {
        done.append(make("p", { tabindex: -1 }, make("b", {}, `Committed at minute ${state.diagnosis.minute}.`), ` Now deploy a fix. ${state.rule}`),
          make("dl", {}, ...state.diagnosis.says.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])));
      }
    },
  };
}

/** @param {State} start @param {Do} act @returns {Part} */
function deployPart(start, act) {
  const said = reply(), result = make("div", {}), locked = make("p", { class: "mm-lead" }, "First write down what you suspect, under Diagnose: the list of changes would give it away.");
  const rows = start.changes.map((change) => {
    const box = make("input", { type: "checkbox" });
    return { change, box, element: make("label", { class: "mm-option" }, box, make("span", {}, change.text, make("small", {}, change.cost))) };
  });
  const groups = [...new Set(start.changes.map((each) => each.phase))].map((phase) => make("fieldset", { class: "mm-checks" }, make("legend", {}, phase),
    ...rows.filter((each) => each.change.phase === phase).map((each) => each.element)));
  const search = make("input", { type: "search", placeholder: "Search changes", "aria-label": "Search changes", oninput: () => {
    for (const { change, element } of rows) element.hidden = !`${change.text} ${change.phase}`.toLowerCase().includes(search.value.trim().toLowerCase());
    for (const group of groups) group.hidden = [...group.querySelectorAll("label")].every((each) => each.hidden);
  } });
  search.hidden = start.changes.length < SEARCHED;
  const deploy = async (/** @type {boolean} */ canary) => {
    const after = await act({ do: "deploy", changes: rows.filter((each) => each.box.checked).map((each) => each.change.id), canary }, said);
    if (after) result.replaceChildren(effectOf(after.deployed[after.deployed.length - 1]));
  };
  const canary = make("button", { type: "button", onclick: () => deploy(true) }, "To a canary");
  const all = make("button", { type: "button", class: "mm-run", onclick: () => deploy(false) }, "Deploy to all");
  const back = make("button", { type: "button", onclick: async () => { if (await act({ do: "roll_back" }, said)) result.replaceChildren(make("p", {}, "Rolled back.")); } }, "Roll back");
  const bar = make("div", { class: "mm-deploybar" }, make("div", { class: "mm-buttons" }, canary, all, back), said, result);
  const open = make("div", {}, search, make("div", { class: "mm-options" }, ...groups), bar);
  return {
    element: make("div", { class: "mm-deploying" }, locked, open),
    update(state) {
      const isOpen = state.hypothesis !== "" || state.diagnosis !== null;
      locked.hidden = isOpen;
      open.hidden = !isOpen;
      back.disabled = !state.standing.length || state.debrief !== null;
      canary.disabled = all.disabled = state.debrief !== null;
      for (const { change, element } of rows) element.classList.toggle("mm-on", state.standing.includes(change.id));
    },
  };
}

/** What comes next, in a sentence. @param {State} state */
function nextOf(state) {
  if (state.debrief) return "Graded.";
  if (state.diagnosis) return state.undeployed ? "Next: deploy a fix, to a canary, then to all." : "Next: grade it, or change what's deployed.";
  if (!state.deployed.length && !state.relief) return "Next: help users. Ask what you need to choose how.";
  return state.evidence.length < 2 ? "Next: ask what splits the number." : "Next: ask what decides it, then diagnose.";
}

/**
 * @param {State} start @param {Do} act @param {(id: string, goes: boolean) => void} look
 * @returns {{element: HTMLElement, update: (state: State) => void}}
 */
function actionsPane(start, act, look) {
  /** @type {[string, Part][]} */
  const parts = [["Mitigate", mitigatePart(start.changes, act)], ["Ask", askPart(start, act, look)], ["Diagnose", diagnosePart(start, act, () => parts[2][1].element.querySelector("select")?.focus())], ["Deploy", deployPart(start, act)]];
  const id = `mm${Math.random().toString(36).slice(2, 8)}`;
  const panels = parts.map(([, part], i) => make("div", { class: "mm-panel", role: "tabpanel", id: `${id}-panel${i}`, "aria-labelledby": `${id}-tab${i}`, tabindex: 0 }, part.element));
  const tabs = parts.map(([name], i) => make("button", { type: "button", role: "tab", id: `${id}-tab${i}`, "aria-controls": `${id}-panel${i}`, onclick: () => open(i),
    onkeydown: (/** @type {KeyboardEvent} */ event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      event.preventDefault();
      const to = (i + by + tabs.length) % tabs.length;
      open(to);
      tabs[to].focus();
    } }, name));
  /** @param {number} chosen */
  function open(chosen) {
    tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(i === chosen));
      tab.tabIndex = i === chosen ? 0 : -1;
      panels[i].hidden = i !== chosen;
    });
  }
  const next = make("p", { class: "mm-next" }), said = reply();
  const sure = make("div", { class: "mm-sure", role: "group", "aria-label": "Grade without a deployment?" });
  const grade = make("button", { type: "button", class: "mm-run", onclick: () => { if (grade.dataset.asks) confirm(); else act({ do: "grade", sure: false }, said); } }, "Grade me");
  function confirm() {
    const anyway = make("button", { type: "button", onclick: () => { sure.hidden = true; act({ do: "grade", sure: true }, said); } }, "Grade anyway");
    const back = make("button", { type: "button", class: "mm-run", onclick: () => { sure.hidden = true; open(3); tabs[3].focus(); } }, "Go back and deploy");
    sure.replaceChildren(make("b", {}, "Nothing is deployed to all. Grade anyway?"), back, anyway);
    sure.hidden = false;
    back.focus();
  }
  sure.hidden = true;
  open(0);
  const foot = make("div", { class: "mm-foot" }, next, grade, sure, said);
  return {
    element: make("section", { class: "mm-pane mm-actions", "aria-label": "Actions" }, make("h2", {}, "Actions"), make("div", { class: "mm-tabs", role: "tablist", "aria-label": "What can be done" }, ...tabs), ...panels, foot),
    update(state) {
      for (const [, part] of parts) part.update(state);
      say(next, nextOf(state));
      grade.hidden = state.diagnosis === null || state.debrief !== null;
      if (state.undeployed) grade.dataset.asks = "yes";
      else delete grade.dataset.asks;
      if (!state.undeployed) sure.hidden = true;
    },
  };
}

export { actionsPane };
