// Endless traffic as the page knows it: requests that can still be seen, the lane each is drawn in, and what users feel just now.
import { percentile } from "./trace.js";
/** @typedef {import("./trace.js").Step} Step */

/**
 * One request.
 * @typedef {object} LiveRequest
 * @property {number} i its number
 * @property {number} at when it arrived, seconds after the beginning
 * @property {string} kind chat, handbook or document
 * @property {number} most output tokens it may have
 * @property {number} lane
 * @property {number} rollout how many changes of the settings came before it
 * @property {number[]} borders of its phases, as far as they are known; six once it has ended
 * @property {number[]} tokens when each came
 * @property {number} prompt prompt tokens
 * @property {number} cached of them, found in the prefix cache
 * @property {string} reason why it ended; "" = it hasn't
 */
/**
 * What Python tells (course/tab/live_server.py).
 * @typedef {object} News
 * @property {number} now
 * @property {{i: number, at: number, kind: string, most: number}[]} arrived
 * @property {(Partial<LiveRequest> & {i: number})[]} ended
 * @property {(Partial<LiveRequest> & {i: number})[]} in_flight
 * @property {Step[]} steps
 */
/** @typedef {{ttft: number | null, worstGap: number | null, tokensPerS: number, queued: number, running: number}} LiveFigures seconds */

/** How long it can be looked back. */
const KEPT_S = 60;
/** What users feel is taken over so long. */
const WINDOW_S = 10;
/** Between two requests in one lane. */
const GAP_S = 0.4;

class LiveTraffic {
  /** @type {Map<number, LiveRequest>} */ requests = new Map();
  /** @type {Step[]} */ steps = [];
  /** The last moment that is known. */
  known = 0;
  rollout = 0;

  /** @param {News} news */
  hear(news) {
    for (const { i, at, kind, most } of news.arrived) {
      this.requests.set(i, { i, at, kind, most, lane: this.#freeLane(at), rollout: this.rollout, borders: [at], tokens: [], prompt: 0, cached: 0, reason: "" });
    }
    for (const told of [...news.ended, ...news.in_flight]) {
      const request = this.requests.get(told.i);
      if (request) Object.assign(request, told);
    }
    this.steps.push(...news.steps);
    this.known = news.now;
    const oldest = this.known - KEPT_S;
    this.steps = this.steps.filter((step) => step.end > oldest);
    for (const [i, request] of this.requests) if (request.borders.length > 5 && request.borders[5] < oldest) this.requests.delete(i);
  }

  /** The first lane in which nobody is any more. @param {number} at */
  #freeLane(at) {
    const taken = new Set([...this.requests.values()].filter(({ borders }) => (borders[5] ?? Infinity) > at - GAP_S).map(({ lane }) => lane));
    let lane = 0;
    while (taken.has(lane)) lane += 1;
    return lane;
  }

  /** As of a moment. @param {number} time @returns {LiveFigures} */
  figuresAt(time) {
    const since = time - WINDOW_S;
    /** @type {number[]} */ const ttft = [], gaps = [];
    let tokens = 0, queued = 0, running = 0;
    for (const { borders, tokens: came } of this.requests.values()) {
      if (borders[0] > time) continue;
      if ((borders[5] ?? Infinity) > time) {
        if ((borders[1] ?? Infinity) > time) queued += 1;
        else running += 1;
      }
      if (came.length && came[0] > since && came[0] <= time) ttft.push(came[0] - borders[0]);
      for (let k = 0; k < came.length && came[k] <= time; k += 1) {
        if (came[k] <= since) continue;
        tokens += 1;
        if (k) gaps.push(came[k] - came[k - 1]);
      }
    }
    return { ttft: percentile(ttft, 50), worstGap: gaps.length ? Math.max(...gaps) : null, tokensPerS: tokens / Math.min(WINDOW_S, Math.max(time, 0.1)), queued, running };
  }

  /** Mean seconds per phase of requests that have ended by then, of those that came between two changes. @param {number} rollout @param {number} time */
  meansOf(rollout, time) {
    const ended = [...this.requests.values()].filter((each) => each.rollout === rollout && each.borders.length > 5 && each.borders[5] <= time);
    const means = [0, 1, 2, 3, 4].map((k) => ended.reduce((sum, { borders }) => sum + borders[k + 1] - borders[k], 0) / Math.max(ended.length, 1));
    return { count: ended.length, means };
  }
}

export { KEPT_S, LiveTraffic, WINDOW_S };
