// Draws `value`, lets marked elements grow until the next frame, and answers the mouse.
const LONGEST_S = 4; // a frame that old no longer grows: the kernel may be gone

const attribute = (element, name) => Number(element.getAttribute(name)) || 0;

function render({ model, el }) {
  const page = document.createElement("div");
  const tip = document.createElement("div");
  tip.setAttribute("role", "status");
  tip.style.cssText =
    "position:absolute;z-index:99;pointer-events:none;display:none;max-width:420px;padding:4px 8px;font-size:12px;" +
    "border:1px solid var(--jp-border-color1,#888);border-radius:4px;white-space:pre-line;" +
    "background:var(--jp-layout-color1,#fff);color:var(--jp-ui-font-color1,#222)";
  const gone = document.createElement("div");
  gone.className = "mm-gone"; // shown where no kernel answers (live_view.css)
  gone.textContent = "From an earlier session: run this cell to use it.";
  el.classList.add("mm-live");
  el.style.position = "relative";
  el.append(gone, page, tip);
  let moving = [], shownAt = 0, mouse = null, timer = 0, waiting = setTimeout(explain, 500);
  model.live = { drawn: 0 }; // for the benchmark: pictures drawn in the browser

  // ipywidgets puts no tooltip on most controls: those in the strip above get theirs here, in order.
  // And ipywidgets' radio buttons are no group: the arrow keys would not go from one to the next.
  function explain() {
    if (!el.isConnected) return void (waiting = setTimeout(explain, 500));
    const around = el.closest(".jp-OutputArea, .widget-vbox, body");
    for (const box of around.querySelectorAll(".widget-radio-box")) {
      const group = String(Math.random());
      for (const each of box.querySelectorAll("input")) each.name = group;
    }
    const strip = around.querySelectorAll(".mm-strip > *");
    model.get("tips").forEach((words, i) => {
      if (strip[i]) for (const part of [strip[i], ...strip[i].querySelectorAll("*")]) part.title = words;
    });
  }

  // On a control, the arrow keys are its own: JupyterLab would go to the next cell.
  function keep({ key, target }) {
    if (!target.matches?.(".widget-radio-box input, .noUi-handle, select")) return;
    target.toggleAttribute("data-lm-suppress-shortcuts", key.startsWith("Arrow"));
  }

  function show() {
    page.innerHTML = model.get("value");
    shownAt = performance.now();
    moving = [...page.querySelectorAll("[data-grow],[data-move]")].map((element) => ({
      element,
      x: attribute(element, "x"),
      width: attribute(element, "width"),
      grow: attribute(element, "data-grow"),
      move: attribute(element, "data-move"),
      most: element.tagName === "text" // a label stays inside its picture
        ? element.ownerSVGElement.viewBox.baseVal.width - element.getComputedTextLength()
        : Infinity,
    }));
    if (moving.length && !timer) timer = requestAnimationFrame(tick);
    if (mouse) point(mouse);
  }

  function tick() {
    const age = Math.min((performance.now() - shownAt) / 1000, LONGEST_S);
    for (const each of moving) {
      if (each.grow) each.element.setAttribute("width", Math.max(each.width + each.grow * age, 0));
      if (each.move && each.element.tagName === "line") {
        each.element.setAttribute("transform", `translate(${each.move * age} 0)`);
      } else if (each.move) each.element.setAttribute("x", Math.min(each.x + each.move * age, each.most));
    }
    model.live.drawn += 1;
    timer = moving.length && page.isConnected ? requestAnimationFrame(tick) : 0;
  }

  // One cursor over every picture with a time axis; the request under the mouse stands out in all of them.
  function point(event) {
    page.querySelectorAll(".mm-cursor").forEach((old) => old.remove());
    const target = document.elementFromPoint(event.clientX, event.clientY);
    const request = target?.closest?.("[data-request]")?.getAttribute("data-request") ?? null;
    page.querySelectorAll("[data-request]").forEach((each) => {
      each.style.opacity = request === null || each.getAttribute("data-request") === request ? "" : "0.3";
    });
    const words = [request && page.querySelector(`[data-request="${request}"][data-tip]`)?.getAttribute("data-tip")];
    const axis = target?.closest?.("svg")?.querySelector("[data-axis]");
    if (axis) {
      const [start, end, low, high] = axis.getAttribute("data-axis").split(",").map(Number);
      const x = (event.clientX - axis.getScreenCTM().e) / axis.getScreenCTM().a;
      const time = low + ((x - start) / (end - start)) * (high - low);
      if (x >= start && x <= end) words.push(at(time));
    }
    tip.textContent = words.filter(Boolean).join("\n");
    tip.style.display = tip.textContent ? "block" : "none";
    const box = el.getBoundingClientRect();
    tip.style.left = `${Math.max(Math.min(event.clientX - box.left + 14, box.width - 320), 0)}px`;
    tip.style.top = `${event.clientY - box.top + 16}px`;
  }

  function at(time) {
    for (const axis of page.querySelectorAll("[data-axis]")) {
      const [start, end, low, high, top, bottom] = axis.getAttribute("data-axis").split(",").map(Number);
      const x = start + ((time - low) / (high - low)) * (end - start);
      const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
      for (const [name, value] of Object.entries({ x1: x, x2: x, y1: top, y2: bottom, stroke: "currentColor" })) {
        cursor.setAttribute(name, value);
      }
      cursor.setAttribute("class", "mm-cursor");
      axis.append(cursor);
    }
    const steps = page.querySelector("[data-steps]")?.getAttribute("data-steps") ?? "";
    const step = steps.split(";").map((each) => each.split(",").map(Number))
      .findIndex(([start, duration]) => start <= time && time < start + duration / 1000);
    if (step < 0) return `${time.toFixed(2)} s: no step runs`;
    const [, duration, prefill, decode, running, waiting] = steps.split(";")[step].split(",").map(Number);
    return `${time.toFixed(2)} s, step ${step}: ${prefill} prefill + ${decode} decode tokens in ${duration} ms; ` +
      `${running} running, ${waiting} waiting`;
  }

  function move(event) { mouse = event; point(event); }
  function leave() {
    mouse = null;
    tip.style.display = "none";
    page.querySelectorAll(".mm-cursor").forEach((old) => old.remove());
    page.querySelectorAll("[data-request]").forEach((each) => (each.style.opacity = ""));
  }
  page.addEventListener("mousemove", move);
  page.addEventListener("mouseleave", leave);
  window.addEventListener("keydown", keep, true); // before JupyterLab, which listens on the document
  model.on("change:value", show);
  show();
  return () => {
    clearTimeout(waiting);
    cancelAnimationFrame(timer);
    window.removeEventListener("keydown", keep, true);
    model.off("change:value", show);
  };
}

export default { render };
