// What is wider than its place scrolls, and can be reached and scrolled with the keyboard, too: only while it is wider.
"use strict";

(() => {
  const WIDE = "table, pre, .stage, .output, .outcome, .math";

  function reach() {
    for (const each of document.querySelectorAll(WIDE)) {
      if (each.scrollWidth > each.clientWidth + 1) each.setAttribute("tabindex", "0");
      else each.removeAttribute("tabindex");
    }
  }

  const main = /** @type {HTMLElement} */ (document.getElementById("main"));
  new ResizeObserver(reach).observe(main); // it grows with whatever is opened in it
  new MutationObserver(reach).observe(main, { childList: true, subtree: true });
})();
