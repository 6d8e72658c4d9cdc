// The incident of the day: the same for everyone, by the date in UTC.
"use strict";

document.querySelectorAll("[data-today]").forEach((link) => {
  const alarms = /** @type {[number, string][]} */ (JSON.parse(link.getAttribute("data-today") ?? "[]"));
  const [number, alarm] = alarms[Math.floor(Date.now() / 864e5) % alarms.length];
  link.setAttribute("href", `incident_${number}.html`);
  const told = link.parentElement?.querySelector("[data-alarm]");
  if (told) told.textContent = alarm;
});
