"""A clock that runs in the browser. It reads the wall clock at each tick, so late ticks cannot make it wrong."""

SCRIPT = """
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
      bar.style.background = over ? "#D55E00" : left < 60 ? "#E69F00" : "#0072B2";
    }
  }
  clearInterval(state.timer);
  state.timer = setInterval(draw, 200);
  draw();
})();
"""


def clock_html(name: str, total_s: float) -> str:
    """The clock's HTML, with its script.

    Args:
        name: a press on an element of class NAME-start starts it, one on NAME-stop stops it. Shown again under the
            same name, it goes on.
        total_s: seconds to count down; then it counts what is over.
    """
    script = SCRIPT.replace("NAME", name).replace("TOTAL", f"{total_s:g}")
    return (
        f'<div class="{name}-clock" role="timer" aria-label="time left" style="max-width:900px">'
        f'<b style="font-size:28px;font-variant-numeric:tabular-nums">{written(total_s)}</b> <span>on the clock</span>'
        '<div style="height:6px;border-radius:3px;background:var(--jp-border-color2,#d0d7de)">'
        '<i style="display:block;height:6px;border-radius:3px;width:100%;background:#0072B2"></i></div></div>'
        f"<script>{script}</script>"
    )


def written(seconds: float) -> str:
    """Minutes and seconds, as 12:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
