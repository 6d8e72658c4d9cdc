// A design round, one step a screen: ask, estimate, draw boxes, defend, judge statements, survive a failure and a change
// of mind. It knows a port and nothing of who answers there.
import { make, say } from "./elements.js";
import { fieldOf, paragraphs, searchOf } from "./fields.js";
import { countdown } from "./countdown.js";
/** @typedef {import("./round_types.js").State} State */
/** @typedef {import("./round_types.js").Item} Item */
/** @typedef {import("./round_types.js").Page} RoundPage */

const BOARD = "board", PLAN = "Ask, estimate, draw, defend two deep dives, survive a failure and a change of mind. What you leave empty is left open. The prompt appears when the clock starts.";
/** @type {Record<string, string>} What an item was. */
const MARKS = { true: "Right", false: "Wrong", null: "Left open" };

/** Two menus and a button that write an arrow, for those who'd rather not type. @param {HTMLTextAreaElement} board @param {import("./round_types.js").Option[]} boxes */
function arrowsFor(board, boxes) {
  const [from, to] = ["An arrow from", "An arrow to"].map((label) => make("select", { "aria-label": label }, ...boxes.map(({ id, name }) => make("option", { value: id }, `${id}: ${name}`))));
  const add = () => { board.value = `${board.value.trimEnd()}\n${from.value} > ${to.value}`.trimStart(); };
  return make("div", { class: "mm-arrows" }, from, "→", to, make("button", { type: "button", onclick: add }, "Add arrow"));
}

/** @param {string} title @param {(Node | string)[]} content */
const folded = (title, ...content) => make("details", {}, make("summary", {}, title), ...content);

/** @param {string} title @param {Item[]} items */
const listed = (title, items) => (items.length ? [make("h3", {}, title), make("ul", {}, ...items.map(({ area, about, told }) => make("li", {}, `${area}: ${about} ${told}`)))] : []);

/** @param {import("./round_types.js").Report} report */
function reportOf(report) {
  const row = (/** @type {string} */ name, /** @type {string[]} */ cells) => make("tr", {}, make("th", { scope: "row" }, name), ...cells.map((cell) => make("td", {}, cell)));
  const head = make("tr", {}, make("td", {}), ...report.columns.map((each) => make("th", { scope: "col" }, each)));
  const marks = report.areas.map(({ area, level, items }) => folded(`${area}: ${level}`, make("ul", {}, ...items.map(({ right, about, told }) => make("li", {}, `${MARKS[String(right)]}: ${about} ${told}`)))));
  return [
    make("p", {}, report.took),
    make("ol", { class: "mm-levels", "aria-label": `Level: ${report.level}` }, ...report.levels.map((level) => make("li", level === report.level ? { class: "mm-reached", "aria-current": "true" } : {}, level))),
    make("p", {}, report.told), make("table", {}, ...report.areas.map(({ area, level, counted }) => row(area, [level, counted]))),
    ...listed("What helped", report.helped), ...listed("What hurt", report.hurt),
    make("h3", {}, "Your argument"), make("p", {}, report.unread), make("ul", {}, ...report.own.map(({ area, column, quote }) => make("li", {}, `${area}: ${column} (“${quote}”)`))),
    make("h3", {}, `Say this part again, in one paragraph: ${report.again.area}`), make("p", {}, `A staff answer: ${report.again.says}`),
    make("h3", {}, "Item by item"), ...marks,
    folded("The same prompt at three levels, side by side", make("table", {}, head, ...report.rubric.map(({ area, says }) => row(area, says)))),
    folded("A sound board, and how a staff candidate talked", ...paragraphs(report.sample)),
  ];
}

/**
 * @param {HTMLElement} el @param {import("./round_types.js").Port} port @param {State} start
 * @param {string} before what is said of earlier sittings
 */
