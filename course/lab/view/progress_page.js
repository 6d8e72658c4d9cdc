// The page "Your progress": what is done, path by path and kind by kind, where to go on; taken along, brought in, erased.
import { make, say } from "./elements.js";
import { canKeep, dayOf, eraseKept, exported, imported, keptIn, noteBet, standingOf, streakOf } from "./progress.js";

/**
 * What the page knows of the course (course/site/your_progress.py).
 * @typedef {{title: string, page: string, bets: Record<string, string>, questions: string[]}} LessonTold bets: by key, the place on its page
 * @typedef {{id: string, name: string, page: string}} Practised page: empty where only notebooks have it
 * @typedef {Practised & {points: number, costs: number[]}} ExerciseTold costs: of its hints, in points
 * @typedef {{numbers: string[], lessons: Record<string, LessonTold>, paths: {name: string, lessons: string[]}[], exercises: ExerciseTold[], drills: Practised[], rounds: Practised[]}} Course
 * @typedef {{last?: string, predictions?: Record<string, number | null>, checks?: Record<string, {score: number, possible: number}>}} LessonRecord
 */

const FILE_NAME = "minillm-progress.json", SIGNS = { none: "○", begun: "◐", done: "●" };
const LEGEND = `${SIGNS.none} not begun, ${SIGNS.begun} begun, ${SIGNS.done} done: each bet locked, each question of its check answered. A check is answered on its lesson's page where its keys need no model, else in the notebook.`;
const ERASES = "Erase everything this site keeps in this browser? Bets, results, and what you wrote in exercises. There's no way back but a file that you exported.";

/** @param {number[]} numbers */
const sumOf = (numbers) => Number(numbers.reduce((sum, each) => sum + each, 0).toFixed(2));

/** Bets that are locked on this page go into its lesson's record. */
function noteBets() {
  document.addEventListener("minillm:bet", (event) => {
    const { lesson, key } = event.target instanceof HTMLElement ? event.target.dataset : {};
    if (lesson && key) noteBet(lesson, key, /** @type {CustomEvent<{points: number | null}>} */ (event).detail.points);
  });
}

/** @param {LessonTold} lesson @param {LessonRecord | undefined} record */
function signOf(lesson, record) {
  if (!record) return SIGNS.none;
  const isDone = Object.keys(lesson.bets).every((key) => key in (record.predictions ?? {})) && lesson.questions.every((key) => key in (record.checks ?? {}));
  return isDone ? SIGNS.done : SIGNS.begun;
}

/** The first of these lessons with a bet that isn't locked: a link to it. @param {Course} course @param {string[]} numbers */
function nextBet(course, numbers) {
  /** @type {Record<string, LessonRecord>} */ const records = keptIn("progress.json").lessons;
  for (const number of numbers) {
    const lesson = course.lessons[number];
    const open = Object.entries(lesson?.bets ?? {}).find(([key]) => !(key in (records[number]?.predictions ?? {})));
    if (open) return make("a", { href: `${lesson.page}#${open[1]}` }, `Lesson ${number}, ${lesson.title}: a bet to lock`);
  }
  return null;
}

/** Where something happened last comes before the others, in their order. @param {Course} course */
function whereNext(course) {
  /** @type {Record<string, LessonRecord>} */ const records = keptIn("progress.json").lessons;
  const latest = Object.keys(records).sort((a, b) => Number((records[b].last ?? "") > (records[a].last ?? "")) - Number((records[b].last ?? "") < (records[a].last ?? "")));
  return nextBet(course, [...latest.slice(0, 1), ...course.numbers]);
}

