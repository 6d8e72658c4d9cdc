// One design round: ask, estimate, draw boxes, defend, judge statements, survive a failure and a change of mind
// (course/rounds).
"use strict";

(() => {
  const { make, paragraphs, choice, line, fold } = minillmSteps;
  const { amount, readEdges, pushbackOf, quoted, judge } = minillmRounds;
  const home = /** @type {HTMLElement} */ (document.getElementById("round"));
  const draws = /** @type {Round[]} */ (/** @type {any} */ (window).minillmRoundDraws);
  const draw = minillmRoundHistory.next(draws[0].id, draws.length);
  const round = draws[draw];
  /** @type {Sitting} */
  const sitting = { asked: [], commits: {}, sure: {}, edges: [], replies: {}, pushed: {}, beliefs: {}, said: {}, own: {} };
  /** @type {ReturnType<typeof minillmSteps.clock>} */
  let clock;
  const step = (/** @type {string} */ title, /** @type {any[]} */ content, /** @type {string} */ press, /** @type {() => void} */ next) =>
    minillmSteps.step(home, title, content, press, next);

  /** What has been told stays above all steps; more may be asked while there's time. */
  function asking() {
    const box = make("section", "", { "aria-label": "Ask the interviewer" });
    const menu = choice("Ask the interviewer", Object.fromEntries(round.facts.map((each) => [each.key, each.asks])));
    const press = make("button", "Ask", { type: "button" });
    const list = make("div", "", { role: "status" });
    const left = make("p", `There's time for ${round.questions} questions.`, { class: "yours" });
    press.addEventListener("click", () => {
      const fact = round.facts.find((each) => each.key === menu.select.value);
      if (!fact || sitting.asked.includes(fact.key) || sitting.asked.length >= round.questions) return;
      sitting.asked.push(fact.key);
      list.append(paragraphs(`**${fact.asks}** ${fact.says}`));
      left.textContent = `There's time for ${round.questions - sitting.asked.length} more.`;
      press.disabled = sitting.asked.length >= round.questions;
    });
    box.append(menu.wrapped, left, press, list);
    return { box, close: () => { press.disabled = menu.select.disabled = true; } };
  }

  /** Boxes to choose from, arrows as text, and two menus for those who'd rather not type. */
  function drawing() {
    const names = Object.fromEntries(round.components.map((each) => [each.key, each.name]));
    const list = make("ul");
    for (const [key, name] of Object.entries(names)) {
      const row = make("li", `: ${name}`);
      row.prepend(make("code", key));
      list.append(row);
    }
    const text = make("textarea", "", { rows: "7", "aria-label": "Arrows: a > b > c, more chains on lines of their own" });
    const [start, end] = ["An arrow from", "An arrow to"].map((label) => choice(label, Object.fromEntries(Object.keys(names).map((key) => [key, key]))));
    const add = make("button", "Add arrow", { type: "button", class: "quiet" });
    add.addEventListener("click", () => {
      if (start.select.value && end.select.value) text.value = `${text.value.trimEnd()}\n${start.select.value} > ${end.select.value}`.trimStart();
    });
    return { parts: [make("p", "Boxes and arrows, as a > b > c. Boxes to choose from:"), list, text, start.wrapped, end.wrapped, add], text, keys: Object.keys(names) };
  }

  const ask = asking();

  /** @param {{key: string, says: string}[]} options @returns {Record<string, string>} */
  const menuOf = (options) => Object.fromEntries(options.map((each) => [each.key, each.says]));

  /** @param {string} area @param {{select: any}[]} rows */
  const believe = (area, rows) => rows.forEach(({ select }, i) => { if (select.value) sitting.beliefs[`${area}.${i}`] = Number(select.value); });

  /** @param {number} place */
  function open(place) {
    const stage = round.stages[place];
    if (!stage) {
      clock.stop();
      ask.close();
      grade();
      return;
    }
    const numbers = stage.numbers.map((each) => ({ each, ...line(`${each.asks} (${each.label})`) }));
    const choices = stage.choices.map((each) => ({ each, ...choice(each.asks, menuOf(each.options)) }));
    const drawn = stage.key === "boxes" ? drawing() : null;
    const decisions = stage.key === "change" ? round.decisions.map((each, i) => choice(`${i + 1}. ${each.says}`, round.falls)) : [];
    const sure = choice("How sure are you of these?", round.sure);
    const say = make("textarea", "", { rows: "5", "aria-label": "In your own words, as you'd say it aloud" });
    const fields = [...numbers, ...choices].map((each) => each.wrapped);
    const content = [paragraphs(stage.says, "prompt"), ...fields, ...(drawn ? drawn.parts : []), ...decisions.map((each) => each.wrapped),
      ...(fields.length ? [sure.wrapped] : []), make("p", "In your own words, as you'd say it aloud:"), say];
    step(`${stage.title} (${stage.minutes} minutes)`, content, "Go on", () => {
      numbers.forEach(({ each, input }) => input.value.trim() && amount(input.value, each.unit));
      const edges = drawn ? readEdges(drawn.text.value, drawn.keys) : sitting.edges;
      numbers.forEach(({ each, input }) => { sitting.commits[`${stage.key}.${each.key}`] = input.value.trim(); });
      choices.forEach(({ each, select }) => { sitting.commits[`${stage.key}.${each.key}`] = select.value; });
      sitting.edges = edges;
      believe("change", decisions);
      sitting.sure[stage.key] = Number(sure.select.value || 0.5);
      sitting.said[stage.key] = say.value;
      push(stage, () => statements(stage, () => open(place + 1)));
    });
  }

  /** One pushback; a wrong reply is followed up once. @param {Stage} stage @param {() => void} then */
  function push(stage, then) {
    const pushed = pushbackOf(round, sitting, stage);
    if (!pushed) {
      then();
      return;
    }
    sitting.pushed[stage.key] = pushed.key;
    const replies = sitting.replies[stage.key] = /** @type {string[]} */ ([]);
    const first = choice("Your reply", menuOf(pushed.replies));
    step("The interviewer asks back", [paragraphs(pushed.asks), first.wrapped], "Reply", () => {
      const reply = pushed.replies.find((each) => each.key === first.select.value);
      if (reply) replies.push(reply.key);
      if (!reply || reply.right) {
        then();
        return;
      }
      const second = choice("Your reply", menuOf(pushed.replies.filter((each) => each !== reply)));
      step("The interviewer isn't convinced", [paragraphs(reply.because), second.wrapped], "Reply", () => {
        if (second.select.value) replies.push(second.select.value);
        then();
      });
    });
  }

  /** @param {Stage} stage @param {() => void} then */
  function statements(stage, then) {
    if (!stage.statements.length) {
      then();
      return;
    }
    const rows = stage.statements.map((each, i) => choice(`${i + 1}. ${each.says}`, round.beliefs));
    const about = make("p", "Statements about this very case. Some are true, some aren't: what do you think of each?");
    step("On the table", [about, ...rows.map((each) => each.wrapped)], "Go on", () => {
      believe(stage.key, rows);
      then();
    });
  }

  /** One's own argument against the three columns; only what has a sentence behind it counts. */
  function grade() {
    const areas = Object.keys(round.rubric).filter((area) => sitting.said[area]?.trim());
    const rows = areas.map((area) => ({ area, ...choice(`${round.areas[area]}: your argument is`, Object.fromEntries(round.columns.map((each) => [each, each]))),
      quote: line(`${round.areas[area]}: a sentence of yours that shows it`) }));
    if (!rows.length) {
      result();
      return;
    }
    const content = rows.flatMap(({ area, wrapped, quote }) => {
      const list = make("ul");
      round.rubric[area].forEach((text, i) => list.append(make("li", `${round.columns[i]}: ${text}`)));
      return [make("h3", round.areas[area]), make("p", `You said: ${sitting.said[area]}`, { class: "yours" }), list, wrapped, quote.wrapped];
    });
    step("Your own grade", content, "See", () => {
      sitting.own = {};
      for (const { area, select, quote } of rows) {
        if (select.value && quote.input.value.trim()) sitting.own[area] = [select.value, quoted(round, sitting, area, quote.input.value)];
      }
      result();
    });
  }

  function result() {
    const verdict = judge(round, sitting);
    minillmRoundHistory.add(round.id, draw, verdict.level);
    const table = make("table", "", { class: "marks" });
    const headed = (/** @type {string} */ words, /** @type {string[]} */ cells) => {
      const row = make("tr");
      row.append(make("th", words, { scope: "row" }), ...cells.map((cell) => make("td", cell)));
      return row;
    };
    verdict.areas.forEach((each) => table.append(headed(round.areas[each.area], [each.level, each.counted])));
    const listed = (/** @type {string} */ title, /** @type {Item[]} */ items) => {
      const list = make("ul");
      items.forEach((each) => list.append(make("li", `${round.areas[each.area]}: ${each.about} ${each.told}`)));
      return items.length ? [make("h3", title), list] : [];
    };
    const own = make("ul");
    Object.entries(sitting.own).forEach(([area, [column, quote]]) => own.append(make("li", `${round.areas[area]}: ${column} (“${quote}”)`)));
    const details = verdict.areas.map((each) => {
      const list = make("ul");
      each.items.forEach((item) => list.append(make("li", `${{ true: "Right", false: "Wrong", null: "Left open" }[`${item.right}`]}: ${item.about} ${item.told}`)));
      return fold(`${round.areas[each.area]}: ${each.level}`, list);
    });
    const columns = make("table");
    const head = make("tr");
    head.append(make("td"), ...round.columns.map((each) => make("th", each, { scope: "col" })));
    columns.append(head, ...Object.entries(round.rubric).map(([area, texts]) => headed(round.areas[area], texts)));
    const weakest = verdict.areas.reduce((least, each) => (each.mean < least.mean ? each : least));
    const used = clock.used();
    step("What came out", [
      make("p", `You took ${Math.floor(used / 60)}:${String(used % 60).padStart(2, "0")} of ${round.minutes}:00.`),
      make("p", `On what can be computed: ${verdict.told}`), table, ...listed("What helped", verdict.helped), ...listed("What hurt", verdict.hurt),
      make("h3", "Your argument"), make("p", round.unread), own, make("h3", `Say this part again, in one paragraph: ${round.areas[weakest.area]}`),
      make("p", `A staff answer: ${round.rubric[weakest.area].at(-1)}`), make("h3", "Item by item"), ...details,
      fold("The same prompt at three levels, side by side", columns), fold("A sound board, and how a staff candidate talked", paragraphs(round.sample)),
    ], "Once more", () => location.reload());
  }

  const before = minillmRoundHistory.told(round.id);
  const earlier = before ? [make("p", `You've sat it before (${before}). ${draw ? "This time it has other numbers." : "You've seen these numbers."}`, { class: "yours" })] : [];
  minillmSteps.step(home, "Before the clock starts", [...earlier, make("p", "Ask, estimate, draw, defend two deep dives, survive a failure and a change of mind. What you leave empty is left open. The prompt appears when the clock starts.")],
    `Start ${round.minutes} minutes`, () => {
      clock = minillmSteps.clock(round.minutes * 60);
      home.replaceChildren(paragraphs(round.opening, "prompt"), clock.shown, ask.box);
      open(0);
    }, true);
})();
