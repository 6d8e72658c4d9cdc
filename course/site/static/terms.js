// What a glossary term means, beside its link: while the mouse is on it, while it has the focus, or after a tap.
"use strict";

(() => {
  const LEAVES_MS = 200; // time to move the mouse from the term to what it means
  const bubble = document.createElement("div");
  bubble.id = "meaning";
  bubble.setAttribute("role", "tooltip");
  bubble.hidden = true;
  /** The term that is explained. @type {HTMLAnchorElement | null} */
  let term = null;
  let leaving = 0, isTapped = false;

  /** @param {HTMLAnchorElement} link */
  function show(link) {
    clearTimeout(leaving);
    if (term === link) return;
    hide();
    term = link;
    bubble.textContent = link.dataset.means ?? "";
    bubble.hidden = false;
    link.setAttribute("aria-describedby", bubble.id);
    const at = link.getClientRects()[0], room = document.documentElement.clientWidth - bubble.offsetWidth;
    const isAbove = at.bottom + bubble.offsetHeight > innerHeight;
    bubble.style.left = `${scrollX + Math.max(8, Math.min(at.left, room - 8))}px`;
    bubble.style.top = `${scrollY + (isAbove ? at.top - bubble.offsetHeight : at.bottom)}px`;
  }

  function hide() {
    clearTimeout(leaving);
    term?.removeAttribute("aria-describedby");
    term = null;
    bubble.hidden = true;
  }

  const leave = () => { leaving = setTimeout(hide, LEAVES_MS); };

  document.querySelectorAll("a[data-means]").forEach((each) => {
    const link = /** @type {HTMLAnchorElement} */ (each);
    link.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse") show(link); });
    link.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") leave(); });
    link.addEventListener("pointerdown", (event) => { isTapped = event.pointerType === "touch"; });
    link.addEventListener("focus", () => { if (!isTapped) show(link); });
    link.addEventListener("blur", hide);
    link.addEventListener("click", (event) => {
      if (!isTapped || term === link) return; // a second tap follows the link
      event.preventDefault();
      show(link);
    });
  });
  bubble.addEventListener("pointerenter", () => clearTimeout(leaving));
  bubble.addEventListener("pointerleave", leave);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  document.addEventListener("pointerdown", (event) => { if (term && event.target !== term && event.target !== bubble) hide(); });
  document.getElementById("main")?.append(bubble);
})();