/** @param {Course} course @param {{name: string, lessons: string[]}} path */
function pathOf(course, path) {
  /** @type {Record<string, LessonRecord>} */ const records = keptIn("progress.json").lessons;
  const known = path.lessons.filter((number) => number in course.lessons);
  const rows = known.map((number) => {
    const lesson = course.lessons[number], { predictions = {}, checks = {} } = records[number] ?? {};
    const locked = Object.keys(lesson.bets).filter((key) => key in predictions).length, answers = Object.values(checks);
    const points = answers.length ? `${sumOf(answers.map((each) => each.score))} of ${sumOf(answers.map((each) => each.possible))} points` : "";
    return make("tr", {}, make("th", { scope: "row" }, `${signOf(lesson, records[number])} `, make("a", { href: lesson.page }, `${number} ${lesson.title}`)),
      make("td", {}, `${locked} of ${Object.keys(lesson.bets).length}`), make("td", {}, points));
  });
  const head = make("tr", {}, ...["lesson", "bets locked", "check"].map((name) => make("th", { scope: "col" }, name)));
  const begun = known.filter((number) => number in records).length, next = nextBet(course, known);
  return make("details", {}, make("summary", {}, make("b", {}, path.name), `: ${begun} of ${known.length} lessons begun`),
    ...(next ? [make("p", {}, "Next: ", next)] : []), make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
}

/** What was done of one kind, and how it went. @param {string} title @param {number} all @param {[Practised, string][]} done */
function kindOf(title, all, done) {
  const items = done.map(([{ name, page }, told]) => make("li", {}, page ? make("a", { href: page }, name) : name, `: ${told}`));
  return make("details", {}, make("summary", {}, make("b", {}, title), `: ${done.length} of ${all}`), items.length ? make("ul", {}, ...items) : make("p", {}, "None yet."));
}

/** What was reached, the latest last. @param {string[]} levels */
const reached = (levels) => `${levels.map((level) => level || "no hire yet").join(", ")}${levels.length > 1 ? " (the latest last)" : ""}`;

/** @param {string} file @param {string} field that names it @param {Practised[]} all @returns {[Practised, string][]} */
function levelsOf(file, field, all) {
  /** @type {Record<string, string>[]} */ const done = keptIn(file).done;
  const levels = all.map((each) => /** @type {const} */ ([each, done.filter((one) => one[field] === each.id).map((one) => one.level ?? "")]));
  return levels.filter(([, found]) => found.length).map(([each, found]) => [each, reached(found)]);
}

/** @param {Course} course */
function practice(course) {
  const standings = course.exercises.map((each) => /** @type {const} */ ([each, standingOf(each.id, each.points, each.costs)]));
  /** @type {[Practised, string][]} */
  const tried = standings.filter(([, { attempts }]) => attempts).map(([each, { best }]) => [each, `${best} of ${each.points} points`]);
  const today = dayOf(new Date()), played = keptIn("daily.json").days, sums = keptIn("napkin.json").days;
  const right = Object.values(sums).filter((each) => each.right).length;
  return [
    kindOf("Exercises", course.exercises.length, tried),
    kindOf("Drills", course.drills.length, levelsOf("drills.json", "drill", course.drills)),
    kindOf("Design rounds", course.rounds.length, levelsOf("rounds.json", "round", course.rounds)),
    make("p", {}, make("b", {}, "Incidents"), `: ${keptIn("incidents.json").names.length} graded. Of the day: ${Object.keys(played).length}, streak ${streakOf(played, today)}.`),
    make("p", {}, make("b", {}, "Sums of the day"), `: ${right} right of ${Object.keys(sums).length}, streak ${streakOf(sums, today)}.`),
  ];
}

/** @param {HTMLElement} el with the course as JSON in data-progress */
function mountProgress(el) {
  /** @type {Course} */ const course = JSON.parse(el.dataset.progress ?? "");
  const shown = make("div", {}), said = make("p", { role: "status" });
  const file = make("input", { type: "file", accept: ".json,application/json", class: "hidden", tabindex: -1, "aria-label": "A file to import", onchange: () => void bringIn() });
  el.replaceChildren(make("p", {}, make("button", { type: "button", onclick: save }, "Export"), " ", make("button", { type: "button", onclick: () => file.click() }, "Import"), " ",
    make("button", { type: "button", class: "quiet", onclick: erase }, "Erase"), file), said, shown);

  function draw() {
    const next = whereNext(course);
    shown.replaceChildren(make("h2", {}, "Where to go on"), make("p", {}, next ?? "Every bet on this site is locked. The checks that are not answered here are in the notebooks."),
      make("h2", {}, "By path"), ...course.paths.map((path) => pathOf(course, path)), make("p", {}, make("small", {}, LEGEND)),
      make("h2", {}, "Practice"), ...practice(course));
  }

  function save() {
    const link = make("a", { href: URL.createObjectURL(new Blob([exported()], { type: "application/json" })), download: FILE_NAME });
    link.click();
    URL.revokeObjectURL(link.href);
    say(said, `Exported to ${FILE_NAME}, in your downloads.`);
  }

  async function bringIn() {
    const chosen = file.files?.[0];
    if (!chosen) return;
    try {
      say(said, imported(await chosen.text()));
    } catch (problem) {
      say(said, problem instanceof Error ? problem.message : String(problem));
    }
    file.value = ""; // the same file may be chosen again
    draw();
  }

  function erase() {
    if (!confirm(ERASES)) return;
    eraseKept();
    say(said, "Erased.");
    draw();
  }

  if (!canKeep()) say(said, "This browser keeps nothing for this site: its storage is full, or switched off.");
  window.addEventListener("pageshow", ({ persisted }) => { if (persisted) draw(); }); // somebody came back to it
  draw();
}

export { mountProgress, noteBets };
