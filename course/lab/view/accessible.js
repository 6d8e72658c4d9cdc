// What ipywidgets leaves unsaid to a screen reader: the names of sliders and groups, the words at a slider's stop, and
// which of several buttons is pressed.

const LONGEST_NAME = 200;
const SAID_AFTER_MS = 700; // a slider that moves on says nothing in between
const CONTROLS = "input, select, textarea, button, [role=slider]";
const TOLD = ".widget-html, .mm-live > .mm-shown";
const LABELLED = ".widget-slider, .widget-radio, .widget-toggle-buttons, .widget-dropdown, .widget-text, .widget-textarea";

/** Name the controls in a cell's output, now and whenever it changes.
 * @param {Element} box
 */
function nameControls(box) {
  const known = /** @type {Element & {isNamed?: boolean}} */ (box);
  if (known.isNamed) return;
  known.isNamed = true;
  let waiting = 0;
  const later = () => { waiting ||= requestAnimationFrame(() => { waiting = 0; nameAll(box); }); };
  const seen = { subtree: true, childList: true, characterData: true, attributes: true };
  new MutationObserver(later).observe(box, { ...seen, attributeFilter: ["class", "aria-valuetext"] });
  nameAll(box);
}

/** @param {Element} box */
function nameAll(box) {
  for (const widget of box.querySelectorAll(LABELLED)) {
    const name = nameOf(widget, box);
    const handle = widget.querySelector("[role=slider]"), group = widget.querySelector(".widget-radio-box");
    const buttons = widget.matches(".widget-toggle-buttons");
    if (group) putAttribute(group, "role", "radiogroup");
    if (buttons) putAttribute(widget, "role", "group");
    const named = handle ?? group ?? (buttons ? widget : widget.querySelector(CONTROLS));
    if (named && name) putAttribute(named, "aria-label", name);
    const readout = widget.querySelector(".widget-readout"); // the number can be typed over
    if (handle && readout) {
      putAttribute(handle, "aria-valuetext", readout.textContent ?? "");
      putAttribute(readout, "role", "textbox");
      putAttribute(readout, "aria-label", `${name}, to type over`);
    }
  }
  for (const button of box.querySelectorAll(".widget-toggle-button")) {
    putAttribute(button, "aria-pressed", String(button.classList.contains("mod-active")));
  }
  for (const view of box.querySelectorAll(".mm-live")) { // a wide picture is scrolled from the keyboard, too
    if (view.scrollWidth > view.clientWidth) putAttribute(view, "tabindex", "0");
    else view.removeAttribute("tabindex");
  }
}

/** A control's label or tooltip, after the question that stands above it or beside it, if one does.
 * @param {Element} widget @param {Element} box
 */
function nameOf(widget, box) {
  const label = widget.querySelector(":scope > .widget-label")?.textContent?.trim()
    || widget.querySelector("select, input")?.getAttribute("title") || "";
  let question = "";
  for (let at = widget; at !== box && at.parentElement && !question; at = at.parentElement) {
    const above = at.previousElementSibling;
    if (above?.querySelector(CONTROLS) || above?.matches(CONTROLS)) break; // another control's own
    const told = above?.matches(TOLD) ? above : above?.querySelector(TOLD);
    if (told) question = plainWords(told);
  }
  return [question, label].filter(Boolean).join(", ");
}

/** What an element says in a line.
 * @param {Element} element
 */
function plainWords(element) {
  const drawn = element.querySelector("svg[aria-label]")?.getAttribute("aria-label");
  const words = (drawn ?? /** @type {HTMLElement} */ (element).innerText).split(/\s*[\n\t]\s*/).filter(Boolean).join(", ");
  return words.length <= LONGEST_NAME ? words : `${words.slice(0, words.lastIndexOf(" ", LONGEST_NAME))} …`;
}

/** Enter in a text field presses the button beside it, once the kernel has been sent what was typed. ipywidgets' own
 * message about Enter overtakes it.
 * @param {KeyboardEvent} event
 */
function pressOnEnter(event) {
  const field = /** @type {Element} */ (event.target);
  if (event.key !== "Enter" || event.isComposing || event.defaultPrevented || !field.matches?.(".mm-enter input[type=text]")) return;
  if (!(/** @type {HTMLInputElement} */ (field).value.trim())) return;
  event.preventDefault(); // and no second view of this cell presses it again
  field.dispatchEvent(new Event("change", { bubbles: true }));
  /** @type {HTMLElement | null | undefined} */ (field.closest(".mm-enter")?.querySelector("button.jupyter-button:not(.widget-toggle-button)"))?.click();
}

/** Only where it's another one: an observer would be called for nothing, again and again.
 * @param {Element} element @param {string} name @param {string} value
 */
function putAttribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** A line that a screen reader says whenever what is shown has changed. Returns the line, and what says it.
 * @param {HTMLElement} page
 */
function spokenLine(page) {
  const line = document.createElement("div");
  line.className = "mm-spoken";
  line.setAttribute("role", "status");
  let waiting = 0;
  const stop = () => clearTimeout(waiting);
  const say = () => {
    stop();
    waiting = setTimeout(() => { line.textContent = plainWords(page); }, SAID_AFTER_MS);
  };
  return { line, say, stop };
}

export { nameControls, pressOnEnter, spokenLine };
