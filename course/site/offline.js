// Keeps the site for when there is no network: all that runs Python, and each page that was opened. The site writes what
// `minillm` holds before this: a digest of the build, and the files to keep first.
const scope = /** @type {any} */ (self), PREFIX = "minillm-";
const { build, first } = /** @type {{build: string, first: string[]}} */ (scope.minillm), KEPT = PREFIX + build;
/** A model's weights stay from one build to the next: decoder.js keeps them itself, under their own names. */
const WEIGHTS = "minillm-weights";

scope.addEventListener("install", (/** @type {any} */ event) => {
  event.waitUntil(caches.open(KEPT).then(async (kept) => {
    await kept.addAll(first.map((name) => new Request(name, { cache: "no-cache" })));
    await keepOpenPages(kept);
    await scope.skipWaiting();
  }));
});

/** Pages that were open before this was there: their requests didn't pass here. @param {Cache} kept */
async function keepOpenPages(kept) {
  const open = await scope.clients.matchAll({ includeUncontrolled: true });
  await Promise.all(open.map((/** @type {any} */ page) => kept.add(page.url).catch(() => {}))); // one that has gone since
}

scope.addEventListener("activate", (/** @type {any} */ event) => {
  const older = caches.keys().then((names) => Promise.all(names.filter((name) => name.startsWith(PREFIX) && name !== KEPT && name !== WEIGHTS).map((name) => caches.delete(name))));
  event.waitUntil(older.then(() => scope.clients.claim()));
});

scope.addEventListener("fetch", (/** @type {any} */ event) => {
  const asked = event.request;
  const { origin, pathname } = new URL(asked.url);
  if (asked.method === "GET" && origin === location.origin && !/\/model\/(weights|tokenizer)-/.test(pathname)) event.respondWith(answered(asked));
});

const NOT_KEPT = `<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>No network · minillm</title><link rel="stylesheet" href="static/site.css">
<main class="front"><h1>There's no network</h1><p>This page wasn't opened before. The <a href="index.html">front page</a>, the <a href="dashboard.html">dashboard</a> and pages that you've been to work without.</p></main></html>`;

/** From what is kept; else from the network, and kept from then on. A page's own settings in its address don't make it another page. @param {Request} asked */
async function answered(asked) {
  const kept = await caches.open(KEPT);
  const found = await kept.match(asked, { ignoreSearch: true });
  if (found) return found;
  const fresh = await fetch(asked, { cache: "no-cache" }).catch((error) => {
    if (asked.mode !== "navigate") throw error;
    return new Response(NOT_KEPT, { status: 503, headers: { "Content-Type": "text/html" } });
  });
  if (fresh.status === 200) await kept.put(asked, fresh.clone()).catch(() => {}); // no room: it is shown all the same
  return fresh;
}
