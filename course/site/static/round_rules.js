// What a round reads from its fields, and what it's worth: the rules of course/rounds/{board,sitting,judge}.py.
"use strict";

/* exported minillmRounds */
/**
 * @typedef {{key: string, asks: string, label: string, unit: string, value: number, room: number, told: string,
 *   slips: {value: number, room: number, told: string}[]}} AskedNumber
 * @typedef {{key: string, asks: string, told: string, options: {key: string, says: string, right: boolean, told: string}[]}} Choice
 * @typedef {{says: string, holds: boolean, told: string}} Statement
 * @typedef {{key: string, asks: string, told: string, if_wrong: string, if_chose: string, if_broken: string, if_unasked: string,
 *   replies: {key: string, says: string, right: boolean, because: string}[]}} Pushback
 * @typedef {{key: string, title: string, minutes: number, says: string, numbers: AskedNumber[], choices: Choice[],
 *   statements: Statement[], pushbacks: Pushback[]}} Stage
 * @typedef {{key: string, says: string, because: string, kind: string, start: string, end: string, by: string[]}} BoardRule
 * @typedef {{id: string, title: string, minutes: number, opening: string, questions: number, order: string[], sample: string, unread: string,
 *   facts: {key: string, asks: string, says: string, use: string, changes: string}[],
 *   components: {key: string, name: string, extra: string}[], rules: BoardRule[], stages: Stage[], decisions: Statement[],
 *   rubric: Record<string, string[]>, areas: Record<string, string>, columns: string[], sure: Record<string, string>,
 *   beliefs: Record<string, string>, falls: Record<string, string>, quoted_words: number, levels: string[], least: number[],
 *   second_try: number}} Round
 * @typedef {[string, string]} Edge
 * @typedef {{asked: string[], commits: Record<string, string>, sure: Record<string, number>, edges: Edge[],
 *   replies: Record<string, string[]>, pushed: Record<string, string>, beliefs: Record<string, number>,
 *   said: Record<string, string>, own: Record<string, [string, string]>}} Sitting
 * @typedef {{area: string, about: string, points: number, right: boolean | null, told: string}} Item
 */
