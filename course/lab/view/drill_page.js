// A drill on a page: Python in the tab judges. Which numbers are drawn stands in the address.
import { mountDrill } from "./drill.js";
import { openedOnPage } from "./opened.js";

/** @param {HTMLElement} el with the drill's id in data-drill, and the worker's script in data-python */
async function mountDrillPage(el) {
  const seed = Math.abs(Math.trunc(Number(new URLSearchParams(location.search).get("seed")))) || 0;
  const opened = await openedOnPage(el, "drill", { drill: el.dataset.drill, seed }, "Drawing the numbers …", true);
  if (opened) mountDrill(el, opened.port, opened.start);
}

export { mountDrillPage };