function mountRound(el, port, start, before) {
  let state = start, shownPage = "", isBusy = false;
  /** @type {() => import("./round_types.js").Action} */ let onward = () => ({ do: "start" });
  const steps = make("ol", { class: "mm-steps", "aria-label": "Steps" }), clock = countdown(start.clock);
  const heading = make("h2", { tabindex: -1 }), stage = make("div", { class: "mm-stagebody" }), said = make("p", { class: "mm-said", role: "status" });
  const on = make("button", { type: "button", class: "mm-run", onclick: () => act(onward()) });
  const opening = make("div", { class: "mm-asks-this" }), told = make("div", { class: "mm-told-facts", role: "status" }), asked = make("p", { class: "mm-lead" });
  const asking = make("div", { class: "mm-asking" }), behind = make("details", { class: "mm-behind" }, make("summary", {}, "The prompt, and what the interviewer told you"), opening, asking);
  el.append(make("div", { class: "mm-dash mm-drill mm-round", role: "group", "aria-label": start.title }, make("div", { class: "mm-drillhead" }, steps, clock.element), heading, stage, make("div", { class: "mm-foot" }, said, on)));

  /** @param {import("./round_types.js").Action} action */
  async function act(action) {
    if (isBusy) return;
    isBusy = true;
    el.setAttribute("aria-busy", "true");
    try {
      const after = await port.ask(action);
      said.textContent = "";
      show(after);
    } catch (problem) {
      const words = problem instanceof Error ? problem.message : String(problem);
      said.textContent = `${words.charAt(0).toUpperCase()}${words.slice(1)}`;
    } finally {
      isBusy = false;
      el.removeAttribute("aria-busy");
    }
  }

  /** Once, when the clock starts: more may be asked in any step, while there's time. */
  function begin() {
    opening.replaceChildren(...paragraphs(state.opening));
    const menu = searchOf({ key: "", label: "Ask the interviewer", options: state.asking.options, about: "", long: false });
    const ask = make("button", { type: "button", onclick: () => act({ do: "ask", fact: menu.value() }) }, "Ask");
    asking.replaceChildren(make("h3", {}, "Ask the interviewer"), make("div", { class: "mm-askline" }, menu.element, ask), asked, told);
  }

  /** @param {RoundPage} page */
  function answering(page) {
    const fields = page.fields.map((field) => ({ key: field.key, ...fieldOf(field, true) }));
    const rows = fields.flatMap(({ key, element }) => {
      const board = key === BOARD ? element.querySelector("textarea") : null;
      return board ? [element, arrowsFor(board, page.boxes)] : [element];
    });
    behind.open = state.at === 1; // requirements are where asking begins
    stage.replaceChildren(behind, ...paragraphs(page.text), make("div", { class: page.key.endsWith(".statements") ? "mm-fields mm-fields-statements" : "mm-fields mm-fields-round" }, ...rows));
    say(on, page.key.endsWith(".pushback") || page.key.endsWith(".follow_up") ? "Reply" : "Go on");
    onward = () => ({ do: "go_on", filled: Object.fromEntries(fields.map((each) => [each.key, each.value()])) });
  }

  /** @param {State} now */
  function show(now) {
    const isFirst = shownPage === "";
    state = now;
    clock.hear(now.clock);
    if (now.opening && !opening.childElementCount) begin();
    told.replaceChildren(...now.asking.told.map(({ asks, says }) => make("p", {}, make("b", {}, `${asks} `), says)));
    say(asked, `There's time for ${now.asking.left} more.`);
    steps.replaceChildren(...now.steps.map((name, i) => make("li", i === now.at ? { "aria-current": "step" } : { class: i < now.at ? "mm-past-step" : "" }, name)));
    const key = now.page?.key ?? (now.report ? "report" : "waiting");
    if (key === shownPage) return;
    shownPage = key;
    say(heading, now.page?.title ?? (now.report ? "What came out" : "Before the clock starts"));
    on.hidden = now.report !== null;
    if (now.report) stage.replaceChildren(...reportOf(now.report));
    else if (now.page) answering(now.page);
    else {
      stage.replaceChildren(...(before ? [make("p", {}, before)] : []), make("p", {}, PLAN));
      say(on, `Start ${Math.round(now.clock.total / 60)} minutes`);
    }
    stage.scrollTop = 0;
    if (!isFirst) heading.focus({ preventScroll: true });
  }

  show(start);
}

export { mountRound };