const minillmRounds = (() => {
  const { Refused } = minillmSteps;

  /** In base units. @param {string} typed @param {string} unit @returns {number} */
  function amount(typed, unit) {
    const found = minillmWritten.amount(typed);
    if (found && (found.unit ?? "") === unit) return found.value;
    throw new Refused(`“${typed}” isn't one number with a unit that fits here.`);
  }

  /** Arrows as people write them: a > b > c, more chains on lines of their own or after a comma.
   * @param {string} typed @param {string[]} boxes @returns {Edge[]} */
  function readEdges(typed, boxes) {
    /** @type {Edge[]} */
    const edges = [];
    for (const chain of typed.split(/[\n,;]/).map((each) => each.trim()).filter(Boolean)) {
      const names = chain.split(/-*>|→/).map((each) => each.trim());
      const strange = names.find((name) => !boxes.includes(name));
      if (strange !== undefined) throw new Refused(`There is no box “${strange}” here.`);
      if (names.length < 2) throw new Refused(`“${chain}” is a box without an arrow: write ${chain} > another.`);
      names.slice(1).forEach((end, i) => edges.push([names[i], end]));
    }
    const loop = edges.find(([start, end]) => start === end);
    if (loop) throw new Refused(`${loop[0]} > ${loop[1]} leads nowhere: leave it out.`);
    return edges.filter((edge, i) => edges.findIndex((other) => String(other) === String(edge)) === i);
  }

  /** @param {Edge[]} edges @param {string} start @param {string[]} closed */
  function reached(edges, start, closed = []) {
    const found = new Set();
    const ahead = [start];
    while (ahead.length) {
      const from = ahead.pop();
      for (const [a, b] of edges) {
        if (a === from && !found.has(b) && !closed.includes(b)) {
          found.add(b);
          ahead.push(b);
        }
      }
    }
    return found;
  }

  /** @param {BoardRule} rule @param {Edge[]} edges */
  function isKept(rule, edges) {
    if (rule.kind === "no_edge") return !edges.some(([a, b]) => a === rule.start && b === rule.end);
    const leads = reached(edges, rule.start).has(rule.end);
    if (rule.kind === "apart") return !leads;
    return leads && (rule.kind === "reach" || !reached(edges, rule.start, rule.by).has(rule.end));
  }

  /** @param {number} value @param {{value: number, room: number}} right */
  const isNear = (value, right) => Math.abs(value - right.value) <= right.room * Math.abs(right.value);

  /** Whether a number or choice is right; null = nothing was committed. @param {Sitting} sitting @param {Stage} stage @param {string} key */
  function isRight(sitting, stage, key) {
    const committed = sitting.commits[`${stage.key}.${key}`];
    if (!committed) return null;
    const number = stage.numbers.find((each) => each.key === key);
    if (number) return isNear(amount(committed, number.unit), number);
    return Boolean(stage.choices.find((each) => each.key === key)?.options.find((each) => each.key === committed)?.right);
  }

  /** The first pushback whose condition is met by what was committed. @param {Round} round @param {Sitting} sitting @param {Stage} stage */
  function pushbackOf(round, sitting, stage) {
    const broken = round.rules.filter((rule) => !isKept(rule, sitting.edges)).map((rule) => rule.key);
    return stage.pushbacks.find((each) => {
      const [chosen, option] = each.if_chose.split("=");
      if (each.if_wrong) return isRight(sitting, stage, each.if_wrong) !== true;
      if (each.if_chose) return sitting.commits[`${stage.key}.${chosen}`] === option;
      if (each.if_broken) return broken.includes(each.if_broken);
      return !each.if_unasked || !sitting.asked.includes(each.if_unasked);
    });
  }

  /** Words of one's own, with single spaces. @param {Round} round @param {Sitting} sitting @param {string} area @param {string} quote */
  function quoted(round, sitting, area, quote) {
    const single = (/** @type {string} */ text) => text.split(/\s+/).filter(Boolean).join(" ");
    const words = single(quote);
    if (words.split(" ").length < round.quoted_words || !single(sitting.said[area] ?? "").includes(words)) {
      throw new Refused(`${round.areas[area]}: quote at least ${round.quoted_words} words in a row of what you said in this stage.`);
    }
    if (Object.entries(sitting.own).some(([name, [, other]]) => name !== area && other === words)) {
      throw new Refused(`${round.areas[area]}: this sentence stands for another area already: quote another.`);
    }
    return words;
  }

  // ---------------------------------------------------------------- what it's worth, as course/rounds/judge.py has it

  /** The quadratic rule. @param {number} sure @param {boolean | null} right */
  const points = (sure, right) => (right === null ? 0 : 1 - 4 * (right ? 1 - sure : sure) ** 2);

  /** @param {Round} round @param {Sitting} sitting */
  function judge(round, sitting) {
    const areas = round.stages.map((stage) => {
      const own = { requirements: asked, boxes: board, change: fallen }[stage.key];
      const items = [...(own ? own(round, sitting) : []), ...commitments(sitting, stage), ...defended(round, sitting, stage),
        ...stage.statements.map((each, i) => believed(stage.key, each, sitting.beliefs[`${stage.key}.${i}`]))];
      const mean = items.reduce((sum, each) => sum + each.points, 0) / Math.max(items.length, 1);
      const [right, wrong] = [true, false].map((which) => items.filter((each) => each.right === which).length);
      const left = items.length - right - wrong;
      const rank = round.least.filter((least) => mean >= least).length;
      return { area: stage.key, items, mean, rank, level: round.levels[rank], counted: `${right} right, ${wrong} wrong${left ? `, ${left} left open` : ""}` };
    });
    const ranks = areas.map((each) => each.rank).sort((a, b) => a - b);
    const staff = round.levels.length - 1;
    const senior = staff - 1;
    const rank = ranks[1] === staff && ranks[0] >= senior ? staff : ranks[1] >= senior ? senior : Math.min(ranks[2], senior - 1);
    const items = areas.flatMap((each) => each.items);
    const workedOut = items.filter((each) => each.right && each.area !== "requirements").sort((a, b) => b.points - a.points);
    const costly = [...items].sort((a, b) => a.points - b.points).filter((each) => each.points < 0);
    const hire = rank ? `hire at ${round.levels[rank]}` : round.levels[rank];
    const held = areas.filter((each) => each.rank <= rank).map((each) => `${round.areas[each.area]} (${each.level})`);
    const below = areas.filter((each) => each.rank < staff).map((each) => round.areas[each.area]);
    const told = rank === staff
      ? `${hire}: every area is at staff${below.length ? `, but for ${below[0]}, one level below.` : "."}`
      : `${hire}, not at ${round.levels[rank + 1]}: that would need more in ${held.join(", ")}.`;
    return { areas, rank, level: round.levels[rank], told, helped: workedOut.slice(0, 2), hurt: costly.slice(0, 2) };
  }

  /** @param {Round} round @param {Sitting} sitting @returns {Item[]} */
  function asked(round, sitting) {
    return round.order.flatMap((key) => {
      const fact = round.facts.find((each) => each.key === key);
      const was = sitting.asked.includes(key);
      if (!fact || (fact.use === "idle" && !was)) return [];
      const told = fact.use === "idle" ? "That changes nothing here, and it cost the time of a question." : `It bears on ${fact.changes}.`;
      const worth = fact.use === "idle" ? { points: -1, right: false } : { points: Number(was), right: was || null };
      return [{ area: "requirements", about: fact.asks, told: `${fact.says} ${told}`, ...worth }];
    });
  }

  /** @param {Round} round @param {Sitting} sitting @returns {Item[]} */
  function board(round, { edges }) {
    const used = edges.flat();
    /** @type {Item[]} */
    const found = round.rules.map((rule) => {
      const kept = isKept(rule, edges);
      const earned = kept && (["reach", "through"].includes(rule.kind) || [rule.start, rule.end].every((each) => used.includes(each)));
      return { area: "boxes", about: rule.says, points: !edges.length ? 0 : earned ? 1 : kept ? 0 : -1, right: edges.length ? kept : null, told: rule.because };
    });
    if (!edges.length || !round.components.some((each) => each.extra)) return found;
    const extras = round.components.filter((each) => each.extra && used.includes(each.key));
    const told = extras.map((each) => `${each.name}: ${each.extra}`).join(" ") || "Each box has a requirement behind it.";
    return [...found, { area: "boxes", about: "Nothing on the board that no requirement asks for.", points: 1 - extras.length, right: !extras.length, told }];
  }

  /** @param {Sitting} sitting @param {Stage} stage @returns {Item[]} */
  function commitments(sitting, stage) {
    const sure = sitting.sure[stage.key] ?? 0.5;
    const item = (/** @type {AskedNumber | Choice} */ of, /** @type {string} */ told) => {
      const right = isRight(sitting, stage, of.key);
      return { area: stage.key, about: of.asks, points: points(sure, right), right, told };
    };
    const numbers = stage.numbers.map((number) => {
      const committed = sitting.commits[`${stage.key}.${number.key}`];
      const isWrong = isRight(sitting, stage, number.key) === false;
      const slips = isWrong ? number.slips.filter((each) => isNear(amount(committed, number.unit), each)) : [];
      return item(number, [...slips, number].map((each) => each.told).join(" "));
    });
    const choices = stage.choices.map((each) => {
      const picked = each.options.find((option) => option.key === sitting.commits[`${stage.key}.${each.key}`]);
      return item(each, (picked ?? each).told);
    });
    return [...numbers, ...choices];
  }

  /** @param {Round} round @param {Sitting} sitting @param {Stage} stage @returns {Item[]} */
  function defended(round, sitting, stage) {
    const pushed = stage.pushbacks.find((each) => each.key === sitting.pushed[stage.key]) ?? pushbackOf(round, sitting, stage);
    if (!pushed) return [];
    const replies = sitting.replies[stage.key] ?? [];
    const right = replies.length ? Boolean(pushed.replies.find((each) => each.key === replies.at(-1))?.right) : null;
    const earned = right === null ? 0 : (right ? 1 : -1) * (replies.length > 1 || !right ? round.second_try : 1);
    return [{ area: stage.key, about: pushed.asks, points: earned, right, told: pushed.told }];
  }

  /** @param {Round} round @param {Sitting} sitting @returns {Item[]} */
  function fallen(round, sitting) {
    return round.decisions.map((each, i) => believed("change", each, sitting.beliefs[`change.${i}`]));
  }

  /** @param {string} area @param {Statement} of @param {number | undefined} likely @returns {Item} */
  function believed(area, of, likely) {
    const right = likely === undefined || likely === 0.5 ? null : likely > 0.5 === of.holds;
    return { area, about: of.says, points: points(Math.max(likely ?? 0.5, 1 - (likely ?? 0.5)), right), right, told: of.told };
  }

  return { amount, readEdges, pushbackOf, quoted, judge };
})();
