// The list of a page's sections: open where there's room beside the text, and the section being read is marked in it.
"use strict";

(() => {
  const contents = /** @type {HTMLDetailsElement | null} */ (document.querySelector(".contents details"));
  if (!contents) return;
  const links = /** @type {HTMLAnchorElement[]} */ ([...contents.querySelectorAll("a")]);
  const headings = links.map((link) => document.getElementById(decodeURI(link.hash.slice(1))) ?? document.getElementById(link.hash.slice(1)));
  const isBeside = matchMedia("(min-width: 1200px)"); // as in site.css

  function mark() {
    const isAtEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 2; // a short last section never gets to the top
    const past = isAtEnd ? links.length : headings.filter((heading) => heading && heading.getBoundingClientRect().top < innerHeight / 3).length;
    links.forEach((link, i) => {
      if (i === past - 1) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    });
  }

  const place = () => { contents.open = isBeside.matches; };
  isBeside.addEventListener("change", place);
  contents.addEventListener("click", (event) => { if (event.target instanceof HTMLAnchorElement) place(); });
  addEventListener("scroll", mark, { passive: true });
  place();
  mark();
})();
