// What a reader has done, as the notebooks keep it: the same files with the same contents (course/lessons/start/imported.py
// takes them in), an item of this browser's storage each. Nothing leaves it, and where it keeps nothing no page breaks.

/** @typedef {Record<string, any>} Content of a file */
/** @typedef {(ours: any, theirs: any) => any} Pick of two results of one thing, the one that stays */
/** @typedef {{empty: Content, isSound: (content: any) => boolean, joined: (ours: Content, theirs: Content, pick?: Pick) => Content}} Kind of file */

const PREFIX = "minillm", EXERCISES_FILE = "exercises.jsonl";
const COPY_FROM = "A copy comes from Export here, or from Save a copy on the notebooks' start page.";

/** @param {unknown} value @returns {value is Record<string, any>} */
const isRecord = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** Whether it has these fields, of these types. @param {unknown} value @param {Record<string, string>} types */
const fits = (value, types) => isRecord(value) && Object.entries(types).every(([name, type]) => typeof value[name] === type);

/** Whether each value passes. @param {unknown} record @param {(value: any) => boolean} passes */
const everyValue = (record, passes) => isRecord(record) && Object.values(record).every(passes);

/** Of a bet or a day, what happened first counts: who has seen the answer can't bet on it any more. @type {Pick} */
const firstStays = (ours, theirs) => ours ?? theirs;

/** @param {Record<string, any>} ours @param {Record<string, any>} theirs @param {Pick} pick */
function joinedByKey(ours, theirs, pick) {
  const all = new Map(Object.entries(ours));
  for (const [key, value] of Object.entries(theirs)) all.set(key, all.has(key) ? pick(all.get(key), value) : value);
  return Object.fromEntries(all);
}

/** The same text for the same thing, in whatever order its fields stand. @param {unknown} thing */
const canonical = (thing) => JSON.stringify(thing, (_, value) => (isRecord(value) ? Object.fromEntries(Object.entries(value).sort()) : value));

/** Things that happened, in order. @param {string} field @param {string} moment the field that says when @param {Record<string, string>} types @returns {Kind} */
const happened = (field, moment, types) => ({
  empty: { [field]: [] },
  isSound: (content) => Array.isArray(content[field]) && content[field].every((/** @type {unknown} */ one) => fits(one, types)),
  joined(ours, theirs) {
    const all = new Map([...ours[field], ...theirs[field]].map((one) => [canonical(one), one]));
    return { ...theirs, ...ours, [field]: [...all.values()].sort((a, b) => Number(a[moment] > b[moment]) - Number(a[moment] < b[moment])) };
  },
});

/** A result a day. @param {string} worth the field that says which is better @param {Record<string, string>} types @returns {Kind} */
const daily = (worth, types) => ({
  empty: { days: {} },
  isSound: (content) => everyValue(content.days, (day) => fits(day, types)),
  joined(ours, theirs, pick = (one, other) => ({ ...(other[worth] > one[worth] ? other : one), on_the_day: Boolean(one.on_the_day || other.on_the_day) })) {
    return { ...theirs, ...ours, days: joinedByKey(ours.days, theirs.days, pick) };
  },
});

/** @type {Pick} of two lessons' records; null points: locked, and no run has scored it yet */
const betterPoints = (ours, theirs) => (ours === null ? theirs : Math.max(ours, theirs ?? 0));

/** @type {Pick} */
const betterAnswer = (ours, theirs) => (theirs.score > ours.score ? theirs : ours);

/** @param {any} points */
const arePoints = (points) => points === null || typeof points === "number";

/** @type {Kind} */
const LESSONS = {
  empty: { lessons: {} },
  isSound: (content) => everyValue(content.lessons, (lesson) => fits(lesson, { opened: "string", last: "string" }) && everyValue(lesson.predictions ?? {}, arePoints)
    && everyValue(lesson.checks ?? {}, (answer) => fits(answer, { score: "number", possible: "number" }))),
  joined(ours, theirs, pick) {
    const lessons = joinedByKey(ours.lessons, theirs.lessons, (/** @type {any} */ mine, /** @type {any} */ other) => ({
      ...other, ...mine,
      opened: mine.opened < other.opened ? mine.opened : other.opened, last: mine.last > other.last ? mine.last : other.last,
      predictions: joinedByKey(mine.predictions ?? {}, other.predictions ?? {}, pick ?? betterPoints),
      checks: joinedByKey(mine.checks ?? {}, other.checks ?? {}, betterAnswer), // also as they're answered: a check may be tried again
    }));
    return { ...theirs, ...ours, lessons };
  },
};

