// A drill's end: the level as far as it can be computed, and why.
import { make } from "./elements.js";
import { paragraphs } from "./fields.js";

/** @param {import("./drill_types.js").Verdict} verdict */
function verdictOf(verdict) {
  const scale = make("ol", { class: "mm-levels", "aria-label": `Level: ${verdict.level || "no hire yet"}` },
    ...["no hire yet", ...verdict.levels].map((level) => make("li", { class: (verdict.level || "no hire yet") === level ? "mm-reached" : "", ...((verdict.level || "no hire yet") === level ? { "aria-current": "true" } : {}) }, level)));
  const bar = (/** @type {string} */ name, /** @type {number} */ share) => make("div", { class: "mm-share" }, make("span", {}, name), make("i", { style: `--share:${Math.max(share, 0)}` }), make("b", {}, `${Math.round(100 * share)}%`.replace("-", "−")));
  const shares = [bar("committed to", verdict.answer), ...(verdict.understanding === null ? [] : [bar("understood", verdict.understanding)])];
  return [make("p", { class: "mm-tags" }, verdict.tags), scale, ...shares, make("p", {}, verdict.headline),
    ...verdict.rows.map(({ name, lines }, i) => {
      const box = make("details", {}, make("summary", {}, name), ...lines.map((each) => make("p", {}, each)));
      box.open = i < 2;
      return box;
    }),
    make("details", {}, make("summary", {}, "What the numbers imply, and the model answers"), ...paragraphs(verdict.solution)),
    make("details", {}, make("summary", {}, "Who graded what"), ...verdict.graders.map(({ name, says }) => make("p", {}, make("b", {}, `${name}. `), says)))];
}

export { verdictOf };
