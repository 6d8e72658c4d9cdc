"""The numbers of a run, beside those of the run before: headline figures and the difference per phase."""

from html import escape

from course.lab.display import Html, table
from course.lab.run import Remote, Run, percentile
from course.lab.style import ALARM, PHASE_COLOURS, PHASE_LABELS, change, number, seconds
from minillm.core.timeline import PHASES

NEGLIGIBLE = 0.005
"""A phase that changed by less than this share of E2E is shown as unchanged: its percentage would be noise."""


def headline(run: Run, before: Run | None = None) -> str:
    """The two numbers first, then what they cost. HTML; a number that changed shows what it was."""
    before = before if run.same_workload(before) else None
    figures = []
    for name, values in (("TTFT", "ttft"), ("ITL", "itl"), ("E2E", "e2e")):
        for q in (50, 99):
            now = percentile(getattr(run, values), q)
            was = percentile(getattr(before, values), q) if before else None
            figures.append(_figure(f"{name} p{q}", seconds(now), seconds(was) if was else "", change(was, now)))
    was = before.throughput if before else None
    figures.append(
        _figure("tokens/s out", number(run.throughput), number(was) if was else "", change(was, run.throughput))
    )
    return f'<div style="display:flex;flex-wrap:wrap;gap:6px 22px;margin:6px 0">{"".join(figures)}</div>{_counts(run)}'


def _figure(name: str, value: str, was: str, changed: str) -> str:
    ghost = f'<div style="font-size:11px;opacity:.75">was {escape(was)}, {escape(changed)}</div>' if was else ""
    return (
        f'<div style="min-width:84px;line-height:1.25"><div style="font-size:11px;opacity:.75">{escape(name)}</div>'
        f'<div style="font-size:19px;font-variant-numeric:tabular-nums">{escape(value)}</div>{ghost}</div>'
    )


def _counts(run: Run) -> str:
    """One line of what else happened; nothing that did not happen is mentioned."""
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
    return f'<div style="font-size:12px">{line}{alarm}</div>'


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


def phase_rows(run: Run, before: Run | None = None) -> list[tuple[str, ...]]:
    """Mean seconds per request in each phase, now and before; the last row is their sum, the mean E2E."""
    now, was = run.mean_phases(), before.mean_phases() if run.same_workload(before) else None
    total = sum(now.values())
    rows = []
    for phase in PHASES:
        share = f"{100 * now[phase] / total:.0f}%" if total else "–"
        row = (_name(phase, run), seconds(now[phase]), share)
        if was:
            matters = abs(now[phase] - was[phase]) > NEGLIGIBLE * total
            row = (*row, seconds(was[phase]), change(was[phase], now[phase]) if matters else "≈")
        rows.append(row)
    row = ("E2E, their sum", seconds(total), "100%")
    rows.append((*row, seconds(sum(was.values())), change(sum(was.values()), total)) if was else row)
    return rows


def _name(phase: str, run: Run) -> str:
    """Its label, and whether it was seen."""
    inferred = run.remote is not None and phase in run.remote.inferred
    return f"{PHASE_LABELS[phase]} (inferred)" if inferred else PHASE_LABELS[phase]


def phase_table(run: Run, before: Run | None = None) -> Html:
    """The difference per phase as a table."""
    header = ("phase, mean per request", "this run", "share")
    if run.same_workload(before):
        header = (*header, "previous", "change")
    rows = phase_rows(run, before)
    text = "\n".join("  ".join(f"{cell:>16}" for cell in row) for row in (header, *rows))
    return Html(_coloured(table(header, rows)), text)


def _coloured(html: str) -> str:
    """Put each phase's swatch before its name."""
    for phase in PHASES:
        look = f"display:inline-block;width:10px;height:10px;margin-right:6px;background:{PHASE_COLOURS[phase]}"
        swatch = f'<span style="{look}"></span>'
        for end in ("</th>", " (inferred)</th>"):
            html = html.replace(f">{PHASE_LABELS[phase]}{end}", f">{swatch}{PHASE_LABELS[phase]}{end}")
    return html
