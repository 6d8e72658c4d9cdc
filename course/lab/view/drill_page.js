// A drill on a page: Python in the tab judges. Which numbers are drawn stands in the address.
import { mountDrill } from "./drill.js";
import { make, say } from "./elements.js";
import { TabPython } from "./port.js";

/** @param {HTMLElement} el with the drill's id in data-drill, and the worker's script in data-python */
async function mountDrillPage(el) {
  const told = make("p", { role: "status" });
  el.replaceChildren(told);
  if (location.protocol === "file:") {
    say(told, "A page opened from disk can't start Python. Run `make site`: it serves the site, and drills can be taken there.");
    return;
  }
  const seed = Math.abs(Math.trunc(Number(new URLSearchParams(location.search).get("seed")))) || 0;
  const python = new TabPython(new URL(el.dataset.python ?? "", document.baseURI), (stage) =>
    say(told, stage ? `Python is starting in this tab: ${stage} …` : "Drawing the numbers …"));
  try {
    const number = await python.ask("drill.open", { drill: el.dataset.drill, seed });
    const port = { ask: (/** @type {unknown} */ action) => python.ask("drill.act", { action }, number) };
    const start = await port.ask({ do: "look" });
    el.replaceChildren();
    mountDrill(el, port, start);
    el.dataset.isLive = "yes";
  } catch (error) {
    say(told, `This drill can't be taken here: ${error instanceof Error ? error.message : error}`);
  }
}

export { mountDrillPage };
