// Explorers: pictures that were drawn at many settings. They come in a script of their own (a page from a file share may
// load scripts, but nothing else), and only when a control is moved.
"use strict";

(() => {
  /**
   * @typedef {{label: string, kind: string, stops: string[], start: number}} Control
   * @typedef {{controls: Control[], plays: boolean, frames: Record<string, string>}} Recorded
   */
  /** @type {Record<string, (recorded: Promise<Recorded>) => void>} */
  const waiting = {};

  /** @param {string} packed JSON, gzip, base64: a tenth of the size @returns {Promise<Recorded>} */
  function unpacked(packed) {
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  }

  Object.assign(window, { minillm: { recorded: (/** @type {string} */ name, /** @type {string} */ packed) => waiting[name]?.(unpacked(packed)) } });

  /** @param {string} name @returns {Promise<Recorded>} */
  const load = (name) => new Promise((found, failed) => {
    waiting[name] = found;
    const script = document.createElement("script");
    script.src = `frames/${name}.js`;
    script.onerror = () => failed(new Error(`frames/${name}.js is not there`));
    document.head.append(script);
  });

  const FRAME_MS = 250;

  /** @param {HTMLElement} panel */
  function explore(panel) {
    const name = panel.dataset.frames ?? "";
    const controls = /** @type {Control[]} */ (JSON.parse(panel.dataset.controls ?? "[]"));
    const plays = panel.dataset.plays === "true";
    const at = controls.map((control) => control.start);
    panel.classList.add("explorer");
    const stage = document.createElement("div");
    stage.className = "stage";
    stage.append(...panel.childNodes);
    stage.querySelector("p > em")?.parentElement?.remove(); // the settings in words: the controls show them
    const strip = document.createElement("div");
    strip.className = "controls";
    panel.append(strip, stage);
    /** @type {Promise<Recorded> | null} */
    let loading = null;
    let turn = 0;
    /** One for each control: puts it there, and draws nothing. @type {((place: number) => void)[]} */
    const puts = [];

    /** @param {number} moved the control that was */
    async function draw(moved) {
      const mine = ++turn;
      loading ??= load(name);
      try {
        const recorded = await loading;
        if (mine !== turn) return;
        if (!(at.join(",") in recorded.frames)) { // many controls: one at a time was recorded, the others where they start
          controls.forEach((control, i) => { if (i !== moved) puts[i](control.start); });
        }
        stage.innerHTML = recorded.frames[at.join(",")] ?? stage.innerHTML;
      } catch (error) {
        stage.textContent = String(error);
      }
    }

    const moves = controls.map((control, i) => {
      const label = document.createElement("label");
      const reading = document.createElement("b");
      label.append(control.label, reading);
      const isRange = control.kind === "range";
      const input = isRange ? document.createElement("input") : document.createElement("select");
      if (input instanceof HTMLInputElement) {
        Object.assign(input, { type: "range", min: "0", max: String(control.stops.length - 1), step: "1" });
      } else {
        control.stops.forEach((stop, place) => input.add(new Option(stop, String(place))));
      }
      puts[i] = (place) => {
        at[i] = place;
        input.value = String(place);
        reading.textContent = isRange ? ` ${control.stops[place]}` : "";
        if (isRange) input.setAttribute("aria-valuetext", control.stops[place]);
      };
      puts[i](at[i]);
      const move = (/** @type {number} */ place) => {
        puts[i](place);
        void draw(i);
      };
      input.addEventListener("input", () => move(Number(input.value)));
      label.append(input);
      strip.append(label);
      return move;
    });

    if (plays) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "▶ Play";
      let timer = 0;
      const stop = () => { clearInterval(timer); timer = 0; button.textContent = "▶ Play"; };
      button.addEventListener("click", () => {
        if (timer) {
          stop();
          return;
        }
        button.textContent = "❚❚ Pause";
        const last = controls[0].stops.length - 1;
        if (at[0] === last) moves[0](0);
        timer = window.setInterval(() => (at[0] < last ? moves[0](at[0] + 1) : stop()), FRAME_MS);
      });
      strip.prepend(button);
    }
  }

  document.querySelectorAll("[data-frames]").forEach((panel) => explore(/** @type {HTMLElement} */ (panel)));
})();
