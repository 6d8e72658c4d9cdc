"""The numbers of a run, beside those of the run before: what was changed, and which difference is more than noise."""

from dataclasses import dataclass
from html import escape

from course.lab.controls import LABELS
from course.lab.display import Html, as_table
from course.lab.noise import Noise, figures
from course.lab.run import Remote, Run, percentile
from course.lab.style import ALARM, PHASE_LABELS, change, number, seconds
from minillm.core.timeline import PHASES

NEGLIGIBLE = 0.005
"""A phase that changed by less than this share of E2E is shown as unchanged."""
FELT = ("TTFT p50", "ITL p50", "E2E p50")
UNKNOWN = 3.0
"""Noise of such a factor hasn't been measured well enough to be told."""
PREVIOUS = "previous"
ENOUGH_FOR_P99 = 100
"""The p99 of fewer values is just the slowest."""


@dataclass(frozen=True)
class Comparison:
    """A run beside the one before it.

    Args:
        noise: of this traffic on this machine; None = nothing has been repeated yet.
    """

    run: Run
    before: Run | None = None
    noise: Noise | None = None
    name: str = PREVIOUS
    """Of the run before."""

    @property
    def is_possible(self) -> bool:
        """The run before had the same traffic, and both came to their end."""
        return self.run.same_workload(self.before)

    @property
    def changed(self) -> dict[str, tuple[object, object]]:
        """Fields of the configuration that differ: what they were, and what they are."""
        was, now = (each.config.model_dump() for each in (self.before or self.run, self.run))
        return {field: (was[field], now[field]) for field in now if was.get(field) != now[field]}

    def told(self, name: str, before: float | None, after: float | None) -> str:
        """'−48%', or '≈' where noise explains the difference, or where nothing was changed; '' = not to be compared."""
        words = change(before, after) if self.run.done else ""
        if not words or (self.noise is None and self.changed):
            return words
        return "≈" if not self.changed or self.noise.explains(name, before, after) else words

    def chips(self) -> str:
        """What was changed since the run before, whether the difference exceeds the noise, and that; HTML."""
        *chips, note = self._said()
        look = "border:1px solid currentColor;border-radius:10px;padding:0 9px"
        framed = (f'<span style="{look}">{escape(words)}</span>' for words in chips)
        return " ".join([*framed, f'<span style="opacity:.8">{escape(note)}</span>'])

    def _said(self) -> tuple[str, ...]:
        """Chips, and a note."""
        if self.name != PREVIOUS:
            return f"beside the {self.name} parts", "one run of each: what differs little is noise"
        if self.before is None:
            return "the first run", "change one control and press Run again, or run it twice to see the noise"
        if not self.is_possible:
            return "other traffic than in the run before, or one was stopped", "so they aren't compared"
        changed = ", ".join(
            f"{LABELS.get(name, name)} {_shown(a)} → {_shown(b)}" for name, (a, b) in self.changed.items()
        )
        said = f"changed: {changed}" if changed else "nothing changed: what differs from the run before is noise"
        if not self.run.done:
            return said, "compared when it's done"
        if self.noise is None:
            return said, "noise not measured yet: run the same settings twice"
        limits = {name: self.noise.limit(name) for name in FELT}
        told = ", ".join(f"{name} ×{limit:.2f}" for name, limit in limits.items() if limit and limit < UNKNOWN)
        count = f"{self.noise.num_repeats} repeat{'s' * (self.noise.num_repeats > 1)} here"
        if not told:
            return said, f"noise barely known after {count}: run the same settings once more"
        verdict = [self._verdict()] if changed else []
        return said, *verdict, f"noise: {told} ({count})"

    def _verdict(self) -> str:
        """Which of the numbers that users feel moved by more than noise."""
        was, now = figures(self.before), figures(self.run)
        moved = {name: self.told(name, was.get(name), now.get(name)) for name in FELT}
        beyond = ", ".join(f"{name} {words}" for name, words in moved.items() if words not in ("", "≈"))
        return f"more than noise: {beyond}" if beyond else "within the noise"


def _shown(value: object) -> str:
    return {"True": "on", "False": "off", "None": "off"}.get(str(value), str(value))