/** @type {Kind} */
const TOLD_CAUSES = {
  empty: { names: [] },
  isSound: (content) => Array.isArray(content.names) && content.names.every((/** @type {unknown} */ name) => typeof name === "string"),
  joined: (ours, theirs) => ({ ...theirs, ...ours, names: [...new Set([...ours.names, ...theirs.names])] }),
};

/** @type {Record<string, Kind>} */
const KINDS = {
  "progress.json": LESSONS,
  [EXERCISES_FILE]: happened("events", "at", { exercise: "string", event: "string" }),
  "drills.json": happened("done", "when", { drill: "string", seed: "number", when: "string", answer: "string", points: "number" }),
  "rounds.json": happened("done", "when", { round: "string", seed: "number", when: "string", level: "string" }),
  "incidents.json": TOLD_CAUSES,
  "daily.json": daily("score", { score: "number", questions: "number" }),
  "napkin.json": daily("right", { right: "boolean" }),
};

// ---------------------------------------------------------------- in this browser

/** @param {string} file @returns {Content} empty where there is none, or none that can be read */
function keptIn(file) {
  try {
    const content = JSON.parse(localStorage.getItem(`${PREFIX} ${file}`) ?? "null");
    return isRecord(content) && KINDS[file].isSound(content) ? content : KINDS[file].empty;
  } catch {
    return KINDS[file].empty;
  }
}

/** @param {string} file @param {Content} content @returns {boolean} whether it is kept: a browser may refuse, or be full */
function keepIn(file, content) {
  try {
    localStorage.setItem(`${PREFIX} ${file}`, JSON.stringify(content));
    return true;
  } catch {
    return false;
  }
}

/** Something was done. @param {Record<string, Content>} done by file: what comes to it; of what is there already, nothing changes */
function noteDone(done) {
  for (const [file, content] of Object.entries(done)) keepIn(file, KINDS[file].joined(keptIn(file), content, firstStays));
}

/** The date that it is here, as 2026-01-05. @param {Date} moment */
const dayOf = (moment) => [moment.getFullYear(), moment.getMonth() + 1, moment.getDate()].map((part) => String(part).padStart(2, "0")).join("-");

/** This moment, as the notebooks write it. */
const momentNow = () => `${new Date().toISOString().slice(0, 19)}+00:00`;

/** A bet is locked. @param {string} lesson its number @param {string} key @param {number | null} points null: nothing scores it */
function noteBet(lesson, key, points) {
  const now = momentNow();
  noteDone({ "progress.json": { lessons: { [lesson]: { opened: now, last: now, predictions: { [key]: points }, checks: {} } } } });
}

/** @param {string} exercise its id @param {Record<string, unknown>} event */
function noteExercise(exercise, event) {
  noteDone({ [EXERCISES_FILE]: { events: [{ at: momentNow(), exercise, ...event }] } });
}

/**
 * How far with an exercise: points of the best attempt, less what hints cost that were read before it.
 * @param {string} exercise its id @param {number} points @param {number[]} costs of its hints
 */
function standingOf(exercise, points, costs) {
  const own = keptIn(EXERCISES_FILE).events.filter((/** @type {any} */ event) => event.exercise === exercise);
  const attempts = own.filter((/** @type {any} */ event) => event.event === "attempt" && event.score >= 0 && event.max_score > 0);
  const paid = (/** @type {number} */ hints) => costs.slice(0, hints).reduce((sum, cost) => sum + cost, 0);
  const scores = attempts.map((/** @type {any} */ event) => (points * Math.min(event.score, event.max_score)) / event.max_score - paid(event.hints ?? 0));
  const read = new Set(own.filter((/** @type {any} */ event) => event.event === "hint").map((/** @type {any} */ event) => event.number));
  return { attempts: attempts.length, best: Number(Math.max(0, ...scores).toFixed(2)), hints: Math.min(read.size, costs.length) };
}

