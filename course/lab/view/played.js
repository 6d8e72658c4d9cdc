// What was done in an incident, a drill or a round, for a reload: the tab keeps it, and forgets it when it's closed.
/** @typedef {{deeds: {action: unknown, at: number}[], drafts: Record<string, string>, isOver?: boolean}} Played at: seconds; drafts: texts that aren't handed in, by label */

/** @param {string} kind such as "incident" @param {Record<string, unknown>} given which one */
const playedKey = (kind, given) => `minillm ${kind} ${JSON.stringify(given)}`;

/** Whether it's begun and not over. @param {string} key */
function isUnderWay(key) {
  const { deeds, isOver } = playedBefore(key);
  return deeds.length > 0 && !isOver;
}

/** @param {string} key @returns {Played} */
function playedBefore(key) {
  try {
    const kept = JSON.parse(sessionStorage.getItem(key) ?? "null");
    if (Array.isArray(kept?.deeds) && kept.drafts instanceof Object) return kept;
  } catch { /* the browser keeps nothing */ }
  return { deeds: [], drafts: {} };
}

/** @param {string} key @param {Played | null} played null: forget it */
function keepPlayed(key, played) {
  try {
    sessionStorage.setItem(key, JSON.stringify(played ?? { deeds: [], drafts: {} }));
  } catch { /* not kept */ }
}

/** What was being written goes back to its place, and is kept while it grows. @param {HTMLElement} el @param {string} key @param {Played} played */
function keepDrafts(el, key, played) {
  const labelOf = (/** @type {Element} */ area) => area.getAttribute("aria-label") ?? "", handedIn = JSON.stringify(played.deeds);
  for (const area of el.querySelectorAll("textarea")) {
    const draft = played.drafts[labelOf(area)];
    if (!draft || handedIn.includes(JSON.stringify(draft))) continue;
    area.value = draft;
    area.dispatchEvent(new Event("input", { bubbles: true }));
  }
  el.addEventListener("input", ({ target }) => {
    if (!(target instanceof HTMLTextAreaElement)) return;
    played.drafts[labelOf(target)] = target.value;
    keepPlayed(key, played);
  });
}

export { isUnderWay, keepDrafts, keepPlayed, playedBefore, playedKey };
