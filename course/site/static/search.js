// The search box of every page: words of titles, headings and text. What it looks through (search.py) is loaded when it's first used.
"use strict";

(() => {
  /**
   * @typedef {{anchor: string, title: string, text: string}} Section
   * @typedef {{page: string, title: string, explains: boolean, sections: Section[]}} Page
   * @typedef {Section & {heading: string[], words: string[]}} ReadSection
   * @typedef {{page: string, title: string, explains: boolean, words: string[], sections: ReadSection[]}} ReadPage
   * @typedef {{page: ReadPage, hits: {section: ReadSection, score: number}[]}} Group
   */
  const WORD = /[\p{L}\p{N}_]+/gu;
  const PAGES = 8, SECTIONS = 3; // at most so many are shown, and of each page
  const IN_HEADING = 10, IN_TITLE = 4, EXPLAINS = 40; // points: for a word in a heading, in a title, and for a term that begins so
  const BEFORE = 40, EXCERPT = 130; // characters

  /** Words in small letters, without the s of a plural. @param {string} text @returns {string[]} */
  const words = (text) => (text.toLowerCase().match(WORD) ?? []).map((word) => (word.length > 3 ? word.replace(/s$/, "") : word));

  /** With the words of everything taken apart, once. @param {Page[]} pages @returns {ReadPage[]} */
  const read = (pages) => pages.map((page) => ({
    ...page,
    words: words(page.title),
    sections: page.sections.map((section) => ({ ...section, heading: words(section.title), words: [...new Set(words(section.text))] })),
  }));

  /** 2 for the word itself, 1 for its beginning, 0 for neither. @param {string[]} among @param {string} typed */
  const match = (among, typed) => (among.includes(typed) ? 2 : Number(among.some((word) => word.startsWith(typed))));

  /** The sections that have all words typed, by page; best first. @param {ReadPage[]} pages @param {string} query @returns {Group[]} */
  function ranked(pages, query) {
    const typed = words(query);
    if (!typed.length) return [];
    const groups = pages.map((page) => {
      const scored = page.sections.map((section) => ({ section, score: score(page, section, typed) }));
      return { page, hits: scored.filter((hit) => hit.score > 0).sort((a, b) => b.score - a.score).slice(0, SECTIONS) };
    });
    return groups.filter((group) => group.hits.length).sort((a, b) => b.hits[0].score - a.hits[0].score).slice(0, PAGES);
  }

  /** @param {ReadPage} page @param {ReadSection} section @param {string[]} typed @returns {number} 0 where a word is missing */
  function score(page, section, typed) {
    const points = typed.map((word) => IN_HEADING * match(section.heading, word) + IN_TITLE * match(page.words, word) + match(section.words, word));
    if (points.includes(0)) return 0;
    const isTerm = page.explains && section.heading.join(" ").startsWith(typed.join(" "));
    return points.reduce((sum, each) => sum + each, isTerm ? EXPLAINS : 0);
  }

  /** The text around the first word found, which is marked. @param {string} text @param {string} query @returns {Node[]} */
  function excerpt(text, query) {
    const typed = words(query);
    const found = [...text.matchAll(WORD)].find((each) => typed.some((word) => each[0].toLowerCase().startsWith(word)));
    const at = found?.index ?? 0, start = at > BEFORE ? text.lastIndexOf(" ", at - BEFORE) + 1 : 0;
    const lead = (start ? "… " : "") + text.slice(start, at), mark = document.createElement("mark");
    mark.textContent = found?.[0] ?? "";
    const rest = text.slice(at + mark.textContent.length), room = start + EXCERPT - at;
    return [new Text(lead), mark, new Text(rest.length > room ? `${rest.slice(0, rest.lastIndexOf(" ", room))} …` : rest)];
  }

  /** Called by the script that is loaded. @type {(pages: Page[]) => void} */
  let loaded = () => {};
  Object.assign(window, { minillmSearch: { read, ranked, loaded: (/** @type {Page[]} */ pages) => loaded(pages) } });

  /** @returns {Promise<ReadPage[]>} */
  const load = () => new Promise((found, failed) => {
    loaded = (pages) => found(read(pages));
    const script = document.createElement("script");
    script.src = "static/search_index.js";
    script.onerror = () => failed(new Error("The search couldn't be loaded."));
    document.head.append(script);
  });

  /** @param {HTMLElement} box */
  function mount(box) {
    const [input, list, told] = /** @type {[HTMLInputElement, HTMLElement, HTMLElement]} */ (
      ["input", "[role=listbox]", "[role=status]"].map((each) => box.querySelector(each))
    );
    /** @type {Promise<ReadPage[]> | null} */
    let pages = null;
    let active = -1, turn = 0;
    const options = () => /** @type {HTMLAnchorElement[]} */ ([...list.querySelectorAll("[role=option]")]);

    /** @param {number} place of the option that Enter opens; -1 for none */
    function activate(place) {
      active = place;
      options().forEach((option, i) => option.setAttribute("aria-selected", String(i === place)));
      const chosen = options()[place];
      if (chosen) input.setAttribute("aria-activedescendant", chosen.id);
      else input.removeAttribute("aria-activedescendant");
      chosen?.scrollIntoView({ block: "nearest" });
    }

    /** @param {boolean} isOpen */
    function show(isOpen) {
      list.hidden = !isOpen || !list.childElementCount;
      input.setAttribute("aria-expanded", String(!list.hidden));
      if (list.hidden) activate(-1);
    }

    /** @param {Group[]} groups */
    function draw(groups) {
      let place = 0;
      list.replaceChildren(...groups.map(({ page, hits }) => {
        const group = document.createElement("div"), name = document.createElement("b");
        name.textContent = page.title;
        name.setAttribute("role", "presentation");
        group.setAttribute("role", "group");
        group.setAttribute("aria-label", page.title);
        group.append(name, ...hits.map(({ section }) => {
          const option = document.createElement("a"), line = document.createElement("small");
          option.href = section.anchor ? `${page.page}#${section.anchor}` : page.page;
          option.id = `found-${place++}`;
          option.tabIndex = -1;
          option.setAttribute("role", "option");
          option.textContent = section.anchor ? section.title : "Top of the page";
          line.append(...excerpt(section.text, input.value));
          option.append(line);
          return option;
        }));
        return group;
      }));
      if (list.scrollTop) list.scrollTop = 0;
    }

    async function search() {
      const mine = ++turn;
      try {
        const groups = ranked(await (pages ??= load()), input.value);
        if (mine !== turn) return;
        draw(groups);
        const found = options().length;
        told.textContent = input.value.trim() ? (found ? `${found} found` : "Nothing found") : "";
        told.classList.toggle("hidden", found > 0); // the list says so to who can see it
      } catch (error) {
        pages = null; // the next letter tries again
        told.textContent = error instanceof Error ? error.message : String(error);
        told.classList.remove("hidden");
      }
      activate(-1);
      show(true);
    }

    input.addEventListener("focus", () => { (pages ??= load()).catch(() => { pages = null; }); show(true); });
    input.addEventListener("input", search);
    box.addEventListener("focusout", (event) => { if (!box.contains(/** @type {Node | null} */ (event.relatedTarget))) show(false); });
    list.addEventListener("mousedown", (event) => event.preventDefault()); // the box keeps the focus, and a click reaches its link
    list.addEventListener("click", () => show(false));
    input.addEventListener("keydown", (event) => {
      const all = options();
      if (event.key === "Escape") {
        if (!list.hidden) event.preventDefault(); // a second one empties the box: browsers do that
        show(false);
      } else if (event.key === "Enter") {
        event.preventDefault();
        all[Math.max(active, 0)]?.click();
      } else if (all.length && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
        event.preventDefault();
        show(true);
        const step = event.key === "ArrowDown" ? 1 : -1;
        activate(active < 0 && step < 0 ? all.length - 1 : (active + step + all.length) % all.length);
      }
    });
    document.addEventListener("keydown", (event) => {
      const at = /** @type {HTMLElement} */ (event.target);
      const isTyped = at.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(at.tagName);
      if (event.key !== "/" || isTyped || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      input.select();
      input.focus();
    });
    box.hidden = false;
  }

  document.querySelectorAll(".search").forEach((box) => mount(/** @type {HTMLElement} */ (box)));
})();
