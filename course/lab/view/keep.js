// Restart the kernel, save, reload: by then JupyterLab has forgotten its widgets. What they showed last takes their place.

const WIDGET = "application/vnd.jupyter.widget-view+json", HTML = "text/html";
/** States of a kernel that no longer knows its widgets. */
const FORGETFUL = ["restarting", "autorestarting", "dead"];
const GO_ON = "<p><em>From an earlier session: this is how it looked. Run this cell to use it.</em></p>";

/** From now on, every notebook that's open keeps its last frames. Elsewhere than in JupyterLab nothing happens. */
function keepLastFrames() {
  /** @type {any} */ const app = /** @type {any} */ (globalThis).jupyterapp;
  for (const panel of app?.shell.widgets("main") ?? []) {
    if (!panel.content?.model?.cells || panel.node.dataset.mmKept) continue;
    panel.node.dataset.mmKept = "true";
    panel.sessionContext.statusChanged.connect((/** @type {unknown} */ _, /** @type {string} */ state) => {
      if (FORGETFUL.includes(state)) panel.content.widgets.forEach(freezeCell);
    });
  }
}

/** @param {any} cell */
function freezeCell(cell) {
  const outputs = cell.outputArea?.model;
  for (let i = 0; i < (outputs?.length ?? 0); i += 1) {
    const output = outputs.get(i).toJSON();
    if (!output.data?.[WIDGET] || output.data[HTML] === undefined) continue; // others' widgets have no HTML: they stay
    const node = cell.outputArea.widgets[i]?.node; // without anything in it, if the cell was never in sight
    const html = node?.querySelector(".mm-dash, .jupyter-widgets") ? frozen(node) : output.data[HTML];
    outputs.set(i, { ...output, data: { "text/plain": output.data["text/plain"], [HTML]: GO_ON + html } });
  }
}

/** What can be seen, as HTML that needs no script. @param {HTMLElement} node */
function frozen(node) {
  const copy = /** @type {HTMLElement} */ (node.cloneNode(true)), parts = "canvas, input, textarea, select, button";
  const now = copy.querySelectorAll(parts);
  node.querySelectorAll(parts).forEach((each, i) => {
    if (each instanceof HTMLCanvasElement) now[i].replaceWith(imageOf(each));
    else now[i].setAttribute("disabled", "");
    if (each instanceof HTMLInputElement) now[i].setAttribute(each.checked ? "checked" : "value", each.value);
  });
  for (const gone of copy.querySelectorAll(".mm-gone, .mm-spoken, .jp-OutputPrompt, [hidden]")) gone.remove();
  for (const greyed of copy.querySelectorAll(".jupyter-widgets-disconnected")) greyed.classList.remove("jupyter-widgets-disconnected");
  const look = copy.querySelector(".mm-dash") && [...document.querySelectorAll("style")].find((each) => each.textContent?.includes(".mm-dash {"));
  return `${look ? `<style>${look.textContent}</style>` : ""}${copy.innerHTML}`;
}

/** @param {HTMLCanvasElement} canvas */
function imageOf(canvas) {
  const image = document.createElement("img");
  image.src = canvas.toDataURL();
  image.alt = canvas.getAttribute("aria-label") ?? "";
  image.className = canvas.className;
  return image;
}

export { keepLastFrames };
