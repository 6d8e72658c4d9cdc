import { keepLastFrames } from "./view/keep.js";

// Shows `value`; groups the radio buttons around it, and keeps JupyterLab's arrow keys off them.
function render({ model, el }) {
  const page = document.createElement("div");
  const gone = document.createElement("div");
  gone.className = "mm-gone"; // shown where no kernel answers (live_view.css)
  gone.textContent = "From an earlier session: run this cell to use it.";
  el.classList.add("mm-live");
  el.append(gone, page);
  let waiting = setTimeout(group, 500);

  // ipywidgets' radio buttons are no group: the arrow keys would not go from one to the next.
  function group() {
    if (!el.isConnected) return void (waiting = setTimeout(group, 500));
    for (const box of el.closest(".jp-OutputArea, .widget-vbox, body").querySelectorAll(".widget-radio-box")) {
      const name = String(Math.random());
      for (const each of box.querySelectorAll("input")) each.name = name;
    }
  }

  // On a control, the arrow keys are its own: JupyterLab would go to the next cell.
  function keep({ key, target }) {
    if (!target.matches?.(".widget-radio-box input, .noUi-handle, select")) return;
    target.toggleAttribute("data-lm-suppress-shortcuts", key.startsWith("Arrow"));
  }

  function show() { page.innerHTML = model.get("value"); }
  window.addEventListener("keydown", keep, true); // before JupyterLab, which listens on the document
  model.on("change:value", show);
  show();
  keepLastFrames();
  return () => {
    clearTimeout(waiting);
    window.removeEventListener("keydown", keep, true);
    model.off("change:value", show);
  };
}

export default { render };
