// What the drill's view is told, and what it asks for. A Python session (course/drills/console.py), or whatever stands in
// its place, makes a state of each action.

/**
 * @typedef {{id: string, name: string}} Option
 * @typedef {{key: string, label: string, options: Option[] | null, about: string, long: boolean}} Field options null: free text
 * @typedef {{part: string, title: string, text: string, fields: Field[]}} Stage part: the step that it belongs to
 * @typedef {{tags: string, headline: string, level: string, levels: string[], answer: number, understanding: number | null,
 *   rows: {name: string, lines: string[]}[], graders: {name: string, says: string}[], solution: string}} Verdict
 *   level: one of levels, or "" below all of them; answer, understanding: shares
 * @typedef {{title: string, steps: string[], at: number, clock: {total: number, used: number, state: "waiting" | "running" | "stopped"},
 *   prompt: string, text: string, asking: {options: Option[], told: {asks: string, says: string}[], left: number},
 *   stage: Stage | null, verdict: Verdict | null}} State
 *   at: which of the steps is on; clock: seconds, used up to when this was told
 * @typedef {{do: "look" | "start"} | {do: "ask", fact: string} | {do: "hand_in", text: string} | {do: "go_on", filled: Record<string, string>}} Action
 * @typedef {{ask: (action: Action) => Promise<State>}} Port Rejects with an Error whose message is for the reader.
 */

export {};
