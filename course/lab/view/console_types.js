// What the incident console is told, and what it asks for. A Python session (course/incidents/console.py), or whatever
// stands in its place, makes a state of each action.

/**
 * @typedef {{id: string, name: string}} Named
 * @typedef {{id: string, group: string, text: string, minutes: number, asked: boolean}} Question
 * @typedef {{name: string, style: "line" | "dashes" | "points", points: [number, number | null][]}} Line
 * @typedef {{lines: Line[], x: string, y: string, limit: number | null, limit_name: string, high: number | null}} Panel
 * @typedef {{id: string, minute: number, question: string, text: string, missing: boolean, head: string[], rows: string[][], panel: Panel | null}} Evidence
 *   missing: whatever fed it stopped
 * @typedef {{id: string, text: string, cost: string, phase: string, now: boolean, quick: boolean}} Change now: can be done before anything is known
 * @typedef {{began: number, minute: number, changes: string[], names: string, canary: boolean, quick: boolean, before: number, after: number,
 *   target: number, restored: boolean, possible: boolean, bill: [number, number], lost: number, worse: string[], head: string[], rows: string[][]}} Deployed
 *   before, after: share of requests within the SLO; bill: dollars an hour; lost: share of what users asked for
 * @typedef {{minute: number, kind: string, words: string, saw: string}} Happened
 * @typedef {{name: string, minute: number | null, enough: number | null}} Milestone
 * @typedef {{cause: string, truth: [string, string][], missing: string[], stale: string[], score: number,
 *   criteria: {name: string, earned: number, possible: number, feedback: string}[], notes: string[], milestones: Milestone[],
 *   changes: {text: string, effort: string, after: number, restored: boolean, worth: number}[], share: string}} Debrief
 *   changes: what each would have done by itself; empty until that was asked for
 * @typedef {{title: string, practice: boolean,
 *   page: {alarm: string, service: string, promise: string, kept: number, story: string, warning: string, basis: string},
 *   minute: number, onset: number, target: number, failing: number, waiting: number, burned: number, rate: number, curve: [number, number][],
 *   relief: {minute: number, failing: number} | null, questions: Question[], evidence: Evidence[], changes: Change[],
 *   suspects: Named[], places: Named[], regimes: Named[], hypothesis: string,
 *   diagnosis: {minute: number, says: [string, string][]} | null, rule: string, deployed: Deployed[], standing: string[],
 *   undeployed: boolean, events: Happened[], debrief: Debrief | null}} State
 *   All minutes are of the incident clock, 0 at the page. failing, curve: share of requests that missed the SLO, so far and by
 *   arrival; relief: since when users are helped; standing: ids of the changes that are in place; undeployed: a grade would be
 *   one without a follow-up.
 * @typedef {{do: "look" | "roll_back" | "compare"} | {do: "ask", question: string} | {do: "suspect", words: string}
 *   | {do: "deploy", changes: string[], canary: boolean} | {do: "grade", sure: boolean}
 *   | {do: "commit", cause: string, phase: string, second: string, regime: string, evidence: string[], other: string, by: string, ranked: string[]}} Action
 * @typedef {{ask: (action: Action) => Promise<State>}} Port
 *   Rejects with an Error whose message is for the reader: what was asked for comes out of turn, or doesn't exist.
 * @typedef {(action: Action, beside: HTMLElement) => Promise<State | null>} Do
 *   One action; what comes of it, a refusal too, is said beside what was pressed. null: it was refused.
 */

export {};
