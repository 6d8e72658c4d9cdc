// Python in a worker: it starts when the page opens, and answers what pages ask by name (answer.py).
import { loadPyodide } from "./pyodide.mjs";
/** @typedef {{wheels: string[], course: string}} Packed names of files beside this one */
/** @typedef {{id: number, request?: string, load?: string}} Asked load: the address of a folder with a model (model/decoder.js) */

/** @param {string} name */
async function fetched(name) {
  const response = await fetch(new URL(name, import.meta.url));
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  return response.arrayBuffer();
}

/** @param {string} stage what is being waited for, in words */
function tell(stage) {
  postMessage({ stage });
}

async function start() {
  tell("fetching Python");
  /** @type {Packed} */ const packed = JSON.parse(new TextDecoder().decode(await fetched("packed.json")));
  // All of it travels while Python itself starts.
  const archives = Promise.all([...packed.wheels, packed.course].map(fetched));
  const python = await loadPyodide({ indexURL: new URL(".", import.meta.url).href });
  tell("unpacking the course");
  const unpacked = await archives;
  for (const [i, archive] of unpacked.entries()) await python.unpackArchive(archive, i < packed.wheels.length ? "wheel" : "zip", { extractDir: "/lib/course" });
  python.runPython("import sys; sys.path.insert(0, '/lib/course')");
  tell("importing the engine");
  const answers = python.pyimport("course.tab.answer").Answers();
  tell("");
  return { python, answers };
}

const started = start();
started.catch((error) => postMessage({ failed: String(error) }));

/** A model's decoder and weights, which Python then imports as `decoder`. @param {number} id @param {string} folder */
async function load(id, folder) {
  const { loadDecoder } = await import(new URL("decoder.js", folder).href);
  const files = await (await fetch(new URL("model.json", folder))).json();
  const decoder = await loadDecoder(files, (/** @type {number} */ done) => postMessage({ id, done }));
  (await started).python.registerJsModule("decoder", decoder);
  return JSON.stringify({ value: null });
}

addEventListener("message", async (/** @type {MessageEvent<Asked>} */ { data: { id, request, load: folder } }) => {
  try {
    postMessage({ id, answer: folder ? await load(id, folder) : (await started).answers.answer(request) });
  } catch (error) {
    postMessage({ id, failed: String(error) });
  }
});
