// What is filled in, and texts: shared by drills and design rounds.
import { make, oneOf } from "./elements.js";
/** @typedef {import("./drill_types.js").Field} Field */

/** So many options stand side by side; more are searched. */
const FEW = 8;

/** Text with blank lines between paragraphs, line breaks, and **bold**. @param {string} text */
function paragraphs(text) {
  return text.split(/\n\s*\n/).filter((part) => part.trim()).map((part) => {
    const p = make("p", {});
    part.split("**").forEach((piece, i) => {
      const home = i % 2 ? make("b", {}) : p;
      piece.split("\n").forEach((words, at) => home.append(...(at ? [make("br"), words] : [words])));
      if (i % 2) p.append(home);
    });
    return p;
  });
}

/** One of many: type to narrow the list down, arrows and Enter choose. @param {Field} field */
function searchOf(field) {
  const options = field.options ?? [], id = `mm${Math.random().toString(36).slice(2, 9)}`;
  let chosen = "", marked = -1;
  const list = make("ul", { role: "listbox", id, class: "mm-options", "aria-label": field.label });
  const input = make("input", { type: "text", role: "combobox", "aria-label": field.label, "aria-controls": id, "aria-expanded": "false", "aria-autocomplete": "list", autocomplete: "off", placeholder: "choose, or type to search" });
  const items = options.map((option, i) => make("li", { role: "option", id: `${id}-${i}`, "aria-selected": "false", onpointerdown: (/** @type {Event} */ event) => { event.preventDefault(); choose(i); } }, option.name));
  list.append(...items);
  const open = (/** @type {boolean} */ isOpen) => { list.hidden = !isOpen; input.setAttribute("aria-expanded", String(isOpen)); };
  const visible = () => items.map((_, i) => i).filter((i) => !items[i].hidden);
  /** @param {number} i */
  function mark(i) {
    marked = i;
    items.forEach((item, at) => item.classList.toggle("mm-marked", at === i));
    if (i < 0) input.removeAttribute("aria-activedescendant");
    else {
      input.setAttribute("aria-activedescendant", items[i].id);
      items[i].scrollIntoView({ block: "nearest" });
    }
  }
  /** @param {number} i */
  function choose(i) {
    chosen = i < 0 ? "" : options[i].id;
    input.value = i < 0 ? "" : options[i].name;
    items.forEach((item, at) => item.setAttribute("aria-selected", String(at === i)));
    open(false);
    mark(-1);
  }
  function narrow() {
    const typed = input.value.trim().toLowerCase();
    items.forEach((item, i) => { item.hidden = !options[i].name.toLowerCase().includes(typed); });
    mark(visible()[0] ?? -1);
    open(true);
  }
  input.addEventListener("input", () => { chosen = ""; narrow(); });
  input.addEventListener("focus", () => { input.select(); items.forEach((item) => { item.hidden = false; }); open(true); });
  input.addEventListener("blur", () => choose(options.findIndex((each) => each.id === chosen)));
  input.addEventListener("keydown", (event) => {
    const shown = visible(), place = shown.indexOf(marked);
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      open(true);
      const by = event.key === "ArrowDown" ? 1 : -1;
      if (shown.length) mark(shown[place < 0 && by < 0 ? shown.length - 1 : (place + by + shown.length) % shown.length]);
    } else if (event.key === "Enter" && !list.hidden && marked >= 0) {
      event.preventDefault();
      choose(marked);
    } else if (event.key === "Escape") open(false);
  });
  open(false);
  return { element: make("div", { class: "mm-search" }, input, list), value: () => chosen };
}

/** @param {Field} field @param {boolean} isOpen all that is said about it is in sight @returns {{element: HTMLElement, value: () => string}} */
function fieldOf(field, isOpen = false) {
  const [first, ...rest] = field.about.split("\n"), about = make("div", { class: "mm-about" });
  if (isOpen) about.append(...paragraphs(field.about));
  else if (rest.length) about.append(make("details", {}, make("summary", {}, first), ...paragraphs(rest.join("\n"))));
  else if (first) about.append(make("p", {}, first));
  /** @type {{element: HTMLElement, value: () => string}} */ let control;
  if (field.options && field.options.length <= FEW) {
    const { options } = field;
    let chosen = "";
    const chips = oneOf({ label: first || field.label, options: options.map((each) => each.id), names: (id) => options.find((each) => each.id === id)?.name ?? "", chosen,
      choose: (id) => { chosen = chosen === id ? "" : id; chips.set(chosen); } });
    control = { element: chips.element, value: () => chosen };
  } else if (field.options) control = searchOf(field);
  else {
    const input = field.long ? make("textarea", { rows: 5, "aria-label": first || field.label }) : make("input", { type: "text", "aria-label": first || field.label });
    control = { element: input, value: () => input.value };
  }
  const label = make("span", { class: "mm-name" }, field.label);
  label.hidden = /^\d+$/.test(field.label); // a statement's number stands in its words
  return { element: make("div", { class: "mm-field" }, about, label, control.element), value: control.value };
}

export { fieldOf, paragraphs, searchOf };
