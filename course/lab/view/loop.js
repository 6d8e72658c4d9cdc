// When to draw: frame after frame while something moves, and once when size or theme change, or paper takes the screen's place.

/** Longer than this between two frames, and nobody was looking. */
const LONGEST_FRAME_S = 0.1;

/**
 * @param {HTMLElement} root
 * @param {{frame: (passed: number, at: number) => boolean, restyle: () => void}} given frame: draws, after so many seconds, at so many ms of
 *   the page, and says whether it moves on; restyle: the theme has changed
 * @returns {{wake: () => void, stop: () => void}}
 */
function drawingLoop(root, { frame, restyle }) {
  let timer = 0, last = 0;

  function wake() {
    if (timer) return;
    last = performance.now();
    timer = requestAnimationFrame(next);
  }

  /** @param {number} at ms */
  function next(at) {
    timer = 0;
    if (!root.isConnected) return;
    const passed = Math.max(Math.min((at - last) / 1000, LONGEST_FRAME_S), 0);
    last = at;
    if (frame(passed, at)) timer = requestAnimationFrame(next);
  }

  function restyled() {
    restyle();
    wake();
  }

  function onPaper() {
    restyle();
    frame(0, last); // no frame comes before it's printed
  }

  const paper = matchMedia("print");
  const theme = new MutationObserver(restyled), dark = matchMedia("(prefers-color-scheme: dark)"), size = new ResizeObserver(wake);
  theme.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class"] });
  dark.addEventListener("change", restyled);
  paper.addEventListener("change", onPaper);
  size.observe(root);
  return {
    wake,
    stop() {
      cancelAnimationFrame(timer);
      theme.disconnect();
      size.disconnect();
      dark.removeEventListener("change", restyled);
      paper.removeEventListener("change", onPaper);
    },
  };
}

export { drawingLoop };
