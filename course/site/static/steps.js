// What rounds and napkin sums share: elements, menus, a step with a button under it, a clock.
"use strict";

/* exported minillmSteps */
const minillmSteps = (() => {
  /** What was filled in can't be taken: its message is shown, and the step stays open. */
  class Refused extends Error {}

  /** @param {string} tag @param {string} words @param {Record<string, string>} attributes @returns {any} */
  function make(tag, words = "", attributes = {}) {
    const element = document.createElement(tag);
    element.textContent = words;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  }

  /** Text with blank lines between paragraphs, line breaks, and **bold**. @param {string} text @param {string} look */
  function paragraphs(text, look = "") {
    const box = make("div", "", { class: look });
    for (const part of text.split(/\n\s*\n/)) {
      const p = make("p");
      part.split("**").forEach((piece, i) => {
        const home = i % 2 ? make("b") : p;
        piece.split("\n").forEach((words, at) => home.append(...(at ? [make("br"), words] : [words])));
        if (i % 2) p.append(home);
      });
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

  /** @param {string} label @param {Record<string, string>} attributes */
  function line(label, attributes = {}) {
    const input = make("input", "", { type: "text", ...attributes });
    const wrapped = make("label", `${label} `);
    wrapped.append(input);
    return { wrapped, input };
  }

  /** @param {string} summary @param {any[]} content */
  function fold(summary, ...content) {
    const box = make("details");
    box.append(make("summary", summary), ...content);
    return box;
  }

  /** A step with a button under it, which closes it and goes on.
   * @param {HTMLElement} stage @param {string} title @param {any[]} content @param {string} press
   * @param {() => void} next may throw Refused @param {boolean} isFirst then the focus stays where it is */
  function step(stage, title, content, press, next, isFirst = false) {
    const section = make("section");
    const button = make("button", press, { type: "button" });
    const told = make("p", "", { role: "alert" });
    const heading = make("h2", title, { tabindex: "-1" });
    section.append(heading, ...content, told, button);
    button.addEventListener("click", () => {
      try {
        next();
      } catch (problem) {
        if (!(problem instanceof Refused)) throw problem;
        told.textContent = problem.message;
        return;
      }
      told.remove();
      button.remove();
      section.querySelectorAll("input, select, textarea, button").forEach((/** @type {any} */ each) => { each.disabled = true; });
    });
    stage.append(section);
    if (!isFirst) heading.focus();
  }

  /** Counts down, and then what is over. @param {number} seconds */
  function clock(seconds) {
    const shown = make("p", "", { class: "clock", role: "timer" });
    const began = Date.now();
    const used = () => Math.floor((Date.now() - began) / 1000);
    function draw() {
      const left = seconds - used();
      const size = Math.abs(left);
      shown.textContent = `${left < 0 ? "over by " : ""}${Math.floor(size / 60)}:${String(size % 60).padStart(2, "0")}`;
      shown.classList.toggle("late", left < 0);
    }
    const tick = setInterval(draw, 500);
    draw();
    return { shown, used, stop: () => clearInterval(tick) };
  }

  return { Refused, make, paragraphs, choice, line, fold, step, clock };
})();
