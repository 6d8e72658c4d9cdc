import { nameControls, pressOnEnter, spokenLine } from "./view/accessible.js";
import { keepLastFrames } from "./view/keep.js";

// Shows `value`, and says it when it changes; names the controls around it, groups radio buttons, and keeps JupyterLab's
// arrow keys off them.
function render({ model, el }) {
  const page = document.createElement("div");
  page.className = "mm-shown";
  const gone = document.createElement("div");
  gone.className = "mm-gone"; // shown where no kernel answers (live_view.css)
  gone.textContent = "From an earlier session: run this cell to use it.";
  el.classList.add("mm-live");
  const spoken = spokenLine(page);
  el.append(gone, page, spoken.line);
  let waiting = setTimeout(group, 500);

  // ipywidgets' radio buttons are no group: the arrow keys would not go from one to the next.
  function group() {
    if (!el.isConnected) return void (waiting = setTimeout(group, 500));
    const output = el.closest(".jp-OutputArea") ?? document.body;
    nameControls(output);
    if (output.querySelector(".mm-gone") !== gone) gone.remove(); // said once, above the first
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

  // A bet that's locked switches off the button that had the focus: it goes on to what is said now.
  let last = null;
  function note({ target }) { if (el.parentElement?.contains(target)) last = target; }
  function takeFocus() {
    const { activeElement } = document;
    if (!last?.disabled || (activeElement !== last && activeElement !== document.body)) return;
    last = null;
    page.tabIndex = -1;
    page.focus({ preventScroll: true });
  }

  function show() { page.innerHTML = model.get("value"); }
  window.addEventListener("keydown", keep, true); // before JupyterLab, which listens on the document
  window.addEventListener("keydown", pressOnEnter, true);
  window.addEventListener("focusin", note);
  function change() {
    show();
    takeFocus();
    spoken.say();
  }
  model.on("change:value", change);
  show();
  keepLastFrames();
  return () => {
    clearTimeout(waiting);
    spoken.stop();
    window.removeEventListener("keydown", keep, true);
    window.removeEventListener("keydown", pressOnEnter, true);
    window.removeEventListener("focusin", note);
    model.off("change:value", change);
  };
}

export default { render };
