// Python in the tab for a page that can be read without: it starts with the first question, and answers all instruments there.
import { Refused, TabPython } from "./port.js";

class LatePython {
  #script;
  /** @type {TabPython | null} */ #python = null;
  /** What the worker waits for, in words; "" = it is there. */ #stage = "fetching Python";
  /** @type {Set<(words: string) => void>} */ #tellers = new Set();

  /** @param {string} script the worker's; "" = this copy of the site has none */
  constructor(script) {
    this.#script = script;
  }

  /** Why nothing can be asked here; "" = it can. A page that was opened from disk may start no worker. */
  get hindrance() {
    if (location.protocol === "file:") return "This page was opened from disk, where Python can't start: `make site` serves it.";
    return this.#script ? "" : "This copy of the site was written without Python for the browser: `make lab` has it.";
  }

  /**
   * @param {string} name @param {Record<string, unknown>} given @param {number | undefined} of the number of something that was opened
   * @param {(words: string) => void} tell hears what is waited for; "" = the question is being answered
   * @returns {Promise<any>}
   */
  async ask(name, given, of, tell) {
    this.#python ??= new TabPython(new URL(this.#script, document.baseURI), (stage) => this.#hear(stage));
    this.#tellers.add(tell);
    tell(this.#words());
    try {
      return await this.#python.ask(name, given, of);
    } catch (error) {
      throw error instanceof Refused ? error : new Error(`Python in this tab failed (${error instanceof Error ? error.message : error}). Reload the page to begin again.`);
    } finally {
      this.#tellers.delete(tell);
    }
  }

  /** @param {string} stage */
  #hear(stage) {
    this.#stage = stage;
    for (const tell of this.#tellers) tell(this.#words());
  }

  #words() {
    return this.#stage && `Python is starting in this tab: ${this.#stage} …`;
  }
}

/**
 * Does a slow thing for the newest of what it is asked; what came in between is of no use any more.
 * @template T
 * @param {(asked: T) => Promise<void>} work
 * @returns {(asked: T) => Promise<void>}
 */
function newestOnly(work) {
  let isBusy = false;
  /** @type {T[]} */ let waiting = [];
  return async (asked) => {
    waiting = [asked];
    if (isBusy) return;
    isBusy = true;
    for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) await work(next);
    isBusy = false;
  };
}

export { LatePython, newestOnly };
