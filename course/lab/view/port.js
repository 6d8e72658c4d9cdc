// The page's end of Python in the tab (course/tab/worker.js): ask by name, get the answer.

/** It says no, for a reason that a reader can do something about. */
class Refused extends Error {}

class TabPython {
  #worker;
  /** @type {Map<number, {answered: (value: any) => void, failed: (error: Error) => void, come?: (done: number) => void}>} */ #waiting = new Map();
  #count = 0;
  /** Why nothing can be asked any more. */ #ended = "";

  /** @param {string | URL} script the worker's @param {(stage: string) => void} onStage what it is waiting for; "" = it is here */
  constructor(script, onStage) {
    this.#worker = new Worker(script, { type: "module" });
    this.#worker.addEventListener("error", (event) => this.#fail(event.message || "it could not be loaded"));
    this.#worker.addEventListener("message", ({ data }) => {
      if (data.stage !== undefined) onStage(data.stage);
      else if (data.id === undefined) this.#fail(data.failed);
      else this.#hear(data);
    });
  }

  /** @param {{id: number, answer?: string, failed?: string, done?: number}} told */
  #hear({ id, answer, failed, done }) {
    const waiting = this.#waiting.get(id);
    if (done !== undefined) {
      waiting?.come?.(done);
      return;
    }
    this.#waiting.delete(id);
    if (answer === undefined) {
      waiting?.failed(new Error(failed));
      return;
    }
    const { value, refused } = JSON.parse(answer);
    if (refused === undefined) waiting?.answered(value);
    else waiting?.failed(new Refused(refused));
  }

  /** @param {string} words */
  #fail(words) {
    this.#ended = words;
    for (const { failed } of this.#waiting.values()) failed(new Error(words));
    this.#waiting.clear();
  }

  /** Ends it: nothing that was asked is answered any more. */
  end() {
    this.#worker.terminate();
    this.#fail("it was ended");
  }

  /**
   * @param {string} name @param {Record<string, unknown>} given @param {number} [of] the number of something that was opened
   * @returns {Promise<any>}
   */
  ask(name, given = {}, of = undefined) {
    return this.#send({ request: JSON.stringify({ name, given, of }) });
  }

  /**
   * A model, for what is asked from then on.
   * @param {string | URL} folder its files' address @param {(done: number) => void} come how many bytes have come
   * @returns {Promise<void>}
   */
  load(folder, come) {
    return this.#send({ load: String(folder) }, come);
  }

  /** @param {Record<string, unknown>} message @param {(done: number) => void} [come] @returns {Promise<any>} */
  #send(message, come) {
    if (this.#ended) return Promise.reject(new Error(this.#ended));
    this.#count += 1;
    const id = this.#count;
    return new Promise((answered, failed) => {
      this.#waiting.set(id, { answered, failed, come });
      this.#worker.postMessage({ id, ...message });
    });
  }
}

export { Refused, TabPython };
