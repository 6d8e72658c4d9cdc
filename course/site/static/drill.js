// One drill: write under the clock, commit, take pushback, grade two samples, then yourself (course/drills).
"use strict";

(() => {
  /**
   * @typedef {{asks: string, number?: string, [condition: string]: string | string[] | undefined}} FollowUp
   * @typedef {{key: string, name: string, asks: string, anchors: string[]}} Criterion
   * @typedef {{value: number, unit: string, tolerance: number, written: string, asks: string}} Asked
   * @typedef {{dominant: string, second: string, number: string, fixes: string[]}} Commit
   * @typedef {{text: string, grades: Record<string, string>, why: Record<string, string>}} Sample
   * @typedef {{id: string, title: string, minutes: number, prompt: string, impossible: string, causes: Record<string, string>,
   *   techniques: Record<string, string>, words: [string, string][], criteria: Criterion[], must_say: string[],
   *   must_not_say: {says: string, right: string}[], follow_ups: FollowUp[], most_follow_ups: number, ranks: number[],
   *   levels: string[], hopeless: number, samples: Record<string, Sample>, answers: Record<string, string>,
   *   commit: {dominant: Record<string, number>, second: Record<string, number>, fixes: Record<string, number>, number: Asked}}} Drill
   */
  /** Factors to base units, by unit of the asked-for number; "" is a number without its unit.
   * @type {Record<string, Record<string, number>>} */
  const UNITS = {
    s: { "µs": 1e-6, us: 1e-6, ms: 1e-3, s: 1, sec: 1, second: 1, seconds: 1, min: 60, minutes: 60, h: 3600, hours: 3600 },
    ratio: { "%": 0.01, percent: 0.01, x: 1, times: 1, "×": 1 },
    B: { B: 1, kB: 1e3, KB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, kb: 1e3, mb: 1e6, gb: 1e9, tb: 1e12 },
    $: { $: 1 },
  };
  /** What a bare number may mean. @type {Record<string, number[]>} */
  const BARE = { s: [1, 1e-3], ratio: [1, 0.01] };

  /** right, wrong or missing, and whether its unit stands there.
   * @param {Asked} asked @param {string} text @returns {{state: string, hasUnit: boolean}} */
  function number(asked, text) {
    const found = text.match(/(\$?)\s*(\d[\d,]*(?:\.\d+)?|\.\d+)\s*(k|m|b)?(?![a-z])\s*([a-zµ%×$/]*)/i);
    if (!found) return { state: "missing", hasUnit: false };
    const times = { k: 1e3, m: 1e6, b: 1e9 }[(found[3] ?? "").toLowerCase()] ?? 1;
    const said = Number(found[2].replaceAll(",", "")) * times;
    const known = UNITS[asked.unit];
    const unit = found[1] || found[4];
    const factor = known?.[unit] ?? known?.[unit.toLowerCase()];
    const meant = !known ? [1] : factor !== undefined ? [factor] : unit ? [] : BARE[asked.unit] ?? [1];
    const isRight = meant.some((each) => Math.abs(said * each - asked.value) <= asked.tolerance * Math.abs(asked.value));
    return { state: isRight ? "right" : "wrong", hasUnit: unit !== "" || !asked.unit || asked.unit === "ratio" };
  }

  /** Points of what was committed to, as course/drills/checks.py gives them.
   * @param {Drill} drill @param {Commit} commit @returns {{name: string, points: number, most: number, says: string}[]} */
  function checks(drill, commit) {
    const right = drill.commit;
    const best = (/** @type {Record<string, number>} */ worth, /** @type {Record<string, string>} */ labels, most = 3) =>
      Object.keys(worth).filter((id) => worth[id] > 0).sort((a, b) => worth[b] - worth[a]).slice(0, most).map((id) => labels[id]);
    const cause = (/** @type {string} */ id, /** @type {Record<string, number>} */ worth, /** @type {number} */ most) => {
      const points = most * (worth[id] ?? 0);
      return { points, most, says: points === most ? "Right." : `${id ? (points ? "Half of it" : "No") : "Nothing committed"}: ${best(worth, drill.causes, 2).join(" or ")}.` };
    };
    const { state, hasUnit } = number(right.number, commit.number);
    const ranks = drill.ranks;
    const sorted = Object.values(right.fixes).sort((a, b) => b - a);
    const most = ranks.reduce((sum, rank, i) => sum + rank * Math.max(sorted[i] ?? 0, 0), 0);
    const got = commit.fixes.reduce((sum, id, i) => sum + ranks[i] * (right.fixes[id] ?? 0), 0);
    const effect = (/** @type {string} */ id) => ((right.fixes[id] ?? 0) < 0 ? "harms, or does nothing" : right.fixes[id] ? "helps" : "not the matter here");
    return [
      { name: "What dominates", ...cause(commit.dominant, right.dominant, 2) },
      { name: "The second problem", ...cause(commit.second, right.second, 1) },
      { name: "The number", points: state === "right" ? (hasUnit ? 2 : 1) : 0, most: 2,
        says: state === "right" ? (hasUnit ? "Right." : `Right, except for its unit: ${right.number.written}.`) : `${state === "wrong" ? "Wrong" : "Missing"}: ${right.number.written}.` },
      { name: "Fixes, ranked", points: (2 * Math.max(got, 0)) / most, most: 2,
        says: `${commit.fixes.map((id) => `${drill.techniques[id]}: ${effect(id)}`).join("; ") || "Nothing committed"}. Worth most: ${best(right.fixes, drill.techniques).join(", ")}.` },
    ];
  }

  /** What an interviewer asks after this answer. @param {Drill} drill @param {string} text @param {Commit} commit @returns {string[]} */
  function followUps(drill, text, commit) {
    const low = text.toLowerCase().replaceAll("’", "'").replaceAll(/[*`]/g, "");
    const says = drill.words.filter(([, pattern]) => new RegExp(pattern).test(low)).map(([name]) => name);
    const state = number(drill.commit.number, commit.number).state;
    const meets = (/** @type {FollowUp} */ each, /** @type {string} */ what, /** @type {string[]} */ present) => {
      const wanted = /** @type {string[]} */ (each[`if_${what}`] ?? []);
      const unwanted = /** @type {string[]} */ (each[`unless_${what}`] ?? []);
      return (!wanted.length || wanted.some((id) => present.includes(id))) && !unwanted.some((id) => present.includes(id));
    };
    const asked = drill.follow_ups.filter((each) => (!each.number || each.number === state)
      && meets(each, "dominant", [commit.dominant]) && meets(each, "second", [commit.second])
      && meets(each, "fix", commit.fixes) && meets(each, "says", says));
    return [...new Set(asked.map((each) => each.asks))].slice(0, drill.most_follow_ups);
  }

  const bare = (/** @type {string} */ text) => (text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? []).join(" ");
  const standsIn = (/** @type {string} */ quote, /** @type {string} */ answer) =>
    bare(quote).split(" ").length >= 3 && ` ${bare(answer)} `.includes(` ${bare(quote)} `);

  Object.assign(window, { minillmDrills: { number, checks, followUps, standsIn } });
  const stage = document.getElementById("drill");
  const given = /** @type {Drill | undefined} */ (/** @type {any} */ (window).minillmDrill);
  if (!stage || !given) return;
  const drill = given;

  /** @param {string} tag @param {string} words @param {Record<string, string>} attributes @returns {any} */
  function make(tag, words = "", attributes = {}) {
    const element = document.createElement(tag);
    element.textContent = words;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  }
  /** Text with blank lines between paragraphs, and **bold**. @param {string} text @param {string} look */
  function paragraphs(text, look = "") {
    const box = make("div", "", { class: look });
    for (const part of text.split(/\n\s*\n/)) {
      const p = make("p");
      part.split("**").forEach((piece, i) => p.append(i % 2 ? make("b", piece) : piece));
      box.append(p);
    }
    return box;
  }
  /** @param {string} label @param {Record<string, string>} options */
  function choice(label, options) {
    const select = make("select");
    select.add(new Option("–", ""));
    for (const [id, words] of Object.entries(options)) select.add(new Option(words, id));
    const wrapped = make("label", `${label} `);
    wrapped.append(select);
    return { wrapped, select };
  }
  const BEFORE = "Before the clock starts";
  /** A step with a button under it, which closes it and goes on. @param {string} title @param {any[]} content @param {string} press @param {() => void} next */
  function step(title, content, press, next) {
    const section = make("section", "", { "aria-label": title });
    const button = make("button", press, { type: "button" });
    section.append(make("h2", title), ...content, button);
    button.addEventListener("click", () => {
      section.querySelectorAll("input, select, textarea").forEach((/** @type {any} */ each) => { each.disabled = true; });
      button.remove();
      next();
    });
    stage?.append(section);
    section.querySelector("h2").setAttribute("tabindex", "-1");
    if (title !== BEFORE) section.querySelector("h2").focus();
  }

  const clock = make("p", `${drill.minutes} minutes`, { class: "clock", role: "timer" });
  const text = make("textarea", "", { rows: "14", "aria-label": "Your answer" });
  const levels = Object.fromEntries(drill.levels.map((level) => [level, level]));

  function start() {
    const began = Date.now();
    const tick = setInterval(() => {
      const left = drill.minutes * 60 - Math.floor((Date.now() - began) / 1000);
      const size = Math.abs(left);
      clock.textContent = `${left < 0 ? "over by " : ""}${Math.floor(size / 60)}:${String(size % 60).padStart(2, "0")}`;
      clock.classList.toggle("late", left < 0);
    }, 500);
    const empty = make("p", "", { role: "status" });
    step("Write as you would speak", [paragraphs(drill.prompt, "prompt"), clock, text, empty], "Hand in", () => {
      if (!text.value.trim()) {
        text.disabled = false;
        text.closest("section").remove();
        clearInterval(tick);
        begin("Nothing was written, so there's nothing to grade.");
        return;
      }
      clearInterval(tick);
      committing();
    });
    text.focus();
  }

  function committing() {
    const dominant = choice("What dominates?", drill.causes);
    const second = choice("The second problem?", drill.causes);
    const asked = make("input", "", { type: "text" });
    const label = make("label", `${drill.commit.number.asks} With its unit: `);
    label.append(asked);
    const fixes = drill.ranks.map((_, i) => choice(`Fix ${i + 1}`, drill.techniques));
    step("Commit", [dominant.wrapped, second.wrapped, label, ...fixes.map((each) => each.wrapped)], "Commit", () => {
      const ranked = [...new Set(fixes.map((each) => each.select.value).filter(Boolean))];
      pushback({ dominant: dominant.select.value, second: second.select.value, number: asked.value, fixes: ranked });
    });
  }

  function pushback(/** @type {Commit} */ committed) {
    const rows = followUps(drill, text.value, committed).map((asks) => {
      const label = make("label", asks);
      label.append(make("textarea", "", { rows: "3" }));
      return label;
    });
    step("The interviewer asks", rows, "Go on", () => gradeSamples(committed, Object.keys(drill.samples), [], []));
  }

  /** @param {Criterion} each */
  function about(each) {
    const fold = make("details");
    fold.append(make("summary", `${each.name}: ${each.asks}`));
    const list = make("ul");
    each.anchors.forEach((anchor, i) => list.append(make("li", `${drill.levels[i]}: ${anchor}`)));
    fold.append(list);
    return fold;
  }

  /** @param {Commit} committed @param {string[]} labels @param {{gap: number, says: string}[]} off @param {any[]} compared the sample before */
  function gradeSamples(committed, labels, off, compared) {
    if (!labels.length) {
      gradeOwn(committed, off, compared);
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
      gradeSamples(committed, labels.slice(1), [...off, ...found], [heading, found.length ? list : make("p", "Nothing graded.")]);
    });
  }

  /** @param {Commit} committed @param {{gap: number}[]} graded @param {any[]} compared */
  function gradeOwn(committed, graded, compared) {
    const mean = graded.length ? graded.reduce((sum, each) => sum + Math.abs(each.gap), 0) / graded.length : drill.hopeless;
    const weight = Math.max(0, 1 - mean / drill.hopeless);
    const rows = drill.criteria.map((each) => ({ each, ...choice(`${each.name}, level:`, levels), quote: make("input", "", { type: "text", placeholder: "a sentence of yours", "aria-label": `a sentence of yours for ${each.name}` }) }));
    const told = make("p", `Your grades of the samples were ${mean.toFixed(1)} levels off on average, so your own grade weighs ${Math.round(100 * weight)}%.`);
    step("Now your own, with a sentence of yours for each", [...compared, told, ...rows.flatMap((row) => [about(row.each), row.wrapped, row.quote])], "See", () => {
      const own = rows.map(({ each, select, quote }) => {
        const counts = select.value === drill.levels[0] || standsIn(quote.value, text.value);
        return `${each.name}: ${select.value ? (counts ? `${select.value}, weighs ${Math.round(100 * weight)}%` : `${select.value}, which doesn't count: that sentence isn't in your answer`) : "not graded"}`;
      });
      result(committed, own);
    });
  }

  /** @param {Commit} committed @param {string[]} own */
  function result(committed, own) {
    const found = checks(drill, committed);
    const table = make("table", "", { class: "marks" });
    for (const each of found) {
      const row = make("tr");
      row.append(make("th", each.name, { scope: "row" }), make("td", `${each.points.toFixed(1)} of ${each.most}`), make("td", each.says));
      table.append(row);
    }
    const list = make("ul");
    own.forEach((words) => list.append(make("li", words)));
    const facts = make("ul");
    drill.must_say.forEach((words) => facts.append(make("li", words)));
    const myths = make("ul");
    drill.must_not_say.forEach((each) => myths.append(make("li", `${each.says} ${each.right}`)));
    const answers = Object.entries(drill.answers).map(([level, words]) => {
      const fold = make("details");
      fold.append(make("summary", `A ${level} answer`), paragraphs(words));
      return fold;
    });
    step("What came out", [
      table, make("h3", "Your own grade"), list,
      make("p", "Your sums and plain statements are checked in the notebook, not here.", { class: "yours" }),
      make("h3", "What the prompt's own numbers imply"), paragraphs(drill.impossible),
      make("h3", "A strong answer says"), facts, make("h3", "And none says"), myths, ...answers,
    ], "Once more", () => location.reload());
  }

  function begin(told = "") {
    const rows = [make("p", "Write, commit, take pushback, grade two samples, then yourself. The prompt appears when the clock starts.")];
    if (told) rows.push(make("p", told, { role: "status" }));
    step(BEFORE, rows, `Start ${drill.minutes} minutes`, () => { stage?.replaceChildren(); start(); });
  }
  begin();
})();
