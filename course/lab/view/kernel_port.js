// A kernel as a view's port: an action goes there as a message, the state comes back as a trait, a refusal as a message.

/**
 * @typedef {{get: (name: string) => any, on: (event: string, heard: (message: any) => void) => void,
 *   off: (event: string, heard: (message: any) => void) => void, send: (message: unknown) => void}} KernelModel anywidget's model
 */

/**
 * @param {KernelModel} model
 * @returns {{ask: (action: unknown) => Promise<any>}}
 */
function kernelPort(model) {
  return {
    ask: (action) => new Promise((answer, refuse) => {
      const id = `${Date.now()}-${Math.random()}`;
      const hear = (/** @type {{id: string, refused: string}} */ message) => {
        if (message.id !== id) return;
        model.off("msg:custom", hear);
        if (message.refused) refuse(new Error(message.refused));
        else answer(model.get("state"));
      };
      model.on("msg:custom", hear);
      model.send({ id, action });
    }),
  };
}

export { kernelPort };
