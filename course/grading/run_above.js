// Runs the learner's own cells above this one, then says so to Python. JupyterLab gives pages its commands only where it's told to
// (binder/jupyter_server_config.json); elsewhere they have been run by hand.

async function runAbove(el, pattern) {
  const app = globalThis.jupyterapp;
  const notebook = app?.shell?.currentWidget?.content;
  const here = notebook?.widgets?.findIndex((cell) => cell.node.contains(el)) ?? -1;
  if (here < 0) return;
  const defines = new RegExp(pattern, "m"), first = notebook.activeCellIndex;
  for (const [index, { model }] of notebook.widgets.slice(0, here).entries()) {
    if (model.type !== "code" || !defines.test(model.sharedModel.getSource())) continue;
    notebook.activeCellIndex = index;
    await app.commands.execute("notebook:run-cell");
  }
  notebook.activeCellIndex = first;
}

function render({ model, el }) {
  const asked = async () => {
    try {
      await runAbove(el, model.get("pattern"));
    } finally {
      model.send({ do: "done" });
    }
  };
  model.on("change:asked", asked);
  return () => model.off("change:asked", asked);
}

export default { render };
