// Small pieces of a page.

/**
 * An element with attributes, listeners (`onclick`), and children.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} name @param {Record<string, unknown>} [given] @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
function make(name, given = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (typeof value === "function") element.addEventListener(key.slice(2), /** @type {EventListener} */ (value));
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, String(value));
  }
  element.append(...children);
  return element;
}

/** Sets text only where it differs: at 60 frames a second most of it doesn't. @param {Element} element @param {string} words */
function say(element, words) {
  if (element.textContent !== words) element.textContent = words;
}

/**
 * One of few, as buttons side by side. Arrow keys go from one to the next.
 * @template T
 * @param {{label: string, options: T[], names: (option: T) => string, chosen: T, help?: (option: T) => string, choose: (option: T) => void}} given
 * @returns {{element: HTMLElement, set: (chosen: T) => void, hold: (held: boolean) => void}}
 */
function oneOf({ label, options, names, chosen, choose, help = () => "" }) {
  const buttons = options.map((option, i) => make("button", {
    type: "button", role: "radio", title: help(option), onclick: () => { set(option); choose(option); },
    onkeydown: (/** @type {KeyboardEvent} */ event) => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!by) return;
      event.preventDefault();
      const next = buttons[(i + by + buttons.length) % buttons.length];
      next.focus();
      next.click();
    },
  }, names(option)));
  /** @param {T} now */
  function set(now) {
    options.forEach((option, i) => {
      buttons[i].setAttribute("aria-checked", String(option === now));
      buttons[i].tabIndex = option === now ? 0 : -1;
    });
    if (!options.includes(now) && buttons.length) buttons[0].tabIndex = 0;
  }
  set(chosen);
  const element = make("div", { class: "mm-oneof", role: "radiogroup", "aria-label": label }, ...buttons);
  return { element, set, hold: (held) => buttons.forEach((button) => { button.disabled = held; }) };
}

/** What was thrown, as a sentence. @param {unknown} problem */
function trouble(problem) {
  const words = problem instanceof Error ? problem.message : String(problem);
  return `${words.charAt(0).toUpperCase()}${words.slice(1)}`;
}

/** JupyterLab's keys (a: a new cell; Enter: edit) stay away from what is typed here. @param {HTMLElement} root */
function keepKeys(root) {
  root.setAttribute("data-lm-suppress-shortcuts", "true");
  root.addEventListener("keydown", (event) => {
    const isTheirs = event.key === "Tab" || event.ctrlKey || event.metaKey || event.altKey || (event.shiftKey && event.key === "Enter");
    if (!isTheirs) event.stopPropagation();
  });
}

export { keepKeys, make, oneOf, say, trouble };
