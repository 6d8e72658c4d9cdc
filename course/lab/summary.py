"""The numbers of a run, beside those of the run before: what was changed, and which difference is more than noise."""

from dataclasses import dataclass, field
from html import escape

from course.lab.controls import LABELS
from course.lab.display import Html, as_table
from course.lab.noise import CEILING, ENOUGH, Noise, NoiseVerdict, figures, ratio_of
from course.lab.run import RemoteSource, Run, percentile
from course.lab.style import ALARM, PHASE_LABELS, change, number, seconds
from minillm.core.timeline import PHASES

EXACT = 1.01
"""Between simulated runs, a larger ratio is a change."""
NEGLIGIBLE = 0.005
"""A phase that changed by less than this share of E2E is shown without a verdict."""
FELT = ("TTFT p50", "ITL p50", "E2E p50")
SAME = "≈"
PREVIOUS = "previous"
ENOUGH_FOR_P99 = 100
"""The p99 of fewer values is just the slowest."""


@dataclass(frozen=True)
class Comparison:
    """A run beside the one before it.

    Args:
        noise: how much equal runs differ on this machine.
    """

    run: Run
    before: Run | None = None
    noise: Noise = field(default_factory=Noise)
    name: str = PREVIOUS
    """The name of the run before."""

    @property
    def is_possible(self) -> bool:
        """The run before had the same traffic, and both came to their end."""
        return self.run.same_workload(self.before)

    @property
    def changed(self) -> dict[str, tuple[object, object]]:
        """Fields of the configuration that differ: what they were, and what they are."""
        was, now = (each.config.model_dump() for each in (self.before or self.run, self.run))
        return {field: (was[field], now[field]) for field in now if was.get(field) != now[field]}

    @property
    def is_repeat(self) -> bool:
        """The same settings, on the same engine: whatever differs is noise."""
        return self.name == PREVIOUS and not self.changed

    @property
    def is_exact(self) -> bool:
        """Both were simulated: equal work takes equally long, and there is no noise."""
        return bool(self.run.simulated_on and self.before and self.before.simulated_on)

    def verdict(self, name: str, before: float, after: float) -> NoiseVerdict:
        """Whether a figure changed. In a repeat none did; but a large difference is never called none."""
        if self.is_exact:
            return NoiseVerdict.CHANGED if ratio_of(before, after) > EXACT else NoiseVerdict.SAME
        if self.is_repeat:
            return NoiseVerdict.SAME if ratio_of(before, after) <= CEILING else NoiseVerdict.UNSURE
        return self.noise.verdict(name, before, after)

    def told(self, name: str, before: float | None, after: float | None) -> str:
        """'−48%', '≈' where noise explains the difference, '−20%?' where there are repeats, but not enough to tell.

        '' = not to be compared.
        """
        if before is None or after is None or not self.run.done:
            return ""
        words = "new" if before == 0 < after else change(before, after)
        if not words:
            return ""
        verdict = self.verdict(name, before, after)
        if verdict is NoiseVerdict.SAME:
            return SAME
        is_doubtful = verdict is NoiseVerdict.UNSURE and not self.is_repeat and self.noise.limit(name) is not None
        return f"{words}?" if is_doubtful else words

    def told_of_phase(self, phase: str) -> str:
        """The same of a phase's mean; '' too for a change by a negligible share of E2E."""
        was, now = self.before.mean_phases()[phase], self.run.mean_phases()
        is_negligible = abs(now[phase] - was) <= NEGLIGIBLE * sum(now.values())
        return "" if is_negligible else self.told(phase, was, now[phase])

    def judged(self) -> dict[str, dict[str, object]]:
        """By figure and phase: whether it changed (`changed`, `same`, `unsure`), and how far equal runs may differ."""
        was, now = ({**figures(run), **run.mean_phases()} for run in (self.before, self.run))
        return {name: self._judged(name, was[name], now[name]) for name in now if name in was}

    def _judged(self, name: str, was: float, now: float) -> dict[str, object]:
        verdict = NoiseVerdict.SAME if was == now else self.verdict(name, was, now)
        return {"verdict": verdict.name.lower(), "band": 1.0 if self.is_exact else self.noise.limit(name)}

    def note(self) -> str:
        """What is known of the noise, or why nothing is compared, in a few words."""
        return self._said()[-1]

    def chips(self) -> str:
        """What was changed since the run before, whether the difference exceeds the noise, and that; HTML."""
        *chips, note = self._said()
        look = "border:1px solid currentColor;border-radius:10px;padding:0 9px"
        framed = (f'<span style="{look}">{escape(words)}</span>' for words in chips)
        return " ".join([*framed, f'<span style="opacity:.8">{escape(note)}</span>'])

    def _said(self) -> tuple[str, ...]:
        """Chips, and a note."""
        if self.name != PREVIOUS:
            return f"beside the {self.name} parts", "one run of each: small differences are noise"
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
        if self.is_exact:
            return said, *(self._verdicts() if changed else ()), "no noise: simulated"
        if not self.noise.num_repeats:
            return said, "noise: not enough repeats, run the same settings twice"
        limits = {name: self.noise.limit(name) for name in FELT}
        told = ", ".join(f"{name} ×{limit:.2f}" for name, limit in limits.items() if limit)
        count = f"{self.noise.num_repeats} repeat{'s' * (self.noise.num_repeats > 1)} here"
        few = f"; less than ×{CEILING:g} takes {ENOUGH}" if self.noise.num_repeats < ENOUGH else ""
        return said, *(self._verdicts() if changed else ()), f"noise: {told} ({count}{few})"

    def _verdicts(self) -> list[str]:
        """Which of the numbers that users feel moved by more than noise, and of which that can't be told."""
        was, now = figures(self.before), figures(self.run)
        moved = {name: change(was[name], now[name]) for name in FELT if name in was and name in now}
        said = []
        for verdict in (NoiseVerdict.CHANGED, NoiseVerdict.UNSURE):
            found = [
                f"{name} {by}" for name, by in moved.items() if self.verdict(name, was[name], now[name]) is verdict
            ]
            said += [f"{verdict.value}: {', '.join(found)}"] if found else []
        return said or [NoiseVerdict.SAME.value]


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


def _server_says(remote: RemoteSource) -> list[str]:
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