/** Days in a row up to today or yesterday, each played on its own date. @param {Record<string, any>} days @param {string} today */
function streakOf(days, today) {
  const before = (/** @type {string} */ day) => new Date(Date.parse(day) - 864e5).toISOString().slice(0, 10);
  let day = days[today]?.on_the_day ? today : before(today), count = 0;
  for (; days[day]?.on_the_day; day = before(day)) count += 1;
  return count;
}

// ---------------------------------------------------------------- taken along

/** A history's text: an event a line. @param {unknown[]} events */
const linesOf = (events) => events.map((event) => `${JSON.stringify(event)}\n`).join("");

/** All of it as one file's text, which the notebooks' start page imports. */
function exported() {
  const names = Object.keys(KINDS).filter((file) => keptIn(file) !== KINDS[file].empty);
  return JSON.stringify(Object.fromEntries(names.map((file) => [file, file === EXERCISES_FILE ? linesOf(keptIn(file).events) : keptIn(file)])), null, 1);
}

/** Events of a history: a line each; a single line has become an object in the notebooks' export. @param {unknown} lines */
function eventsIn(lines) {
  const texts = typeof lines === "string" ? lines.split("\n").filter((line) => line.trim()) : [JSON.stringify(lines)];
  return { events: texts.map((text) => JSON.parse(text)) };
}

/** @param {string} file @param {unknown} content as an export has it @returns {Content} */
function understood(file, content) {
  try {
    const read = file === EXERCISES_FILE ? eventsIn(content) : content;
    const whole = isRecord(read) ? { ...KINDS[file].empty, ...read } : null;
    if (whole && KINDS[file].isSound(whole)) return whole;
  } catch { /* a line of a history is no JSON: told below */ }
  throw new Error(`Nothing was imported: ${file} in this file is damaged.`);
}

/** An export's contents by file name. @param {string} text @returns {Record<string, unknown>} */
function filesIn(text) {
  /** @type {unknown} */ let held;
  try { held = JSON.parse(text); } catch { throw new Error(`Nothing was imported: this file isn't JSON. ${COPY_FROM}`); }
  if (!isRecord(held) || !Object.keys(held).some((name) => Object.hasOwn(KINDS, name))) {
    throw new Error(`Nothing was imported: this file holds no progress of this course. ${COPY_FROM}`);
  }
  return held;
}

/**
 * Adds what a file holds that was exported here or in a notebook. Of two results of one thing the better one stays.
 * @param {string} text @returns {string} what was taken, in a sentence
 * @throws {Error} it is something else, or a part of it is damaged, and nothing is changed; or this browser can't keep it
 */
function imported(text) {
  const files = filesIn(text), names = Object.keys(files), ours = names.filter((name) => Object.hasOwn(KINDS, name));
  const contents = new Map(ours.map((file) => [file, understood(file, files[file])])); // all are read before one is kept
  const lost = [...contents].filter(([file, content]) => !keepIn(file, KINDS[file].joined(keptIn(file), content)));
  if (lost.length) throw new Error(`This browser couldn't keep ${lost.map(([file]) => file).join(", ")}: its storage is full, or switched off.`);
  const left = names.filter((name) => !ours.includes(name));
  return `Imported: ${ours.join(", ")}.${left.length ? ` Left out, since only notebooks use it: ${left.join(", ")}.` : ""}`;
}

/** All that this site keeps, bets and answers' texts as well. */
function eraseKept() {
  try {
    for (const storage of [localStorage, sessionStorage]) { // the second: what this tab would go back to
      for (const key of Object.keys(storage)) if (key.startsWith(PREFIX)) storage.removeItem(key);
    }
  } catch { /* nothing is kept */ }
}

/** Whether this browser keeps anything. */
function canKeep() {
  try {
    localStorage.setItem(`${PREFIX} trial`, "");
    localStorage.removeItem(`${PREFIX} trial`);
    return true;
  } catch {
    return false;
  }
}

export { canKeep, dayOf, eraseKept, exported, imported, keptIn, noteBet, noteDone, noteExercise, standingOf, streakOf };
