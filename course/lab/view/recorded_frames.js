// Pictures that were drawn at many settings. They come in a script of their own (a page opened from disk may load scripts, but nothing else),
// and only when they are needed.

/** @typedef {{frames: Record<string, string>}} Recorded pictures by their controls' places, "0,3" */

/** @param {string} packed JSON, gzip, base64: a tenth of the size @returns {Promise<Recorded>} */
function unpackedFrames(packed) {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

/** What loads them by name, once each. @returns {(name: string) => Promise<Recorded>} */
function frameShelf() {
  /** @type {Record<string, (recorded: Promise<Recorded>) => void>} */ const waiting = {};
  /** @type {Record<string, Promise<Recorded>>} */ const loading = {};
  Object.assign(window, { minillm: { recorded: (/** @type {string} */ name, /** @type {string} */ packed) => waiting[name]?.(unpackedFrames(packed)) } });
  return (name) => (loading[name] ??= new Promise((found, failed) => {
    waiting[name] = found;
    const script = document.createElement("script");
    script.src = `frames/${name}.js`;
    script.onerror = () => failed(new Error(`frames/${name}.js is not there`));
    document.head.append(script);
  }));
}

export { frameShelf };
