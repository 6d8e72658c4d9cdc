// Runs the code cells below this one, up to the first whose source matches `until`, when Python asks for it.
// JupyterLab gives pages its commands only where it's told to (binder/jupyter_server_config.json); elsewhere the reader
// runs the next cell.
const MOST_CELLS = 4; // further down it isn't this bet's any more

async function runBelow(el, until) {
  const app = globalThis.jupyterapp;
  const notebook = app?.shell?.currentWidget?.content;
  const here = notebook?.widgets?.findIndex((cell) => cell.node.contains(el)) ?? -1;
  if (here < 0) return;
  const ends = new RegExp(until);
  const below = notebook.widgets.map((cell, index) => [cell.model, index])
    .filter(([model, index]) => index > here && model.type === "code").slice(0, MOST_CELLS);
  const last = below.findIndex(([model]) => ends.test(model.sharedModel.getSource()));
  for (const [, index] of below.slice(0, last + 1)) {
    notebook.activeCellIndex = index;
    await app.commands.execute("notebook:run-cell");
  }
}

function render({ model, el }) {
  const asked = () => runBelow(el, model.get("until"));
  model.on("change:asked", asked);
  return () => model.off("change:asked", asked);
}

export default { render };
