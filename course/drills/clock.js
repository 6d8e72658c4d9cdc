// NAME and TOTAL are put in by clock.py.
(() => {
  const name = "NAME", total = TOTAL, clocks = (window.minillmClocks ??= {});
  const state = (clocks[name] ??= {started: null, stopped: null});
  const hit = (event, what) => event.target.closest?.(`.${name}-${what}`);
  if (!state.listening) {
    state.listening = true;
    document.addEventListener("click", event => {
      if (hit(event, "start")) state.started ??= Date.now();
      if (hit(event, "stop") && state.started) state.stopped ??= Date.now();
      draw();
    }, true);
  }
  function draw() {
    const passed = state.started ? ((state.stopped ?? Date.now()) - state.started) / 1000 : 0;
    const left = Math.ceil(total - passed), over = left < 0;
    const shown = Math.abs(over ? Math.floor(passed - total) : left);
    const face = `${Math.floor(shown / 60)}:${String(shown % 60).padStart(2, "0")}`;
    for (const place of document.querySelectorAll(`.${name}-clock`)) {
      place.dataset.passed = passed.toFixed(2);
      place.querySelector("b").textContent = face;
      place.querySelector("span").textContent = state.stopped ? (over ? "over time, handed in" : "left, handed in")
        : over ? "over time" : state.started ? "left" : "on the clock";
      const bar = place.querySelector("i");
      bar.style.width = `${Math.max(0, Math.min(1, left / total)) * 100}%`;
      bar.style.background = left < 60 ? "#D55E00" : "currentColor";
    }
  }
  clearInterval(state.timer);
  state.timer = setInterval(draw, 200);
  draw();
})();
