// One drill: ask, write under the clock, commit, take pushback, judge statements, grade two samples, then yourself
// (course/drills).
"use strict";

(() => {
  /**
   * @typedef {{asks: string, number?: string, if_fix?: string[], if_dominant?: string[], [condition: string]: string | string[] | undefined}} FollowUp
   * @typedef {{key: string, name: string, asks: string, anchors: string[]}} Criterion
   * @typedef {{value: number, unit: string, shown: number, room: number, written: string, asks: string}} Asked
   * @typedef {{dominant: string, second: string, number: string, unit: string, fixes: string[], finding: string, then: string}} Commit
   * @typedef {{text: string, grades: Record<string, string>, why: Record<string, string>}} Sample
   * @typedef {{key: string, asks: string, says: string, use: string, changes: string}} Fact
   * @typedef {{says: string, is_true: boolean, because: string, source: string}} Claim
   * @typedef {{agrees: boolean, sure: number} | null} Judgement
   * @typedef {{key: string, name: string, points: number, most: number, says: string}} Checked
   * @typedef {{number: number, tags: string, minutes: number, prompt: string, impossible: string, causes: Record<string, string>,
   *   techniques: Record<string, string>, remedies: Record<string, string[]>, units: Record<string, [string, number]>,
   *   facts: Fact[], questions: number, statements: Claim[], sure: Record<string, number>,
   *   standing: {borne: number, statements_weigh: number, bars: [string, number][]}, criteria: Criterion[], must_say: string[],
   *   follow_ups: FollowUp[], most_follow_ups: number, ranks: number[], levels: string[], hopeless: number, least_words: number,
   *   samples: Record<string, Sample>, answers: Record<string, string>,
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

  /** The level, as course/drills/verdict.py has it; empty below all.
   * @param {Drill} drill @param {Checked[]} found @param {Judgement[]} judgements */
  function levelOf(drill, found, judgements) {
    if (!drill.statements.length) return "";
    const share = (/** @type {Checked[]} */ of) => of.reduce((sum, each) => sum + each.points, 0) / of.reduce((sum, each) => sum + each.most, 0);
    const score = drill.statements.reduce((sum, claim, i) => sum + worth(claim, judgements[i] ?? null), 0) / drill.statements.length;
    const { borne, statements_weigh, bars } = drill.standing;
    const ofMind = share(found.filter((each) => each.key === "mind"));
    const understanding = statements_weigh * score + (1 - statements_weigh) * Math.min(ofMind, Math.max(score, 0));
    const answer = share(found.filter((each) => each.key !== "mind"));
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

  Object.assign(window, { minillmDrills: { number, checks, followUps, standsIn, worth, levelOf } });
  const stage = document.getElementById("drill");
  const given = /** @type {Drill | undefined} */ (/** @type {any} */ (window).minillmDrill);
  if (!stage || !given) return;
  const drill = given;

  const { Refused, make, paragraphs, choice, fold } = minillmSteps;
  const BEFORE = "Before the clock starts";
  /** @param {string} title @param {any[]} content @param {string} press @param {() => void} next */
  const step = (title, content, press, next) => minillmSteps.step(/** @type {HTMLElement} */ (stage), title, content, press, next, title === BEFORE);
  const text = make("textarea", "", { rows: "14", "aria-label": "Your answer" });
  const levels = Object.fromEntries(drill.levels.map((level) => [level, level]));

  function start() {
    const clock = minillmSteps.clock(drill.minutes * 60);
    step("Write as you would speak", [paragraphs(drill.prompt, "prompt"), clock.shown, asking(), text], "Hand in", () => {
      if (!text.value.trim()) throw new Refused("Nothing is written yet, so there's nothing to grade.");
      clock.stop();
      committing();
    });
    text.focus();
  }

  /** @type {Fact[]} */
  const answered = [];
  /** A menu of questions to the interviewer, and what has been told. */
  function asking() {
    const box = make("div");
    if (!drill.facts.length) return box;
    const menu = choice("Ask the interviewer", Object.fromEntries(drill.facts.map((each) => [each.key, each.asks])));
    const press = make("button", "Ask", { type: "button" });
    const list = make("div", "", { role: "status" });
    press.addEventListener("click", () => {
      const fact = drill.facts.find((each) => each.key === menu.select.value);
      if (!fact || answered.includes(fact) || answered.length >= drill.questions) return;
      answered.push(fact);
      list.append(make("p", `${fact.asks} ${fact.says}`));
      if (answered.length >= drill.questions) press.disabled = true;
    });
    box.append(menu.wrapped, press, list);
    return box;
  }

  function committing() {
    const dominant = choice("What dominates?", drill.causes);
    const second = choice("The second problem?", drill.causes);
    const asked = make("input", "", { type: "text", inputmode: "decimal" });
    const label = make("label", `${drill.commit.number.asks} `);
    label.append(asked);
    const unit = choice("Its unit", Object.fromEntries(Object.keys(drill.units).map((each) => [each, each])));
    const fixes = drill.ranks.map((_, i) => choice(`Fix ${i + 1}`, drill.techniques));
    const open = drill.facts.filter((each) => !answered.includes(each));
    const finding = choice("What would change your mind?", Object.fromEntries(open.map((each) => [each.key, each.asks])));
    const then = choice("And what would come first then?", drill.techniques);
    const ofMind = open.length ? [finding.wrapped, then.wrapped] : [];
    step("Commit", [dominant.wrapped, second.wrapped, label, unit.wrapped, ...fixes.map((each) => each.wrapped), ...ofMind], "Commit", () => {
      const ranked = [...new Set(fixes.map((each) => each.select.value).filter(Boolean))];
      const commit = { dominant: dominant.select.value, second: second.select.value, number: asked.value, unit: unit.select.value,
        fixes: ranked, finding: finding.select.value, then: then.select.value };
      minillmWritten.amount(commit.number, commit.unit); // refused here, if it can't be read
      pushback(commit, followUps(drill, commit), 0);
    });
  }

  /** One question at a time; what the answer has said already isn't counted.
   * @param {Commit} committed @param {string[]} left @param {number} taken */
  function pushback(committed, left, taken) {
    if (!left.length || taken === drill.most_follow_ups) {
      judging(committed);
      return;
    }
    const reply = make("textarea", "", { rows: "3", "aria-label": "Your reply" });
    const hint = make("p", `If your answer has said it, quote those words: ${drill.least_words} or more.`, { class: "yours" });
    step("The interviewer asks", [make("p", left[0]), reply, hint], "Reply", () => {
      pushback(committed, left.slice(1), taken + (standsIn(reply.value, text.value, drill.least_words) ? 0 : 1));
    });
  }

  /** @param {Commit} committed */
  function judging(committed) {
    const options = Object.fromEntries(["agree", "disagree"].flatMap((word) => Object.entries(drill.sure)
      .filter(([, percent]) => percent > 50).map(([name, percent]) => [`${word} ${percent}`, `${word}, ${name} (${percent}%)`])));
    const rows = drill.statements.map((claim, i) => choice(`${i + 1}. ${claim.says}`, options));
    const go = (/** @type {Judgement[]} */ judgements) => gradeSamples(committed, judgements, Object.keys(drill.samples), [], []);
    if (!rows.length) {
      go([]);
      return;
    }
    const rule = make("p", "Some are true of this case, some aren't. Sure and right is +1, a guess is 0, sure and wrong is -2.6. Leave out what you'd have to guess.");
    step("Statements on the table", [rule, ...rows.map((each) => each.wrapped)], "Go on", () => go(rows.map(({ select }) => {
      const [word, percent] = select.value.split(" ");
      return word ? { agrees: word === "agree", sure: Number(percent) } : null;
    })));
  }

  /** @param {Criterion} each */
  function about(each) {
    const list = make("ul");
    each.anchors.forEach((anchor, i) => list.append(make("li", `${drill.levels[i]}: ${anchor}`)));
    return fold(`${each.name}: ${each.asks}`, list);
  }

  /** @param {Commit} committed @param {Judgement[]} judgements @param {string[]} labels @param {{gap: number, says: string}[]} off
   * @param {any[]} compared the sample before */
  function gradeSamples(committed, judgements, labels, off, compared) {
    if (!labels.length) {
      gradeOwn(committed, judgements, off, compared);
      return;
    }
    const sample = drill.samples[labels[0]];
    const rows = drill.criteria.map((each) => ({ each, ...choice(`${each.name}, level:`, levels) }));
    step(`${compared.length ? "Now" : "Grade this first:"} answer ${labels[0]}`, [...compared, paragraphs(sample.text, "prompt"), ...rows.flatMap((row) => [about(row.each), row.wrapped])], "Compare", () => {
      const found = rows.filter((row) => row.select.value).map(({ each, select }) => {
        const right = sample.grades[each.key];
        const gap = drill.levels.indexOf(select.value) - drill.levels.indexOf(right);
        const why = sample.why[each.key] ?? `${right}: ${each.anchors[drill.levels.indexOf(right)]}`;
        return { gap, says: gap ? `${each.name}: you said ${select.value}, it is ${right}. ${why}` : `${each.name}: ${right}, as you said.` };
      });
      const list = make("ul");
      found.forEach((each) => list.append(make("li", each.says)));
      const heading = make("h3", `How you graded answer ${labels[0]}`);
      gradeSamples(committed, judgements, labels.slice(1), [...off, ...found], [heading, found.length ? list : make("p", "Nothing graded.")]);
    });
  }

  /** @param {Commit} committed @param {Judgement[]} judgements @param {{gap: number}[]} graded @param {any[]} compared */
  function gradeOwn(committed, judgements, graded, compared) {
    const mean = graded.length ? graded.reduce((sum, each) => sum + Math.abs(each.gap), 0) / graded.length : drill.hopeless;
    const weight = Math.max(0, 1 - mean / drill.hopeless);
    const rows = drill.criteria.map((each) => ({ each, ...choice(`${each.name}, level:`, levels), quote: make("input", "", { type: "text", placeholder: `words of yours for it, ${drill.least_words} or more`, "aria-label": `a sentence of yours for ${each.name}` }) }));
    const told = make("p", `Your grades of the samples were ${mean.toFixed(1)} levels off on average, so your own grade weighs ${Math.round(100 * weight)}%.`);
    step("Now your own, each with words of yours", [...compared, told, ...rows.flatMap((row) => [about(row.each), row.wrapped, row.quote])], "See", () => {
      /** @type {string[]} */
      const used = [];
      const own = rows.map(({ each, select, quote }) => {
        const words = bare(quote.value);
        const isWeak = select.value === drill.levels[0];
        const isNew = !used.some((other) => other.includes(words) || words.includes(other));
        const counts = isWeak || (standsIn(quote.value, text.value, drill.least_words) && isNew);
        if (counts && words && !isWeak) used.push(words);
        const why = isNew ? `it needs ${drill.least_words} words of your answer or more` : "you've used that sentence already";
        return `${each.name}: ${select.value ? (counts ? `${select.value}, weighs ${Math.round(100 * weight)}%` : `${select.value}, which doesn't count: ${why}`) : "not graded"}`;
      });
      result(committed, judgements, weight, own);
    });
  }

  /** @param {Commit} committed @param {Judgement[]} judgements @param {number} weight @param {string[]} own */
  function result(committed, judgements, weight, own) {
    const found = checks(drill, committed);
    const table = make("table", "", { class: "marks" });
    for (const each of found) {
      const row = make("tr");
      row.append(make("th", each.name, { scope: "row" }), make("td", `${each.points.toFixed(1)} of ${each.most}`), make("td", each.says));
      table.append(row);
    }
    const claims = make("ol");
    drill.statements.forEach((claim, i) => {
      const said = judgements[i];
      const words = said ? `you: ${said.agrees ? "agree" : "disagree"}, ${said.sure}%` : "not answered";
      const source = claim.source ? ` (${claim.source})` : "";
      claims.append(make("li", `${claim.says} ${claim.is_true ? "True" : "False"}; ${words}: ${worth(claim, said ?? null).toFixed(1)}. ${claim.because}${source}`));
    });
    const sum = (/** @type {number[]} */ of) => of.reduce((total, each) => total + each, 0);
    const right = judgements.filter((each, i) => each && each.agrees === drill.statements[i].is_true).length;
    const parts = [`commitments ${sum(found.map((each) => each.points)).toFixed(1)} of ${sum(found.map((each) => each.most))}`];
    if (drill.statements.length) parts.push(`statements ${right} of ${drill.statements.length}`);
    parts.push(`argument: yours, weighs ${Math.round(100 * weight)}%, unread by the page`);
    const reached = levelOf(drill, found, judgements);
    const verdict = drill.statements.length ? [make("p", reached ? `Hire at ${reached}, as far as that can be computed.` : "No hire yet, as far as that can be computed.")] : [];
    const list = make("ul");
    own.forEach((words) => list.append(make("li", words)));
    const facts = make("ul");
    drill.must_say.forEach((words) => facts.append(make("li", words)));
    const answers = Object.entries(drill.answers).map(([level, words]) => fold(`A ${level} answer`, paragraphs(words)));
    step("What came out", [
      make("p", drill.tags), make("p", parts.join(", ")), ...verdict, table,
      ...(drill.statements.length ? [make("h3", "The statements"), claims] : []),
      make("h3", "Your own grade"), list,
      make("p", "No program reads your prose. The notebook also points at sentences, takes disputes and asks you to write one paragraph again.", { class: "yours" }),
      make("h3", "What the prompt's own numbers imply"), paragraphs(drill.impossible),
      make("h3", "A strong answer says"), facts, ...answers,
    ], "Once more", () => location.reload());
  }

  step(BEFORE, [make("p", "Ask, write, commit, take pushback, judge statements, grade two samples, then yourself. The prompt appears when the clock starts.")],
    `Start ${drill.minutes} minutes`, () => { stage.replaceChildren(); start(); });
})();
