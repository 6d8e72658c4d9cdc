// One drill as the port of the drill's view (course/drills/console.py is the other one): the steps are Python's, what is
// right of an answer is told here.
"use strict";

(() => {
  /**
   * @typedef {import("../../lab/view/drill_types.js").State} State
   * @typedef {import("../../lab/view/drill_types.js").Stage} Stage
   * @typedef {import("../../lab/view/drill_types.js").Verdict} Verdict
   * @typedef {import("../../lab/view/drill_types.js").Action} Action
   * @typedef {Generator<Stage, Verdict, Record<string, string>>} Steps each is sent what was filled in, by key
   * @typedef {{asks: string, number?: string, if_fix?: string[], if_dominant?: string[], [condition: string]: string | string[] | undefined}} FollowUp
   * @typedef {{key: string, name: string, asks: string, anchors: string[]}} Criterion
   * @typedef {{value: number, unit: string, shown: number, room: number, written: string, asks: string}} Asked
   * @typedef {{dominant: string, second: string, number: string, unit: string, fixes: string[], finding: string, then: string}} Commit
   * @typedef {{grades: Record<string, string>, why: Record<string, string>}} Sample
   * @typedef {{key: string, asks: string, says: string, use: string, changes: string}} Fact
   * @typedef {{says: string, is_true: boolean, because: string, source: string}} Claim
   * @typedef {{agrees: boolean, sure: number} | null} Judgement
   * @typedef {{key: string, name: string, points: number, most: number, says: string}} Checked
   * @typedef {{start: State, stages: Stage[], graders: {name: string, says: string}[], solution: string, tags: string, prompt: string, causes: Record<string, string>,
   *   techniques: Record<string, string>, remedies: Record<string, string[]>, units: Record<string, [string, number]>,
   *   facts: Fact[], questions: number, statements: Claim[], sure: Record<string, number>,
   *   standing: {borne: number, statements_weigh: number, bars: [string, number][]}, criteria: Criterion[], must_say: string[],
   *   follow_ups: FollowUp[], most_follow_ups: number, ranks: number[], levels: string[], hopeless: number, least_words: number,
   *   samples: Record<string, Sample>,
   *   commit: {dominant: Record<string, number>, second: Record<string, number>, fixes: Record<string, number>, number: Asked}}} Drill
   */

  /** right, wrong or missing, and whether its unit was chosen, as course/drills/amounts.py has it.
   * @param {Drill} drill @param {Commit} commit @returns {{state: string, hasUnit: boolean}} */
  function number(drill, commit) {
    const asked = drill.commit.number;
    const given = minillmWritten.amount(commit.number, commit.unit);
    if (!given) return { state: "missing", hasUnit: false };
    const near = (/** @type {number} */ right) => Math.abs(given.value - right) <= asked.room * Math.abs(right);
    const isPlain = asked.unit === "" || (asked.unit === "ratio" && asked.value >= 1);
    const fits = isPlain ? [null, "", "ratio", "tokens"] : asked.unit === "tokens" ? [""] : [];
    if ([asked.unit, ...fits].includes(given.unit) && near(asked.value)) return { state: "right", hasUnit: true };
    const lacksUnit = given.unit === null && (near(asked.shown) || near(asked.value));
    return { state: lacksUnit ? "right" : "wrong", hasUnit: false };
  }

  /** What would change one's mind: a finding that bears on the case, and a fix that acts on it and wasn't first anyway.
   * @param {Drill} drill @param {Commit} commit @returns {Checked} */
  function mind(drill, commit) {
    const fact = drill.facts.find((each) => each.key === commit.finding);
    const told = { key: "mind", name: "What would change your mind", most: 2 };
    if (!fact) return { ...told, points: 0, says: "You named no finding that would change your mind." };
    if (fact.use === "idle") return { ...told, points: 0, says: `“${fact.asks}” changes nothing here, whatever the answer.` };
    const bears = `“${fact.asks}” bears on ${drill.causes[fact.changes] ?? drill.techniques[fact.changes]}`;
    const then = drill.techniques[commit.then];
    if (!then) return { ...told, points: 1, says: `${bears}; you didn't say what you'd do then.` };
    if (commit.then === commit.fixes[0]) return { ...told, points: 1, says: `${bears}; but you'd put ${then} first anyway, so nothing changes.` };
    const acts = commit.then === fact.changes || (drill.remedies[fact.changes] ?? []).includes(commit.then);
    return { ...told, points: acts ? 2 : 1, says: acts ? `${bears}, and ${then} acts on that.` : `${bears}; ${then} doesn't act on that.` };
  }

  /** Points of what was committed to, as course/drills/checks.py gives them.
   * @param {Drill} drill @param {Commit} commit @returns {Checked[]} */
  function checks(drill, commit) {
    const right = drill.commit;
    const best = (/** @type {Record<string, number>} */ of, /** @type {Record<string, string>} */ labels, most = 3) =>
      Object.keys(of).filter((id) => of[id] > 0).sort((a, b) => of[b] - of[a]).slice(0, most).map((id) => labels[id]);
    const cause = (/** @type {string} */ id, /** @type {Record<string, number>} */ of, /** @type {number} */ most) => {
      const points = most * (of[id] ?? 0);
      const closer = best(of, drill.causes, 2).join(" or ");
      return { points, most, says: points === most ? "Right." : !id ? `You committed to nothing. It's ${closer}.` : points ? `Partly; ${closer} is closer.` : `No, it's ${closer}.` };
    };
    const { state, hasUnit } = number(drill, commit);
    const written = right.number.written;
    const ofMind = mind(drill, commit);
    const hasTalk = drill.facts.length > 0;
    const counted = { ...right.fixes };
    if (commit.finding && !ofMind.points) counted.measure = Math.min(counted.measure ?? 0, 0);
    const ranks = drill.ranks;
    const sorted = Object.values(right.fixes).sort((a, b) => b - a);
    const most = ranks.reduce((sum, rank, i) => sum + rank * Math.max(sorted[i] ?? 0, 0), 0);
    const got = commit.fixes.reduce((sum, id, i) => sum + ranks[i] * (counted[id] ?? 0), 0);
    const effect = (/** @type {string} */ id) => {
      const is = right.fixes[id] ?? 0;
      if (is > 0 && !counted[id]) return "but not for a finding that changes nothing";
      return is < 0 ? "does nothing here, or does harm" : is ? "helps" : "beside the point here";
    };
    const found = [
      { key: "dominant", name: "What dominates", ...cause(commit.dominant, right.dominant, 2) },
      { key: "second", name: "The second problem", ...cause(commit.second, right.second, 1) },
      { key: "number", name: "The number", points: state === "right" ? (hasUnit ? 2 : 1) : 0, most: 2,
        says: state === "right" ? (hasUnit ? "Right." : `Right, but for its unit. It's ${written}.`) : state === "wrong" ? `No, it's ${written}.` : `You gave no number. It's ${written}.` },
      { key: "fixes", name: "Fixes, ranked", points: (2 * Math.max(got, 0)) / most, most: 2,
        says: `${commit.fixes.map((id) => `${drill.techniques[id]}: ${effect(id)}`).join("; ") || "You ranked no fix"}. Worth most: ${best(right.fixes, drill.techniques).join(", ")}.` },
    ];
    return hasTalk ? [...found, ofMind] : found;
  }

  /** Brier's rule: 1 when sure and right, 0 for a guess, -2.6 when sure and wrong. @param {Claim} claim @param {Judgement} judgement */
  function worth(claim, judgement) {
    if (!judgement) return 0;
    const likely = judgement.sure / 100;
    return 1 - 4 * (judgement.agrees === claim.is_true ? 1 - likely : likely) ** 2;
  }

  /** What was committed to, and what was understood, as course/drills/verdict.py has it; null where nothing was stated.
   * @param {Drill} drill @param {Checked[]} found @param {Judgement[]} judgements @returns {{answer: number, understanding: number | null}} */
  function sharesOf(drill, found, judgements) {
    const share = (/** @type {Checked[]} */ of) => of.reduce((sum, each) => sum + each.points, 0) / of.reduce((sum, each) => sum + each.most, 0);
    const answer = share(found.filter((each) => each.key !== "mind"));
    if (!drill.statements.length) return { answer, understanding: null };
    const score = drill.statements.reduce((sum, claim, i) => sum + worth(claim, judgements[i] ?? null), 0) / drill.statements.length;
    const weigh = drill.standing.statements_weigh, ofMind = share(found.filter((each) => each.key === "mind"));
    return { answer, understanding: weigh * score + (1 - weigh) * Math.min(ofMind, Math.max(score, 0)) };
  }

  /** The level; empty below all. @param {Drill} drill @param {Checked[]} found @param {Judgement[]} judgements */
  function levelOf(drill, found, judgements) {
    const { answer, understanding } = sharesOf(drill, found, judgements), { borne, bars } = drill.standing;
    if (understanding === null) return "";
    const value = (Math.min(answer, understanding + borne) + understanding) / 2;
    return bars.filter(([, least]) => value >= least).map(([name]) => name).at(-1) ?? "";
  }

  /** What an interviewer asks after this commit, what went wrong first. @param {Drill} drill @param {Commit} commit @returns {string[]} */
  function followUps(drill, commit) {
    const state = number(drill, commit).state;
    const meets = (/** @type {FollowUp} */ each, /** @type {string} */ what, /** @type {string[]} */ present) => {
      const wanted = /** @type {string[]} */ (each[`if_${what}`] ?? []);
      const unwanted = /** @type {string[]} */ (each[`unless_${what}`] ?? []);
      return (!wanted.length || wanted.some((id) => present.includes(id))) && !unwanted.some((id) => present.includes(id));
    };
    const asked = drill.follow_ups.filter((each) => (!each.number || each.number === state)
      && meets(each, "dominant", [commit.dominant]) && meets(each, "second", [commit.second]) && meets(each, "fix", commit.fixes));
    const wrongCause = drill.commit.dominant[commit.dominant] ? "" : commit.dominant;
    const harms = [...commit.fixes].sort((a, b) => (drill.commit.fixes[a] ?? 0) - (drill.commit.fixes[b] ?? 0))[0] ?? "";
    const isFlaw = (/** @type {FollowUp} */ each) => ["wrong", "missing"].includes(each.number ?? "")
      || (wrongCause && (each.if_dominant ?? []).includes(wrongCause))
      || ((drill.commit.fixes[harms] ?? 0) < 0 && (each.if_fix ?? []).includes(harms));
    const sorted = [...asked.filter(isFlaw), ...asked.filter((each) => !isFlaw(each))];
    return [...new Set(sorted.map((each) => each.asks))];
  }

  const bare = (/** @type {string} */ text) => (text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? []).join(" ");
  const standsIn = (/** @type {string} */ quote, /** @type {string} */ answer, least = 8) =>
    bare(quote).split(" ").length >= least && ` ${bare(answer)} `.includes(` ${bare(quote)} `);

  /** @param {Drill} drill @param {string} part @returns {Stage[]} */
  const stagesOf = (drill, part) => drill.stages.filter((each) => each.part === part);

  /** All steps after the writing, and what comes out. @param {Drill} drill @param {string} text the answer @param {Fact[]} answered @returns {Steps} */
  function* steps(drill, text, answered) {
    const committed = yield* committing(drill, answered);
    yield* pushback(drill, text, committed);
    /** @type {Judgement[]} */ let judgements = [];
    for (const stage of stagesOf(drill, "Statements")) {
      const said = yield stage;
      judgements = stage.fields.map(({ key }) => {
        const [word, percent] = (said[key] ?? "").split(" ");
        return word ? { agrees: word === "agree", sure: Number(percent) } : null;
      });
    }
    const off = yield* gradeSamples(drill), mean = off.length ? off.reduce((sum, each) => sum + Math.abs(each.gap), 0) / off.length : drill.hopeless;
    const weight = Math.max(0, 1 - mean / drill.hopeless);
    const wrong = off.filter((each) => each.gap).map((each) => each.says);
    const told = off.length ? `${off.length - wrong.length} of ${off.length} grades as they should be, so your own weigh ${Math.round(100 * weight)}%.` : "You graded no sample, so your own grade weighs nothing.";
    const [own] = stagesOf(drill, "Yourself"), said = yield { ...own, text: [...wrong, told].join("\n\n") };
    return verdict(drill, text, committed, judgements, weight, said);
  }

  /** @param {Drill} drill @param {Fact[]} answered @returns {Generator<Stage, Commit, Record<string, string>>} */
  function* committing(drill, answered) {
    const [stage] = stagesOf(drill, "Commit"), open = (/** @type {string} */ id) => !answered.some((each) => each.key === id);
    const fields = stage.fields.map((each) => (each.key === "finding" ? { ...each, options: (each.options ?? []).filter(({ id }) => open(id)) } : each));
    let text = "";
    for (;;) {
      const said = yield { ...stage, text, fields }, ranked = drill.ranks.map((_, i) => said[`fix ${i + 1}`]).filter(Boolean);
      const plain = (/** @type {string} */ key) => said[key] ?? "";
      const commit = { dominant: plain("dominant"), second: plain("second"), number: plain("number"), unit: plain("unit"), finding: plain("finding"), then: plain("then"), fixes: [...new Set(ranked)] };
      try {
        minillmWritten.amount(commit.number, commit.unit);
        return commit;
      } catch (problem) {
        if (!(problem instanceof minillmSteps.Refused)) throw problem;
        text = problem.message;
      }
    }
  }

  /** One question at a time; what the answer has said already isn't counted. @param {Drill} drill @param {string} text @param {Commit} committed @returns {Generator<Stage, void, Record<string, string>>} */
  function* pushback(drill, text, committed) {
    let taken = 0;
    for (const asks of followUps(drill, committed)) {
      if (taken === drill.most_follow_ups) return;
      const said = yield { part: "Pushback", title: "The interviewer asks", text: `${asks}\n\nIf your answer has said it, quote those words: ${drill.least_words} or more.`,
        fields: [{ key: "reply", label: "you", options: null, about: "", long: true }] };
      taken += standsIn(said.reply ?? "", text, drill.least_words) ? 0 : 1;
    }
  }

  /** @param {Drill} drill @returns {Generator<Stage, {gap: number, says: string}[], Record<string, string>>} how far off each grade was */
  function* gradeSamples(drill) {
    const off = [], labels = Object.keys(drill.samples);
    for (const [i, stage] of stagesOf(drill, "Calibration").entries()) {
      const said = yield stage, sample = drill.samples[labels[i]];
      for (const each of drill.criteria.filter(({ key }) => said[key])) {
        const right = sample.grades[each.key], place = drill.levels.indexOf(right), why = sample.why[each.key] ?? `${right}: ${each.anchors[place]}`;
        off.push({ gap: drill.levels.indexOf(said[each.key]) - place, says: `Answer ${labels[i]}, ${each.name}: you said ${said[each.key]}, it is ${right}. ${why}` });
      }
    }
    return off;
  }

  /** The learner's own levels, each with words of the answer. @param {Drill} drill @param {string} text @param {number} weight @param {Record<string, string>} said */
  function ownGrades(drill, text, weight, said) {
    /** @type {string[]} */ const used = [];
    return drill.criteria.map(({ key, name }) => {
      const level = said[key] ?? "", quote = bare(said[`${key} quote`] ?? ""), isWeak = level === drill.levels[0];
      const isNew = !used.some((other) => other.includes(quote) || quote.includes(other));
      const counts = isWeak || (standsIn(quote, text, drill.least_words) && isNew);
      if (counts && quote && !isWeak) used.push(quote);
      const why = isNew ? `it needs ${drill.least_words} words of your answer or more` : "you've used that sentence already";
      return `${name}: ${level ? (counts ? `${level}, weighs ${Math.round(100 * weight)}%` : `${level}, which doesn't count: ${why}`) : "not graded"}`;
    });
  }

  /** @param {Drill} drill @param {string} text @param {Commit} committed @param {Judgement[]} judgements @param {number} weight @param {Record<string, string>} said @returns {Verdict} */
  function verdict(drill, text, committed, judgements, weight, said) {
    const found = checks(drill, committed), sum = (/** @type {number[]} */ of) => of.reduce((total, each) => total + each, 0);
    const right = judgements.filter((each, i) => each && each.agrees === drill.statements[i].is_true).length;
    const parts = [`commitments ${sum(found.map((each) => each.points)).toFixed(1)} of ${sum(found.map((each) => each.most))}`];
    if (drill.statements.length) parts.push(`statements ${right} of ${drill.statements.length}`);
    parts.push(`argument: yours, weighs ${Math.round(100 * weight)}%, unread by the page`);
    const claims = drill.statements.map((claim, i) => {
      const judged = judgements[i] ?? null, words = judged ? `you: ${judged.agrees ? "agree" : "disagree"}, ${judged.sure}%` : "not answered";
      return `[${worth(claim, judged).toFixed(1)}] ${claim.says} ${claim.is_true ? "True" : "False"}; ${words}. ${claim.because}${claim.source ? ` (${claim.source})` : ""}`;
    });
    const ticked = drill.must_say.map((fact, i) => `${standsIn(said[`fact ${i + 1}`] ?? "", text, drill.least_words) ? "✓" : "–"} ${fact}`);
    const rows = [["commitments", found.map((each) => `[${each.points.toFixed(1)} of ${each.most}] ${each.name}: ${each.says}`)], ["statements", claims], ["a strong answer says", ticked],
      ["your own grade", [...ownGrades(drill, text, weight, said), "No program reads your prose. The notebook also points at sentences, takes disputes and asks you to write one paragraph again."]]];
    const { answer, understanding } = sharesOf(drill, found, judgements);
    return { tags: drill.tags, headline: parts.join(", "), level: levelOf(drill, found, judgements), levels: drill.standing.bars.map(([name]) => name), answer, understanding,
      rows: rows.map(([name, lines]) => ({ name: /** @type {string} */ (name), lines: /** @type {string[]} */ (lines) })).filter(({ lines }) => lines.length), graders: drill.graders, solution: drill.solution };
  }

  /**
   * Sits a drill. Every answer is a new state, as a session's would be.
   * @param {Drill} drill
   * @returns {import("../../lab/view/drill_types.js").Port}
   */
  function recordedPort(drill) {
    /** @type {State} */ let state = drill.start;
    /** @type {Steps | null} */ let run = null;
    let began = 0;
    /** @type {Fact[]} */ const answered = [];
    const used = () => (began && !run ? (Date.now() - began) / 1000 : state.clock.used);

    /** @param {string} text */
    function handIn(text) {
      if (!text.trim()) throw new Error("nothing is written yet, so there's nothing to grade; the clock's running");
      state = { ...state, text, clock: { ...state.clock, used: used(), state: "stopped" } };
      run = steps(drill, text, answered);
      turn(run.next());
    }

    /** @param {IteratorResult<Stage, Verdict>} came */
    function turn(came) {
      const at = came.done ? state.steps.length - 1 : state.steps.indexOf(came.value.part);
      state = { ...state, at, stage: came.done ? null : came.value, verdict: came.done ? came.value : null };
    }

    /** @param {string} key */
    function ask(key) {
      const fact = drill.facts.find((each) => each.key === key);
      if (!fact) throw new Error("choose a question first");
      if (answered.includes(fact)) return;
      if (answered.length === drill.questions) throw new Error(`you may ask ${drill.questions} questions, and have`);
      answered.push(fact);
      state = { ...state, asking: { ...state.asking, told: answered.map(({ asks, says }) => ({ asks, says })), left: drill.questions - answered.length } };
    }

    /** @param {Action} action */
    function act(action) {
      if (action.do === "start" && !began) {
        began = Date.now();
        const options = drill.facts.map(({ key, asks }) => ({ id: key, name: asks }));
        state = { ...state, at: 1, prompt: drill.prompt, clock: { ...state.clock, state: "running" }, asking: { ...state.asking, options } };
      } else if (action.do === "ask") ask(action.fact);
      else if (action.do === "hand_in" && began && !run) handIn(action.text);
      else if (action.do === "go_on" && run && state.stage) {
        const isBlank = !Object.values(action.filled).some((each) => each.trim());
        if (state.stage.part === "Commit" && isBlank) throw new Error("commit to something first: a guess that's wrong costs nothing more than none");
        turn(run.next(action.filled));
      }
    }

    return {
      ask: async (action) => {
        act(action);
        return { ...state, clock: { ...state.clock, used: used() } };
      },
    };
  }

  Object.assign(window, { minillmDrills: { number, checks, followUps, standsIn, worth, levelOf, recordedPort } });
  const place = document.getElementById("drill"), page = /** @type {any} */ (window);
  if (!place || !page.minillmDrill) return;
  const port = recordedPort(page.minillmDrill);
  port.ask({ do: "look" }).then((start) => page.minillmDrillView.mountDrill(place, port, start));
})();
