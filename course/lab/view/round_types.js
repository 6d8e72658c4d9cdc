// What a design round's view is told, and what it asks for. A Python session (course/rounds/console.py) makes a state of
// each action.

/**
 * @typedef {import("./drill_types.js").Option} Option
 * @typedef {import("./drill_types.js").Field} Field
 * @typedef {{key: string, title: string, text: string, fields: Field[], boxes: Option[]}} Page boxes: to draw a board from, where that is asked for
 * @typedef {{area: string, about: string, right: boolean | null, told: string}} Item right: null where it was left open
 * @typedef {{took: string, level: string, levels: string[], told: string, areas: {area: string, level: string, counted: string, items: Item[]}[],
 *   helped: Item[], hurt: Item[], unread: string, own: {area: string, column: string, quote: string}[], again: {area: string, says: string},
 *   columns: string[], rubric: {area: string, says: string[]}[], sample: string}} Report
 * @typedef {{title: string, steps: string[], at: number, clock: import("./countdown.js").Clock, opening: string,
 *   asking: {options: Option[], told: {asks: string, says: string}[], left: number}, page: Page | null, report: Report | null}} State
 *   at: which of the steps is on
 * @typedef {{do: "look" | "start"} | {do: "ask", fact: string} | {do: "go_on", filled: Record<string, string>}} Action
 * @typedef {{ask: (action: Action) => Promise<State>}} Port Rejects with an Error whose message is for the reader.
 */

export {};
