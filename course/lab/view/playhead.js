// Which moment is shown. A run that goes on is followed a little behind its last news; one that is over plays once, and stays full.

/** News come some eight times a second: so far behind, the next ones are there before they are needed. */
const LAG_S = 0.2;
/** Without news for so long, nothing grows any more: the kernel may be gone. */
const LONGEST_S = 4;
/** Further off than this, it jumps. */
const LOST_S = 2;
/** How long a whole run plays, whatever it took. */
const SHORTEST_PLAY_S = 3, LONGEST_PLAY_S = 8;

/** @typedef {"still" | "live" | "playing" | "frozen"} Mode still: at the end */

class Playhead {
  /** Seconds after the run began. */
  time = 0;
  /** @type {Mode} */
  mode = "still";
  #end = 0;
  #heardAt = 0;
  #isRunning = false;

  /** News of a run. @param {number} end the last moment that is known @param {boolean} isRunning @param {number} now ms of the page */
  hear(end, isRunning, now) {
    this.#end = end;
    this.#isRunning = isRunning;
    this.#heardAt = now;
  }

  /** From the beginning, as the run happens. */
  follow() {
    this.mode = "live";
    this.time = 0;
  }

  /** From the beginning, once, to the end. */
  play() {
    this.mode = "playing";
    this.time = 0;
  }

  finish() {
    this.mode = "still";
    this.time = this.#end;
  }

  /** @param {number} time */
  freeze(time) {
    this.mode = "frozen";
    this.time = Math.min(Math.max(time, 0), this.#end);
  }

  /** Go on by a frame. @param {number} passed seconds @param {number} now ms of the page @returns {boolean} whether it moves on */
  tick(passed, now) {
    if (this.mode === "playing") {
      const pace = this.#end / Math.min(Math.max(this.#end, SHORTEST_PLAY_S), LONGEST_PLAY_S);
      this.time += passed * pace;
      if (this.time >= this.#end) this.finish();
    } else if (this.mode === "live") {
      const silent = Math.min((now - this.#heardAt) / 1000, LONGEST_S);
      const target = this.#isRunning ? Math.max(this.#end + silent - LAG_S, 0) : this.#end;
      const behind = target - this.time;
      this.time = Math.abs(behind) > LOST_S ? target : this.time + passed * Math.min(Math.max(1 + 2 * behind, 0), 3);
      if (!this.#isRunning && this.time >= this.#end - 1e-3) this.finish();
    }
    return this.mode === "playing" || this.mode === "live";
  }
}

/**
 * The ends of the time axis. It slides while a run goes on, and eases to the whole when that's over: no jumps of scale.
 */
class Axis {
  low = 0;
  high = 1;

  /** A new run: as long as the one before, or until the last arrival and a second. @param {number} span seconds */
  reset(span) {
    this.low = 0;
    this.high = Math.max(span, 0.05);
  }

  /**
   * @param {number} time what is shown @param {number | null} whole the end of all, once it is known
   * @param {number} passed seconds @returns {boolean} whether it still moves
   */
  tick(time, whole, passed) {
    const span = this.high - this.low, near = this.low + 0.9 * span;
    const low = whole === null ? this.low + Math.max(time - near, 0) : 0;
    const high = whole === null ? low + span : whole;
    const share = whole === null ? 1 : 1 - Math.exp(-passed / 0.12);
    this.low += (low - this.low) * share;
    this.high += (high - this.high) * share;
    const isMoving = Math.abs(this.low - low) + Math.abs(this.high - high) > 0.002 * (high - low);
    if (!isMoving) [this.low, this.high] = [low, high];
    return isMoving;
  }
}

export { Axis, Playhead };
