// One recorded incident as the console's port (course/incidents/console.py is the other one): what an action makes of the
// state that a session began with. Only what Python can't know in advance is worked out here: the clock, and the marks.
"use strict";

(() => {
  /**
   * @typedef {import("../../lab/view/console_types.js").State} State
   * @typedef {import("../../lab/view/console_types.js").Action} Action
   * @typedef {import("../../lab/view/console_types.js").Deployed & {regressions: string[], bill_before: number, bill_after: number, value: number, relief: number}} Effect
   * @typedef {{id: string, text: string, cost: string, minutes: number, quick: boolean, all: Effect, canary: Effect}} Change
   * @typedef {{cause: string, dominant: string, second: string, regime: string, evidence: string[], ruledOut: [string, string][], ranked: string[], asked: string[], minute: number}} Answer
   * @typedef {{change: Change | null, isCanary: boolean, mitigations: {change: Change, minute: number}[], attemptsUndone: number, canariesUndone: number, allUndone: number}} Rollout
   * @typedef {{minute: number, failing: number, waiting: number, answers: Record<string, import("../../lab/view/console_types.js").Evidence>}} Stage
   * @typedef {{id: string, alarm: string, start: State, curve: [number, number][], truth: import("../../lab/view/console_types.js").Debrief,
   *   questions: {id: string, group: string, text: string, minutes: number}[], stages: Stage[], changes: Change[],
   *   suspects: {id: string, title: string, alike: number}[], named: string[], rules_out: Record<string, string[]>, best: number,
   *   dominant: string[], second: string[], phase: string, regime: string, convict: string[], enough: number, moved: string[], twin: string,
   *   says: Record<string, string>, needed: number, fixes: string[], splits: string[],
   *   tempting: {id: string, why_not: string}, target: number, rules: Record<string, number>, clock: Record<string, number>}} Incident
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

  /** The incident at a minute: recorded at some, and in between on the way from one to the next. @param {Incident} incident @param {number} minute */
  function burning(incident, minute) {
    const after = incident.stages.find((each) => each.minute >= minute) ?? incident.stages[incident.stages.length - 1];
    const before = incident.stages.filter((each) => each.minute <= minute).at(-1) ?? after;
    const share = after === before ? 0 : (minute - before.minute) / (after.minute - before.minute);
    const mix = (/** @type {number} */ from, /** @type {number} */ to) => from + share * (to - from);
    const failing = mix(before.failing, after.failing);
    return { failing, waiting: Math.round(mix(before.waiting, after.waiting)), burned: (failing * (incident.clock.paged + minute)) / ((1 - incident.target) * incident.clock.day),
      curve: incident.curve.filter(([at]) => at <= minute) };
  }

  /**
   * Plays a recorded incident. Every answer is a new state, as a session's would be.
   * @param {Incident} incident
   * @returns {import("../../lab/view/console_types.js").Port}
   */
  function recordedPort(incident) {
    const { clock } = incident;
    /** @type {State} */ let state = { ...incident.start, title: `incident ${incident.id}` };
    /** @type {Rollout} */ const rollout = { change: null, isCanary: false, mitigations: [], attemptsUndone: 0, canariesUndone: 0, allUndone: 0 };
    /** @type {Answer | null} */ let answer = null;
    /** @type {number | null} */ let followedUp = null;
    let isForNow = false;

    /** @param {string} kind @param {string} told @param {string} saw @param {number} took minutes @param {Partial<State>} changed */
    function go(kind, told, saw = "", took = 0, changed = {}) {
      const minute = state.minute + took, relief = "relief" in changed ? changed.relief ?? null : state.relief;
      state = { ...state, minute, ...changed, ...burning(incident, relief?.minute ?? minute), events: [...state.events, { minute, kind, words: told, saw }] };
    }

    /** What was done before the diagnosis gives way to the follow-up for nothing, and so does one that restored the SLO. */
    function takeBack() {
      const { change, isCanary } = rollout;
      if (!change) return;
      if (isCanary) rollout.canariesUndone += 1;
      else if (!answer) rollout.attemptsUndone += change.quick && !change.all.restored ? 1 : 0;
      else if (!isForNow && !(change.all.restored && change.quick)) rollout.allUndone += 1;
    }

    /** @param {Change} change @param {boolean} isCanary */
    function deploy(change, isCanary) {
      const isKept = rollout.change === change && rollout.isCanary === isCanary;
      if (rollout.change !== change) takeBack();
      isForNow = answer === null;
      Object.assign(rollout, { change, isCanary });
      const effect = isCanary ? change.canary : change.all, began = state.minute;
      const took = isKept ? 0 : isCanary ? clock.canary : change.quick ? change.minutes : clock.plan, minute = began + took;
      followedUp = isCanary ? null : minute;
      let { relief } = state;
      if (change.quick && !isCanary && !isKept) {
        rollout.mitigations.push({ change, minute });
        relief = effect.restored ? relief ?? { minute, failing: 1 - effect.after } : null;
      }
      const where = isCanary ? "deployed to a canary" : change.quick ? "deployed to all" : "deployed for good";
      go(isKept ? "kept" : where, change.text, "", took, { relief, standing: [change.id], deployed: [...state.deployed, { ...effect, began, minute }] });
    }

    function rollBack() {
      const { change, isCanary } = rollout;
      if (!change) throw new Error("there is nothing to roll back");
      if (isCanary) rollout.canariesUndone += 1;
      else if (answer) rollout.allUndone += 1;
      else rollout.attemptsUndone += 1;
      const isMitigation = change.quick && !isCanary;
      if (isMitigation) rollout.mitigations = rollout.mitigations.filter((each) => each.change !== change);
      rollout.change = followedUp = null;
      go("rolled back", "", "", clock.back, { standing: [], relief: isMitigation ? null : state.relief });
    }

    /** @param {Extract<Action, {do: "commit"}>} said */
    function commit(said) {
      if (answer) throw new Error("this incident has its diagnosis: deploy something, or grade it");
      if (!said.cause && !said.phase && !said.ranked.length) throw new Error("a diagnosis needs a cause, a phase, or a change that would help: this one is blank");
      const { minute } = state, title = incident.suspects.find((each) => each.id === said.cause)?.title ?? "not said";
      answer = { cause: said.cause, dominant: said.phase, second: said.second, regime: said.regime, evidence: said.evidence, ranked: said.ranked, minute,
        ruledOut: said.by && said.other ? [[said.by, said.other]] : [], asked: state.evidence.map((each) => each.id) };
      const says = /** @type {[string, string][]} */ ([["Cause", title], ["Where the time is lost", words(said.phase) || "not said"], ["Second problem", words(said.second) || "not said"],
        ["Passes by itself", { spike: "yes, a spike", steady: "no, steady" }[said.regime] ?? "not said"]]);
      go("committed", `${title} (${words(said.phase) || "no phase"})`, "", 0, { diagnosis: { minute, says } });
    }

    /** @param {boolean} isSure */
    function grade(isSure) {
      if (!answer) throw new Error("there is nothing to grade: answer first");
      if (state.undeployed && !isSure) throw new Error("nothing is deployed to all: be sure that you want the grade without it");
      const marks = mark(incident, answer, rollout), score = marks.reduce((sum, each) => sum + each.points, 0), helped = state.relief?.minute ?? null;
      const reached = [helped, answer.minute, followedUp], undone = rollout.attemptsUndone + rollout.canariesUndone + rollout.allUndone;
      const share = `minillm incident ${incident.id}: ${helped === null ? "users still waiting" : `users helped in ${helped} min`}, ${Math.round(score)}/100, ${state.evidence.length} questions, diagnosis in ${answer.minute} min, ${undone} rolled back`;
      state = { ...state, debrief: { ...incident.truth, score, share, milestones: incident.truth.milestones.map((each, i) => ({ ...each, minute: reached[i] })),
        criteria: marks.map((each) => ({ name: each.name, earned: each.points, possible: each.most, feedback: each.says })) } };
    }

    /** @param {string} id */
    function ask(id) {
      const question = state.questions.find((each) => each.id === id);
      if (!question) throw new Error(`no question ${id}`);
      if (question.asked) return;
      const minute = state.minute + question.minutes, seen = state.relief?.minute ?? minute;
      const stage = incident.stages.filter((each) => each.minute <= seen).at(-1) ?? incident.stages[0], found = { ...stage.answers[id], minute };
      go("asked", question.text, found.text, question.minutes, { evidence: [...state.evidence, found],
        questions: state.questions.map((each) => (each.id === id ? { ...each, asked: true } : each)) });
    }

    /** @param {Action} action */
    function act(action) {
      if (action.do === "ask") ask(action.question);
      else if (action.do === "suspect") {
        if (!action.words.trim()) throw new Error("write down what you suspect; a few words will do");
        go("suspected", action.words.trim(), "", 0, { hypothesis: action.words.trim() });
      } else if (action.do === "deploy") {
        const [change, ...more] = action.changes.map((id) => incident.changes.find((each) => each.id === id));
        if (!change) throw new Error("name at least one change to deploy");
        if (more.length) throw new Error("only single changes were recorded: deploy one");
        deploy(change, action.canary);
      } else if (action.do === "roll_back") rollBack();
      else if (action.do === "commit") commit(action);
      else if (action.do === "grade") grade(action.sure);
      state = { ...state, undeployed: answer !== null && (rollout.change === null || rollout.isCanary) };
    }

    return {
      ask: async (action) => {
        act(action);
        return state;
      },
    };
  }

  Object.assign(window, { minillmIncidents: { mark, recordedPort } });
  const place = document.getElementById("incident"), page = /** @type {any} */ (window);
  if (!place || !page.minillmIncident) return;
  const port = recordedPort(page.minillmIncident);
  port.ask({ do: "look" }).then((start) => page.minillmConsole.mountConsole(place, port, start));
})();