def headline(compared: Comparison) -> str:
    """The numbers that users feel, then what they cost. HTML; a number that changed shows what it was."""
    run, before = compared.run, compared.before if compared.is_possible else None
    shown = []
    for name, values in (("TTFT", "ttft"), ("ITL", "itl"), ("E2E", "e2e")):
        now, was = getattr(run, values), getattr(before, values) if before else ()
        middle, earlier = percentile(now, 50), percentile(was, 50)
        worst = ("p99", percentile(now, 99)) if len(now) >= ENOUGH_FOR_P99 else ("worst", max(now, default=None))
        told = compared.told(f"{name} p50", earlier, middle)
        shown.append(_figure(f"{name} p50", seconds(middle), f"{worst[0]} {seconds(worst[1])}", seconds(earlier), told))
    was = before.throughput if before else None
    told = compared.told("tokens/s", was, run.throughput)
    shown.append(_figure("tokens/s out", number(run.throughput), "", number(was) if was else "", told))
    look = "display:grid;grid-template-columns:1fr 1fr;gap:0 16px"
    return f'<div style="{look}">{"".join(shown)}{_counts(run)}</div>'


def _figure(name: str, value: str, worst: str, was: str, changed: str) -> str:
    ghost = f"was {was}, {changed}" if changed else ""
    small = '<div style="font-size:11px;opacity:.8;min-height:14px">'
    return (
        f'<div style="line-height:1.25">{small}{escape(name)}</div>'
        f'<div style="font-size:18px;font-variant-numeric:tabular-nums">{escape(value)}'
        f' <span style="font-size:11px;opacity:.8">{escape(worst)}</span></div>{small}{escape(ghost)}</div></div>'
    )


def _counts(run: Run) -> str:
    """What else happened; nothing that did not happen is mentioned."""
    snapshot = run.snapshot
    parts = [f"{len(run.finished)} of {len(run.rows)} requests finished", f"{run.output_tokens} tokens out"]
    parts += _server_says(run.remote) if run.remote else _engine_says(run)
    line = escape(" · ".join(parts))
    bad = []
    if snapshot.num_preemptions:
        bad.append(f"preempted {snapshot.num_preemptions}×, {snapshot.num_recomputed_tokens} tokens computed again")
    for reason in ("abort", "timeout", "error"):
        count = sum(1 for view in run.views if view.finish_reason == reason)
        if count:
            bad.append(f"{count} ended by {reason}")
    refused = [row for row in run.rows if row.refused]
    if refused:
        bad.append(f"{len(refused)} refused ({refused[0].refused})")
    alarm = f' · <span style="color:{ALARM};font-weight:600">{escape(" · ".join(bad))}</span>' if bad else ""
    return f'<div style="font-size:12px;grid-column:1/-1;padding-bottom:4px">{line}{alarm}</div>'


def _engine_says(run: Run) -> list[str]:
    snapshot = run.snapshot
    parts = [f"{snapshot.num_steps} steps"]
    if snapshot.prefix_queries and snapshot.prefix_hits:
        share = 100 * snapshot.prefix_hits / snapshot.prefix_queries
        parts.append(
            f"prefix cache: {snapshot.prefix_hits} of {snapshot.prefix_queries} prompt tokens found ({share:.0f}%)"
        )
    peak = max((step.kv_blocks_used for step in run.steps), default=0)
    return [*parts, f"KV peak {peak} of {len(snapshot.block_owners)} blocks"]


def _server_says(remote: Remote) -> list[str]:
    """What is known of a server that is seen from outside, and how."""
    gauges = remote.gauges
    parts = [f"{gauges[name]:.0f} {name}" for name in ("running", "waiting") if name in gauges]
    parts += [f"KV cache {gauges['kv_usage']:.0%} full"] if "kv_usage" in gauges else []
    return [*parts, remote.how]


def phase_table(run: Run) -> Html:
    """Mean seconds per request in each phase, and their sum, the mean E2E."""
    means = run.mean_phases()
    total = sum(means.values())
    rows = [(PHASE_LABELS[phase], seconds(means[phase]), f"{means[phase] / (total or 1):.0%}") for phase in PHASES]
    return as_table(("phase, mean per request", "time", "share"), [*rows, ("E2E, their sum", seconds(total), "100%")])
