// The console's middle: what was asked and answered, newest on top, each as words, a panel and a table.
import { drawPanel } from "./console_chart.js";
import { make } from "./elements.js";
/** @typedef {import("./console_types.js").State} State */
/** @typedef {import("./console_types.js").Evidence} Evidence */

const SHOWN_MS = 1200;

/** @param {string} caption @param {string[]} head @param {string[][]} rows */
function tableOf(caption, head, rows) {
  return make("div", { class: "mm-tablebox", tabindex: 0, role: "region", "aria-label": `${caption}: table` },
    make("table", {}, make("thead", {}, make("tr", {}, ...head.map((each, i) => (each || i ? make("th", { scope: "col" }, each) : make("td", {}))))),
      make("tbody", {}, ...rows.map(([name, ...cells]) => make("tr", {}, make("th", { scope: "row" }, name), ...cells.map((each, i) => make("td", { "data-head": head[i + 1] }, each)))))));
}

/** @returns {{element: HTMLElement, update: (state: State) => void, look: (id: string, goes: boolean) => void, end: () => void}} look: marks an answer, and goes there */
function evidencePane() {
  const warning = make("p", { class: "mm-warning", role: "note" });
  const empty = make("p", { class: "mm-empty" }, "Nothing has been asked yet. What you ask is answered here, the newest on top; each answer costs minutes.");
  const list = make("div", { class: "mm-cards" });
  const element = make("section", { class: "mm-pane mm-evidence", "aria-label": "Evidence" }, make("h2", {}, "Evidence"), warning, empty, list);
  /** @type {Map<string, {card: HTMLElement, redraw: () => void, flaw: HTMLElement}>} */ const cards = new Map();
  const size = new ResizeObserver(() => { for (const each of cards.values()) each.redraw(); });
  size.observe(list);

  /** @param {Evidence} found */
  function cardOf(found) {
    const flaw = make("p", { class: "mm-flaw" }), card = make("article", { class: "mm-answered", tabindex: -1 });
    card.append(make("h3", {}, make("span", { class: "mm-at" }, `min ${found.minute}`), found.question), flaw);
    flaw.hidden = !found.missing;
    flaw.textContent = found.missing ? found.text : "";
    const chart = document.createElementNS("http://www.w3.org/2000/svg", "svg"), { panel } = found;
    if (!found.missing) {
      card.append(make("p", {}, found.text));
      if (panel) {
        chart.setAttribute("role", "img");
        chart.setAttribute("aria-label", `${panel.y}, by ${panel.x}. ${found.text}`);
        chart.classList.add("mm-chart");
        card.append(chart);
      }
      if (found.rows.length && found.head.length > 1) card.append(tableOf(found.question, found.head, found.rows));
    }
    return { card, flaw, redraw: () => { if (panel) drawPanel(chart, panel); } };
  }

  return {
    element,
    update(state) {
      warning.textContent = state.page.warning;
      warning.hidden = !state.page.warning;
      empty.hidden = state.evidence.length > 0;
      for (const found of state.evidence) {
        if (cards.has(found.id)) continue;
        const made = cardOf(found);
        cards.set(found.id, made);
        list.prepend(made.card);
        list.scrollTop = 0;
        made.redraw();
      }
      for (const found of state.evidence.filter((each) => state.debrief?.stale.includes(each.question))) {
        const { flaw } = /** @type {{flaw: HTMLElement}} */ (cards.get(found.id));
        flaw.hidden = false;
        flaw.textContent = "This panel showed last week's data as today's.";
      }
    },
    look(id, goes) {
      const card = cards.get(id)?.card;
      if (!card) return;
      if (goes) {
        card.scrollIntoView({ block: "nearest", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
        card.focus({ preventScroll: true });
      }
      card.classList.add("mm-shown");
      setTimeout(() => card.classList.remove("mm-shown"), SHOWN_MS);
    },
    end: () => size.disconnect(),
  };
}

export { evidencePane, tableOf };
