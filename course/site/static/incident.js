// One recorded incident: ask, suspect, commit, deploy to a canary or to all, roll back, be graded (course/incidents).
"use strict";

(() => {
  /**
   * @typedef {{before: number, after: number, restored: boolean, regressions: string[], bill_before: number, bill_after: number, lost: number, value: number, html: string}} Effect
   * @typedef {{id: string, text: string, cost: string, all: Effect, canary: Effect}} Change
   * @typedef {{dominant: string, second: string, regime: string, evidence: string[], ranked: string[], asked: string[]}} Answer
   * @typedef {{change: Change | null, isCanary: boolean, minutes: number, canariesUndone: number, allUndone: number}} Rollout
   * @typedef {{id: string, page: string, alarm: string, questions: {id: string, group: string, text: string, minutes: number}[],
   *   stages: {minute: number, failing: number, waiting: number, answers: Record<string, string>}[], changes: Change[], places: string[],
   *   dominant: string[], second: string[], phase: string, regime: string, convict: string[], enough: number, moved: string[], twin: string,
   *   says: Record<string, string>, needed: number, fixes: string[],
   *   tempting: {id: string, why_not: string}, target: number, told: string[], rules: Record<string, number>, clock: Record<string, number>}} Incident
   */
  const words = (/** @type {string} */ id) => id.replaceAll("_", " ");
  const percent = (/** @type {number} */ share) => `${Math.round(100 * share)}%`;

  /** Points by criterion, as course/incidents/marking.py gives them.
   * @param {Incident} incident @param {Answer} answer @param {Rollout} rollout @returns {{name: string, points: number, most: number, says: string}[]} */
  function mark(incident, answer, rollout) {
    const rule = incident.rules;
    const effect = rollout.isCanary || !rollout.change ? null : rollout.change.all;
    const found = [];
    if (effect) {
      const gained = Math.max(effect.after - effect.before, 0) / Math.max(incident.target - effect.before, 1e-9);
      const reached = effect.restored ? 1 : rule.HALFWAY * Math.min(gained, 1);
      const fair = Math.min(Math.max(effect.bill_before, incident.needed) / Math.max(effect.bill_after, 1e-9), 1);
      /** @type {[string, number][]} */
      const counts = [
        [`Taken back on the way: ${rollout.canariesUndone} canaries, ${rollout.allUndone} full rollouts`, rule.CANARY_UNDONE ** (rollout.canariesUndone * (rollout.canariesUndone + 1) / 2) * rule.ALL_UNDONE ** rollout.allUndone],
        [`Bought for ${(1 / fair).toFixed(1)} times the bill of a cure`, (rule.TOLERATED * fair) ** 2],
        [`Users lose ${percent(effect.lost)} of what they asked for`, 1 - effect.lost],
      ];
      const kept = counts.reduce((product, [, share]) => product * Math.min(share, 1), rule.RESTORED * reached);
      const why = (!effect.restored && rollout.change?.id === incident.tempting.id ? ` ${incident.tempting.why_not}` : "")
        + counts.filter(([, share]) => share < 1).map(([told, share]) => ` ${told}: counts ${percent(share)}.`).join("");
      found.push(
        { name: "SLO restored", points: kept, most: rule.RESTORED, says: `${percent(effect.before)} of requests before, ${percent(effect.after)} after, target ${percent(incident.target)}.${why}` },
        { name: "no harm", points: effect.restored && !effect.regressions.length ? rule.HARM : 0, most: rule.HARM, says: effect.regressions.length ? `Worse than before: ${effect.regressions.join(", ")}.` : "Nothing got worse." },
        { name: "cost", points: effect.restored ? rule.COST * fair : 0, most: rule.COST, says: `$${effect.bill_before.toFixed(2)} an hour before, $${effect.bill_after.toFixed(2)} after.` },
      );
    } else {
      for (const [name, most] of /** @type {[string, number][]} */ ([["SLO restored", rule.RESTORED], ["no harm", rule.HARM], ["cost", rule.COST]])) {
        found.push({ name, points: 0, most, says: "Nothing is deployed to all." });
      }
    }
    const isRight = incident.dominant.includes(answer.dominant);
    found.push({ name: "dominant phase", points: isRight ? rule.PHASE : 0, most: rule.PHASE, says: incident.says["dominant phase"] });
    const second = new Set(incident.second);
    if (isRight) { second.add(incident.phase); second.delete(answer.dominant); }
    found.push({ name: "secondary problem", points: second.has(answer.second) ? rule.SECONDARY : 0, most: rule.SECONDARY, says: `The second problem: ${[...second].map((id) => words(id) || "none").join(" or ")}.` });
    found.push({ name: "spike or steady", points: answer.regime === incident.regime ? rule.REGIME : 0, most: rule.REGIME, says: incident.says["spike or steady"] });
    const hits = answer.evidence.filter((id) => incident.convict.includes(id) && answer.asked.includes(id));
    const stray = answer.evidence.filter((id) => !incident.convict.includes(id));
    const share = Math.min(hits.length / incident.enough, 1) * Math.max(1 - rule.PER_STRAY * stray.length, 0);
    /** @param {string} about @param {string[]} ids */
    const telling = (about, ids) => (ids.length ? ` ${about}: ${ids.map((id) => incident.questions.find((each) => each.id === id)?.text).filter(Boolean).join("; ")}.` : "");
    const others = stray.filter((id) => id !== "gpu");
    found.push({ name: "evidence", points: rule.EVIDENCE * share, most: rule.EVIDENCE, says: [
      telling(`What has changed since last week, and would not under '${incident.twin}'`, incident.convict).trim(),
      others.length < stray.length ? " GPU utilisation reads high in nearly every incident: it points at no cause." : "",
      telling("No more than context, or as last week", others.filter((id) => !incident.moved.includes(id))),
      telling("Changed, and would under the look-alike too", others.filter((id) => incident.moved.includes(id))),
    ].join("") });
    const worth = Object.fromEntries(incident.changes.map((each) => [each.id, each.all.value]));
    const compared = [...new Set([...answer.ranked, ...incident.fixes])].sort((a, b) => worth[b] - worth[a]);
    const text = (/** @type {string} */ id) => incident.changes.find((each) => each.id === id)?.text;
    const weigh = (/** @type {number[]} */ values) => values.slice(0, answer.ranked.length).reduce((sum, value, i) => sum + Math.max(value, 0) / (i + 1), 0);
    const possible = weigh(compared.map((id) => worth[id]));
    const told = compared.map((id) => `${text(id)} ${worth[id] < 0 ? "" : "+"}${worth[id].toFixed(2)}`);
    const tempted = answer.ranked.slice(0, 2).includes(incident.tempting.id) ? ` ${text(incident.tempting.id)}: ${incident.tempting.why_not}` : "";
    found.push({ name: "ranking", points: possible ? (rule.RANKING * weigh(answer.ranked.map((id) => worth[id]))) / possible : 0, most: rule.RANKING,
      says: answer.ranked.length ? `What each is worth, as share of requests saved, less its cost: ${told.join("; ")}.${tempted}` : "Nothing was ranked." });
    const brisk = Math.min(Math.max((rule.SLOW - rollout.minutes) / (rule.SLOW - rule.BRISK), 0), 1);
    found.push({ name: "clock", points: effect?.restored ? rule.CLOCK * brisk : 0, most: rule.CLOCK, says: `${rollout.minutes} minutes to the end, ${answer.asked.length} questions; ${rule.BRISK} minutes are enough.` });
    return found;
  }

  Object.assign(window, { minillmIncidents: { mark } });
  const desk = document.getElementById("incident");
  const given = /** @type {Incident | undefined} */ (/** @type {any} */ (window).minillmIncident);
  if (!desk || !given) return;
  const incident = given;

  /** @param {string} tag @param {string} text @param {Record<string, string>} attributes @returns {any} */
  function make(tag, text = "", attributes = {}) {
    const element = document.createElement(tag);
    element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  }
  /** A row of a table. @param {string} tag of its cells @param {string[]} texts */
  function line(tag, texts) {
    const row = make("tr");
    row.append(...texts.map((text) => make(tag, text)));
    return row;
  }
  /** @param {string} html a recorded answer */
  function shown(html) {
    const box = make("div", "", { class: "output" });
    box.innerHTML = html;
    return box;
  }
  /** @param {string} label @param {[string, string][]} options */
  function choice(label, options) {
    const select = make("select");
    for (const [id, text] of [["", "–"], ...options]) select.add(new Option(text, id));
    const wrapped = make("label", `${label} `);
    wrapped.append(select);
    return { wrapped, select };
  }
  /** @param {string} text @param {() => void} press @param {string} look */
  function button(text, press, look = "") {
    const element = make("button", text, { type: "button", class: look });
    element.addEventListener("click", press);
    return element;
  }

  let minutes = 0;
  let isOver = false;
  /** @type {number | null} */ let healed = null;
  /** @type {Rollout} */ const rollout = { change: null, isCanary: false, minutes: 0, canariesUndone: 0, allUndone: 0 };
  /** @type {Set<string>} */ const asked = new Set();
  /** @type {Answer | null} */ let answer = null;
  /** @type {[number, string][]} */ const done = [[0, "paged"]];
  const status = make("p", "", { class: "status", role: "status" });
  const stage = () => incident.stages.filter((each) => each.minute <= (healed ?? minutes)).at(-1) ?? incident.stages[0];

  function tell() {
    const { failing, waiting } = stage();
    const burned = (failing * (incident.clock.paged + (healed ?? minutes))) / ((1 - incident.target) * incident.clock.day);
    const state = healed === null ? `${percent(failing)} of requests failed so far, ${Math.round(waiting)} waiting` : "SLO restored";
    status.textContent = `Minute ${minutes}: ${state}, ${percent(burned)} of the day's error budget burned`;
  }

  /** Append a section and go there, for eyes and for screen readers. @param {HTMLElement} section */
  function arrive(section) {
    desk?.append(section);
    const heading = section.querySelector("h2");
    heading?.setAttribute("tabindex", "-1");
    heading?.scrollIntoView();
    heading?.focus({ preventScroll: true });
  }

  const questions = make("section", "", { "aria-label": "Questions" });
  questions.append(make("h2", "Ask"));
  for (const group of new Set(incident.questions.map((each) => each.group))) {
    const box = make("div", "", { class: "asks" });
    box.append(make("h3", group));
    for (const question of incident.questions.filter((each) => each.group === group)) {
      const fold = make("details");
      const summary = make("summary", `${question.text} (${question.minutes} min)`);
      fold.append(summary);
      fold.addEventListener("toggle", () => {
        if (asked.has(question.id) || !fold.open) return;
        asked.add(question.id);
        fold.append(shown(stage().answers[question.id]));
        if (isOver) return; // to look at what was not asked costs nothing any more
        minutes += question.minutes;
        done.push([minutes, `asked: ${question.text}`]);
        tell();
      });
      box.append(fold);
    }
    questions.append(box);
  }

  const diagnosis = make("section", "", { "aria-label": "Diagnosis" });
  const hypothesis = make("textarea", "", { rows: "2" });
  const guess = make("label", "What do you think it is, in your own words?");
  guess.append(hypothesis);
  diagnosis.append(make("h2", "Commit"), guess, button("Show the menus", () => {
    done.push([minutes, `suspected: ${hypothesis.value.trim() || "nothing"}`]);
    diagnosis.lastElementChild?.remove();
    menus();
  }));

  function menus() {
    const places = /** @type {[string, string][]} */ (incident.places.map((id) => [id, words(id)]));
    const dominant = choice("Where is the time lost?", places);
    const second = choice("A second problem?", places);
    const regime = choice("Does it pass by itself?", [["steady", "no, it's steady"], ["spike", "yes, it's a spike"]]);
    const cited = make("fieldset");
    cited.append(make("legend", "Which answers convict it?"));
    const boxes = incident.questions.filter((each) => asked.has(each.id)).map((question) => {
      const label = make("label");
      const box = make("input", "", { type: "checkbox", value: question.id });
      label.append(box, ` ${question.text}`);
      cited.append(label);
      return box;
    });
    const options = /** @type {[string, string][]} */ (incident.changes.map((each) => [each.id, `${each.text} (${each.cost})`]));
    const ranks = [1, 2, 3].map((place) => choice(`Change ${place}`, options));
    const problem = make("p", "", { role: "status" });
    diagnosis.append(dominant.wrapped, second.wrapped, regime.wrapped, cited, ...ranks.map((each) => each.wrapped), problem, button("Commit to this", () => {
      const ranked = [...new Set(ranks.map((each) => each.select.value).filter(Boolean))];
      if (!dominant.select.value && !ranked.length) { problem.textContent = "A diagnosis needs a place, or a change that would help."; return; }
      answer = { dominant: dominant.select.value, second: second.select.value, regime: regime.select.value, evidence: boxes.filter((each) => each.checked).map((each) => each.value), ranked, asked: [...asked] };
      done.push([minutes, `committed: ${words(answer.dominant) || "no phase"}`]);
      for (const section of [questions, diagnosis]) section.querySelectorAll("select, input, textarea").forEach((/** @type {any} */ each) => { each.disabled = true; });
      diagnosis.lastElementChild?.remove();
      deploying();
    }));
    dominant.select.focus();
  }

  function deploying() {
    const section = make("section", "", { "aria-label": "Deploy" });
    const change = choice("One change", incident.changes.map((each) => [each.id, each.text]));
    const log = make("div", "", { role: "log", "aria-label": "What it did" });
    const problem = make("p", "", { role: "status" });
    const undo = (/** @type {boolean} */ wasCanary) => { if (wasCanary) rollout.canariesUndone += 1; else rollout.allUndone += 1; };
    const put = (/** @type {boolean} */ isCanary) => {
      const found = incident.changes.find((each) => each.id === change.select.value);
      problem.textContent = found ? "" : "Choose a change first.";
      if (!found) return;
      if (rollout.change && rollout.change !== found) undo(rollout.isCanary);
      Object.assign(rollout, { change: found, isCanary });
      minutes += isCanary ? incident.clock.canary : incident.clock.all;
      const effect = isCanary ? found.canary : found.all;
      healed = effect.restored && !isCanary ? minutes : null;
      done.push([minutes, `deployed to ${isCanary ? "a canary" : "all"}: ${found.text}`]);
      log.prepend(make("h3", isCanary ? "On a canary" : "On all"), shown(effect.html));
      tell();
    };
    section.append(make("h2", "Deploy"), change.wrapped,
      button("To a canary", () => put(true)), button("To all", () => put(false)),
      button("Roll back", () => {
        problem.textContent = rollout.change ? "" : "Nothing is deployed.";
        if (!rollout.change) return;
        undo(rollout.isCanary);
        rollout.change = healed = null;
        minutes += incident.clock.back;
        done.push([minutes, "rolled back"]);
        tell();
      }, "quiet"),
      button("Grade", () => { section.querySelectorAll("button, select").forEach((/** @type {any} */ each) => { each.disabled = true; }); graded(); }, "quiet"), problem, log);
    arrive(section);
  }

  function graded() {
    if (!answer) return;
    const found = mark(incident, answer, { ...rollout, minutes });
    const total = found.reduce((sum, each) => sum + each.points, 0);
    const section = make("section", "", { "aria-label": "Grade" });
    isOver = true;
    const table = make("table", "", { class: "marks" });
    for (const each of found) {
      const row = make("tr");
      row.append(make("th", each.name, { scope: "row" }), make("td", `${each.points.toFixed(1)} of ${each.most}`), make("td", each.says));
      table.append(row);
    }
    const truth = make("div");
    incident.told.forEach((text) => truth.append(make("p", text)));
    const tried = make("table");
    tried.append(line("th", ["change", "within the SLO after it", "worth"]));
    [...incident.changes].sort((a, b) => b.all.value - a.all.value).forEach((each) => tried.append(line("td", [each.text, percent(each.all.after), each.all.value.toFixed(2)])));
    const history = make("ol");
    done.forEach(([minute, what]) => history.append(make("li", `minute ${minute}: ${what}`)));
    section.append(make("h2", `${Math.round(total)} of 100`), table, make("h3", "What it was"), truth, make("h3", "What each change does, alone"), tried, make("h3", "What you did"), history,
      make("p", `minillm incident ${incident.id}: ${healed === null ? "still down" : "restored"}, ${Math.round(total)}/100, ${asked.size} questions, ${minutes} min, ${rollout.canariesUndone + rollout.allUndone} rolled back`, { class: "yours" }),
      button("Play it again", () => location.reload()), make("a", "Another incident", { href: "incidents_to_play.html" }));
    arrive(section);
  }

  tell();
  desk.append(shown(incident.page), status, questions, diagnosis);
})();
