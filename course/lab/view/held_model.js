// A view's model: one that the page itself holds, in a kernel's place; and what a view hears of any model.
/** @typedef {import("./view.js").Model} Model */
/** @typedef {import("./view.js").Order} Order */

/**
 * @param {Record<string, any>} held by name, what `get` gives
 * @param {(order: Order) => void} [send] does what the view asks for
 * @returns {Model}
 */
function heldModel(held, send = () => {}) {
  /** @type {Record<string, ((message: any) => void)[]>} */ const listeners = {};
  return {
    get: (name) => held[name],
    set(name, value) {
      held[name] = value;
      for (const heard of [...(listeners[`change:${name}`] ?? [])]) heard(undefined);
    },
    save_changes: () => {},
    send,
    on: (event, heard) => { (listeners[event] ??= []).push(heard); },
    off: (event, heard) => { listeners[event] = (listeners[event] ?? []).filter((each) => each !== heard); },
  };
}

/**
 * @param {Pick<Model, "on" | "off">} model
 * @param {Record<string, (message: any) => void>} heard by event
 * @returns {() => void} ends it
 */
function listenTo(model, heard) {
  const pairs = Object.entries(heard);
  for (const [event, hear] of pairs) model.on(event, hear);
  return () => { for (const [event, hear] of pairs) model.off(event, hear); };
}

export { heldModel, listenTo };
