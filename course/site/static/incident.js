// One recorded incident: ask, suspect, commit, help users, deploy to a canary or to all, roll back, be graded (course/incidents).
"use strict";

(() => {
  /**
   * @typedef {{before: number, after: number, restored: boolean, regressions: string[], bill_before: number, bill_after: number, lost: number, value: number, relief: number, html: string}} Effect
   * @typedef {{id: string, text: string, cost: string, minutes: number, quick: boolean, now: boolean, all: Effect, canary: Effect}} Change
   * @typedef {{cause: string, dominant: string, second: string, regime: string, evidence: string[], ruledOut: [string, string][], ranked: string[], asked: string[], minute: number}} Answer
   * @typedef {{change: Change | null, isCanary: boolean, mitigations: {change: Change, minute: number}[], attemptsUndone: number, canariesUndone: number, allUndone: number, minutes: number}} Rollout
   * @typedef {{id: string, page: string, alarm: string, questions: {id: string, group: string, text: string, minutes: number}[],
   *   stages: {minute: number, failing: number, waiting: number, answers: Record<string, string>}[], changes: Change[], places: string[],
   *   suspects: {id: string, title: string, alike: number}[], named: string[], rules_out: Record<string, string[]>, best: number,
   *   dominant: string[], second: string[], phase: string, regime: string, convict: string[], enough: number, moved: string[], twin: string,
   *   says: Record<string, string>, needed: number, fixes: string[], splits: string[],
   *   tempting: {id: string, why_not: string}, target: number, told: string[], rules: Record<string, number>, clock: Record<string, number>}} Incident
   */
  const words = (/** @type {string} */ id) => id.replaceAll("_", " ");
  const percent = (/** @type {number} */ share) => `${Math.round(100 * share)}%`;
  const signed = (/** @type {number} */ value) => `${value < 0 ? "" : "+"}${value.toFixed(2)}`;
  const between = (/** @type {number} */ value) => Math.min(Math.max(value, 0), 1);

  /** Points by criterion, as course/incidents/marking.py gives them.
   * @param {Incident} incident @param {Answer} answer @param {Rollout} rollout @returns {{name: string, points: number, most: number, says: string}[]} */
  function mark(incident, answer, rollout) {
    const rule = incident.rules;
    const inTime = (/** @type {number} */ minute, /** @type {number} */ enough) => between((rule.SLOW - minute) / (rule.SLOW - enough));
    const isNamed = incident.named.includes(answer.cause);

    // The case: evidence for the cause, and against another one.
    const hits = answer.evidence.filter((id) => incident.convict.includes(id) && answer.asked.includes(id));
    const stray = answer.evidence.filter((id) => !incident.convict.includes(id) && !incident.splits.includes(id));
    const evidence = Math.min(hits.length / incident.enough, 1) * Math.max(1 - rule.PER_STRAY * stray.length, 0);
    let right = 0;
    let wrong = 0;
    for (const [question, cause] of answer.ruledOut) {
      if (!answer.asked.includes(question)) continue;
      if (incident.named.includes(cause) || !(incident.rules_out[question] ?? []).includes(cause)) wrong += 1;
      else right = Math.max(right, incident.suspects.find((each) => each.id === cause)?.alike ?? 0);
    }
    const alternative = between(right - wrong / 2);
    const strength = isNamed ? evidence * (rule.WITHOUT_ALTERNATIVE + (1 - rule.WITHOUT_ALTERNATIVE) * alternative) : 0;
    const shown = isNamed ? 1 : rule.UNNAMED;
    /** @type {{name: string, points: number, most: number, says: string}[]} */
    const found = [];

    // Helping users needs no diagnosis.
    const relief = (/** @type {{change: Change, minute: number}} */ each) => between(Math.max(each.change.all.relief, 0) / incident.best) * inTime(each.minute, rule.PROMPT);
    const helped = rollout.mitigations.reduce((best, each) => Math.max(best, relief(each)), 0);
    if (incident.best <= rule.NOTHING_HELPS) {
      found.push({ name: "minutes to mitigation", points: rule.MITIGATED * strength * inTime(answer.minute, rule.BRISK), most: rule.MITIGATED, says: "Nothing at hand would have helped: the sooner the cause is known, the better." });
    } else {
      const first = rollout.mitigations.find((each) => relief(each) === helped);
      const told = first ? `${percent(first.change.all.before)} to ${percent(first.change.all.after)} of requests within the SLO by minute ${first.minute} (${rule.PROMPT} are enough).` : "No quick change was deployed, so users weren't helped.";
      found.push({ name: "minutes to mitigation", points: rule.MITIGATED * helped * rule.UNDONE ** rollout.attemptsUndone, most: rule.MITIGATED, says: `${told} ${incident.says.mitigation}` });
    }

    found.push({ name: "cause", points: isNamed ? rule.CAUSE * strength : 0, most: rule.CAUSE, says: `${incident.says.cause} Your case is worth ${percent(strength)}, and everything but mitigation, evidence and ruling out is scaled by that.` });
    const isRight = incident.dominant.includes(answer.dominant);
    found.push({ name: "dominant phase", points: isRight ? rule.PHASE * strength : 0, most: rule.PHASE, says: incident.says["dominant phase"] });
    const second = new Set(incident.second);
    if (isRight) { second.add(incident.phase); second.delete(answer.dominant); }
    found.push({ name: "secondary problem", points: second.has(answer.second) ? rule.SECONDARY * strength : 0, most: rule.SECONDARY, says: `The second problem: ${[...second].map((id) => words(id) || "none").join(" or ")}.` });
    found.push({ name: "spike or steady", points: answer.regime === incident.regime ? rule.REGIME * strength : 0, most: rule.REGIME, says: incident.says["spike or steady"] });
    found.push({ name: "minutes to diagnosis", points: rule.SOON * inTime(answer.minute, rule.BRISK) * strength, most: rule.SOON, says: `Committed at minute ${answer.minute}, after ${answer.asked.length} questions; ${rule.BRISK} minutes are enough.` });
    /** @param {string} about @param {string[]} ids */
    const telling = (about, ids) => (ids.length ? ` ${about}: ${ids.map((id) => incident.questions.find((each) => each.id === id)?.text).filter(Boolean).join("; ")}.` : "");
    const others = stray.filter((id) => id !== "gpu");
    found.push({ name: "evidence", points: rule.EVIDENCE * evidence * shown, most: rule.EVIDENCE, says: [
      telling(`What changed since last week, and wouldn't have if the cause were '${incident.twin}'`, incident.convict).trim(),
      others.length < stray.length ? " GPU utilisation reads high in nearly every incident: it points at no cause." : "",
      telling("No more than context, or as last week", others.filter((id) => !incident.moved.includes(id))),
      telling("These changed as well, but the look-alike would have changed them, too", others.filter((id) => incident.moved.includes(id))),
    ].join("") });
    found.push({ name: "ruled out", points: rule.RULED_OUT * alternative * shown, most: rule.RULED_OUT, says: incident.says["ruled out"] });

    // What stands for good.
    const effect = rollout.isCanary || !rollout.change ? null : rollout.change.all;
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
        { name: "SLO restored", points: kept * strength, most: rule.RESTORED, says: `${percent(effect.before)} of requests before, ${percent(effect.after)} after, target ${percent(incident.target)}.${why}` },
        { name: "no harm", points: effect.restored && !effect.regressions.length ? rule.HARM * strength : 0, most: rule.HARM, says: (effect.regressions.length ? `Worse than before: ${effect.regressions.join(", ")}.` : "Nothing got worse.") + (effect.restored ? "" : " That counts only once the SLO is met.") },
        { name: "cost", points: effect.restored ? rule.COST * fair * strength : 0, most: rule.COST, says: `$${effect.bill_before.toFixed(2)} an hour before, $${effect.bill_after.toFixed(2)} after.` },
      );
    } else {
      for (const [name, most] of /** @type {[string, number][]} */ ([["SLO restored", rule.RESTORED], ["no harm", rule.HARM], ["cost", rule.COST]])) {
        found.push({ name, points: 0, most, says: "Nothing is deployed." });
      }
    }
    const worth = Object.fromEntries(incident.changes.map((each) => [each.id, each.all.value]));
    const compared = [...new Set([...answer.ranked, ...incident.fixes])].sort((a, b) => worth[b] - worth[a]);
    const text = (/** @type {string} */ id) => incident.changes.find((each) => each.id === id)?.text;
    const weigh = (/** @type {number[]} */ values) => values.slice(0, answer.ranked.length).reduce((sum, value, i) => sum + Math.max(value, 0) / (i + 1), 0);
    const possible = weigh(compared.map((id) => worth[id]));
    const told = compared.map((id) => `${text(id)} ${signed(worth[id])}`);
    const tempted = answer.ranked.slice(0, 2).includes(incident.tempting.id) ? ` ${text(incident.tempting.id)}: ${incident.tempting.why_not}` : "";
    found.push({ name: "ranking", points: possible ? (rule.RANKING * strength * weigh(answer.ranked.map((id) => worth[id]))) / possible : 0, most: rule.RANKING,
      says: answer.ranked.length ? `What each is worth, as share of requests saved, less its cost: ${told.join("; ")}.${tempted}` : "Nothing was ranked." });
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
  let isForNow = false;
  /** @type {Rollout} */ const rollout = { change: null, isCanary: false, mitigations: [], attemptsUndone: 0, canariesUndone: 0, allUndone: 0, minutes: 0 };
  /** @type {Set<string>} */ const asked = new Set();
  /** @type {Answer | null} */ let answer = null;
  /** @type {[number, string][]} */ const done = [[0, "paged"]];
  const status = make("p", "", { class: "status", role: "status" });
  const stage = () => incident.stages.filter((each) => each.minute <= (healed ?? minutes)).at(-1) ?? incident.stages[0];

  function tell() {
    const { failing, waiting } = stage();
    const burned = (failing * (incident.clock.paged + (healed ?? minutes))) / ((1 - incident.target) * incident.clock.day);
    const state = healed === null ? `${percent(failing)} of requests missed the SLO so far, ${Math.round(waiting)} waiting` : `SLO restored since minute ${healed}`;
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

  /** What was done before the diagnosis gives way to the follow-up for nothing, and so does one that restored the SLO. */
  function takeBack() {
    const { change, isCanary } = rollout;
    if (!change) return;
    if (isCanary) rollout.canariesUndone += 1;
    else if (!answer) rollout.attemptsUndone += change.all.restored ? 0 : 1;
    else if (!isForNow && !(change.all.restored && change.quick)) rollout.allUndone += 1;
  }

  /** @param {Change} change @param {boolean} isCanary @returns {HTMLElement[]} what it did */
  function put(change, isCanary) {
    if (rollout.change !== change) takeBack();
    isForNow = answer === null;
    Object.assign(rollout, { change, isCanary });
    const isQuick = change.quick;
    minutes += isCanary ? incident.clock.canary : isQuick ? change.minutes ?? incident.clock.all : incident.clock.plan;
    rollout.minutes = minutes;
    if (isQuick && !isCanary) {
      rollout.mitigations.push({ change, minute: minutes });
      healed = change.all.restored ? healed ?? minutes : null;
    }
    const where = isCanary ? "on a canary" : isQuick ? "on all" : `for good, in ${Math.round(change.minutes / incident.clock.day)} days`;
    done.push([minutes, `deployed ${where}: ${change.text}`]);
    tell();
    return [make("h3", `${change.text}, ${where}`), shown((isCanary ? change.canary : change.all).html)];
  }

  const helping = make("section", "", { "aria-label": "Help users first" });
  const helped = make("div", "", { role: "log", "aria-label": "What it did" });
  helping.append(make("h2", "Help users first"));
  for (const change of incident.changes.filter((each) => each.now)) {
    helping.append(button(`${change.text} (${change.cost})`, () => { if (!answer) helped.prepend(...put(change, false)); }, "quiet"));
  }
  helping.append(helped);

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
    const suspects = /** @type {[string, string][]} */ (incident.suspects.map((each) => [each.id, each.title]));
    const cause = choice("What is the cause?", suspects);
    const dominant = choice("Where is the time lost?", places);
    const second = choice("A second problem?", places);
    const regime = choice("Does it pass by itself?", [["steady", "no, it's steady"], ["spike", "yes, it's a spike"]]);
    const cited = make("fieldset");
    cited.append(make("legend", "Which answers prove it?"));
    const boxes = incident.questions.filter((each) => asked.has(each.id)).map((question) => {
      const label = make("label");
      const box = make("input", "", { type: "checkbox", value: question.id });
      label.append(box, ` ${question.text}`);
      cited.append(label);
      return box;
    });
    const other = choice("Which other cause is ruled out?", suspects);
    const by = choice("By which answer?", incident.questions.filter((each) => asked.has(each.id)).map((each) => [each.id, each.text]));
    const options = /** @type {[string, string][]} */ (incident.changes.map((each) => [each.id, `${each.text} (${each.cost})`]));
    const ranks = [1, 2, 3].map((place) => choice(`Change ${place}`, options));
    const problem = make("p", "", { role: "status" });
    diagnosis.append(cause.wrapped, dominant.wrapped, second.wrapped, regime.wrapped, cited, other.wrapped, by.wrapped, ...ranks.map((each) => each.wrapped), problem, button("Commit to this", () => {
      const ranked = [...new Set(ranks.map((each) => each.select.value).filter(Boolean))];
      if (!cause.select.value && !dominant.select.value && !ranked.length) { problem.textContent = "A diagnosis needs a cause, a place, or a change that would help."; return; }
      /** @type {[string, string][]} */
      const ruledOut = other.select.value && by.select.value ? [[by.select.value, other.select.value]] : [];
      answer = { cause: cause.select.value, minute: minutes, ruledOut, dominant: dominant.select.value, second: second.select.value, regime: regime.select.value, evidence: boxes.filter((each) => each.checked).map((each) => each.value), ranked, asked: [...asked] };
      done.push([minutes, `committed: ${cause.select.value ? `${cause.select.selectedOptions[0].text}, ` : ""}${words(answer.dominant) || "no phase"}`]);
      for (const section of [questions, diagnosis]) section.querySelectorAll("select, input, textarea").forEach((/** @type {any} */ each) => { each.disabled = true; });
      diagnosis.lastElementChild?.remove();
      deploying();
    }));
    cause.select.focus();
  }

  function deploying() {
    const section = make("section", "", { "aria-label": "Deploy" });
    const change = choice("One change", incident.changes.map((each) => [each.id, `${each.text} (${each.cost})`]));
    const log = make("div", "", { role: "log", "aria-label": "What it did" });
    const problem = make("p", "", { role: "status" });
    const press = (/** @type {boolean} */ isCanary) => {
      const found = incident.changes.find((each) => each.id === change.select.value);
      problem.textContent = found ? "" : "Choose a change first.";
      if (found) log.prepend(...put(found, isCanary));
    };
    section.append(make("h2", "Deploy"), change.wrapped,
      button("To a canary", () => press(true)), button("To all", () => press(false)),
      button("Roll back", () => {
        problem.textContent = rollout.change ? "" : "Nothing is deployed.";
        if (!rollout.change) return;
        if (rollout.isCanary) rollout.canariesUndone += 1; else rollout.allUndone += 1;
        if (rollout.change.quick && !rollout.isCanary) {
          rollout.mitigations.pop();
          healed = null;
        }
        rollout.change = null;
        minutes += incident.clock.back;
        rollout.minutes = minutes;
        done.push([minutes, "rolled back"]);
        tell();
      }, "quiet"),
      button("Grade", () => { section.querySelectorAll("button, select").forEach((/** @type {any} */ each) => { each.disabled = true; }); graded(); }, "quiet"), problem, log);
    arrive(section);
  }

  function graded() {
    if (!answer) return;
    const found = mark(incident, answer, rollout);
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
      make("p", `minillm incident ${incident.id}: ${healed === null ? "users still waiting" : `users helped in ${healed} min`}, ${Math.round(total)}/100, ${asked.size} questions, diagnosis in ${answer.minute} min, ${rollout.attemptsUndone + rollout.canariesUndone + rollout.allUndone} rolled back`, { class: "yours" }),
      button("Play it again", () => location.reload()), make("a", "Another incident", { href: "incidents_to_play.html" }));
    arrive(section);
  }

  tell();
  desk.append(shown(incident.page), status, helping, questions, diagnosis);
})();
