"""Pictures and tables of lesson 08: acceptance, costs and gains, drafters, and two distributions."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from course.lab import simulated_70b
from course.lab.display import Html, as_table, stack
from course.lab.draft_rules import DRAWS, RULES, NextToken, distance, drafter, usual_distance
from course.lab.explorer import Explorer, buttons, choices, slider
from course.lab.lab import Lab
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.pictures.draft_tiles import OWN, PASSED, shown
from course.lab.simulated_70b import OLD, TODAY
from course.lab.speculation_gain import accepted_share, best_k, break_even, emitted, popular
from course.lab.style import ALARM, COLOURS, WIDTH, number, seconds, size
from course.lab.svg import FAINT, HALO, INK, SOFT, Picture, line, rect, swatches, tag, text
from course.lab.verify_costs import VerifyCosts, gain
from course.lessons.lesson_08 import simulated
from course.lessons.lesson_08.run import (
    WITHOUT,
    AcceptancePoint,
    WorkloadRuns,
    base_of,
    faster,
    measure_acceptance,
)
from course.simulator.cost.models import find_model

# ---------------------------------------------------------------- acceptance

ALPHAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
KS = (1, 2, 4, 6, 8)
START_K = 8
"""Long enough for the two formulas to part."""


def draw_places(points: Sequence[AcceptancePoint]) -> Picture:
    """How often is each place of a draft reached and passed? Measured, beside alpha to the power of the place."""
    curves = []
    for point, colour in zip(points, COLOURS):
        places, powers = list(range(1, point.k + 1)), [point.alpha**p for p in range(1, point.k + 1)]
        curves.append(Curve(f"α = {point.alpha:g}, measured", places, point.by_place, colour=colour))
        curves.append(Curve(f"α^position, α = {point.alpha:g}", places, powers, "dashes", colour))
    told = "; ".join(
        f"α = {p.alpha:g}: {', '.join(f'{share:.0%}' for share in p.by_place)}, by the formula "
        f"{', '.join(f'{p.alpha**place:.0%}' for place in range(1, p.k + 1))}"
        for p in points
    )
    return draw_chart(
        "How often is each position of a draft accepted?",
        curves,
        Axis("position in the draft (1 = the first token)"),
        Axis("share of drafts in which it was accepted", low=0, high=1.02),
        description=told,
    )


def draw_emitted(points: Sequence[AcceptancePoint], k: int, newest: AcceptancePoint | None = None) -> Picture:
    """Tokens a verification yields, by acceptance: two formulas for one k, and what was measured.

    Args:
        points: those of this k are shown.
        newest: to be ringed.
    """
    alphas = [i / 40 for i in range(41)]
    sparse = [i / 8 for i in range(9)]
    mine = [point for point in points if point.k == k]
    curves = [
        Curve("1 + α + α² + … + α^k", alphas, [emitted(a, k) for a in alphas], "dashes"),
        Curve("k × α, never below 1", sparse, [popular(a, k) for a in sparse], "line"),
        Curve("measured", [p.alpha for p in mine], [p.emitted for p in mine], "points"),
    ]
    marks = [Mark(f"{number(newest.emitted)}", newest.alpha, newest.emitted)] if newest and newest.k == k else []
    found = "; ".join(
        f"α = {p.alpha:g}: measured {number(p.emitted)}, the sum says {number(p.formula)}, k × α {number(p.popular)}"
        for p in mine
    )
    return draw_chart(
        f"Drafts of {k}: how many tokens does a verification yield?",
        curves,
        Axis("α: probability that a draft token is accepted", low=0, high=1.02),
        Axis("tokens per verification", low=0.8, high=k + 1.2),
        marks,
        description=found or "Nothing measured for this k yet.",
    )


class AcceptanceLab(Explorer):
    """Every press makes drafts that pass with a chosen chance, and the real engine checks them.

    Args:
        points: to begin with.
    """

    def __init__(self, lab: Lab, points: Sequence[AcceptancePoint]) -> None:
        self.lab, self.points = lab, list(points)
        super().__init__(
            self._measure,
            button="Draft and verify",
            alpha=choices("α, acceptance", ALPHAS, 0.6),
            k=choices("k, tokens in a draft", KS, START_K),
        )
        self.showing(draw_emitted(self.points, START_K))

    def _measure(self, alpha: float, k: int) -> Iterator[Picture]:
        yield draw_emitted(self.points, k)
        point = measure_acceptance(self.lab, alpha, k)
        self.points.append(point)
        yield draw_emitted(self.points, k, point)


# ---------------------------------------------------------------- what checking costs, and what drafting gains


def costs_table(costs: VerifyCosts) -> Html:
    """By batch: a plain step, and how many of them a verification takes."""
    lengths = [k for k in costs.lengths if k]
    rows = [
        (str(batch), seconds(costs.seconds(batch, 0)), *(f"×{costs.relative(batch, k):.2f}" for k in lengths))
        for batch in costs.batches
    ]
    checks = [f"checks {k} draft token{'s' * (k > 1)}" for k in lengths]
    table = as_table(("batch", "plain step", *checks), rows)
    return stack(Html(f"<p>{costs.doubt}</p>", costs.doubt), table) if costs.doubt else table


DASHBOARD_ALPHAS = (0.3, 0.6, 0.8, 0.9)


def dashboard_table(k: int = 4) -> Html:
    """By α: what a server's log and metrics say of drafts of k."""
    rows = [
        (f"{alpha:g}", number(emitted(alpha, k)), f"{accepted_share(alpha, k):.0%}", f"{alpha**k:.0%}")
        for alpha in DASHBOARD_ALPHAS
    ]
    header = ("α", "mean acceptance length", "acceptance rate on dashboards", f"acceptance at position {k}")
    return as_table(header, rows)


LONGEST = 8


def price_lab(costs: VerifyCosts) -> Explorer:
    """The four sliders over one picture."""
    return Explorer(
        lambda alpha, k, c, batch: draw_gain(costs, alpha, k, c, batch),
        alpha=slider("α, acceptance", 0.0, 1.0, 0.6, 0.05),
        k=slider("k, tokens in a draft", 1, LONGEST, 4),
        c=slider("c, the cost of a draft token in steps", 0.0, 1.0, 0.1, 0.05),
        batch=choices("batch, requests", costs.batches, costs.batches[0]),
    )


def draw_gain(costs: VerifyCosts, alpha: float, k: int, c: float, batch: int) -> Picture:
    """The speedup at every batch; for one of them also the acceptance at which it breaks even, and the best k."""
    gains = [gain(costs, each, k, alpha, c) for each in costs.batches]
    here = gain(costs, batch, k, alpha, c)
    border = break_even(k, c, costs.relative(batch, k))
    words = "it loses at any α" if border is None else f"it gains above α = {border:.2f}"
    best = best_k(alpha, c, lambda length: costs.relative(batch, length), LONGEST)
    return draw_chart(
        f"{costs.doubt}×{here:.2f} at batch {batch}: {words}; the best k here is {best}",
        [Curve("speedup", costs.batches, gains)],
        Axis("batch, requests", log=True),
        Axis("speedup (×)", low=0, high=max(2.0, *gains) * 1.15),
        [Mark("below: it loses", y=1.0), Mark(f"×{here:.2f}", batch, here)],
        description=", ".join(f"batch {b}: ×{g:.2f}" for b, g in zip(costs.batches, gains)) + f". {words}.",
    )


# ---------------------------------------------------------------- where it pays at 70B

MAP_ALPHAS = tuple(i / 20 for i in range(21))
MAP_LEFT, MAP_TOP, CELL_WIDTH, CELL_HEIGHT = 70, 20, 28, 24
STRONGEST = 1.0
"""Speedup is drawn in full colour from this far above or below 1."""


@functools.cache
def map_rounds(k: int, context: int, drafts: str, under: str) -> dict[int, simulated.RoundPrices]:
    on = simulated_70b.deployment(stack=under)
    room = simulated_70b.room_tokens(on) // (context + k + 1)
    return {
        b: simulated.price_round(on, b, context, k, simulated.DRAFTERS[drafts]) for b in simulated.BATCHES if b <= room
    }


def draw_gain_map(k: int, context: int, drafts: str, under: str) -> Picture:
    """A cell for each acceptance and batch; violet gains, red loses."""
    found = map_rounds(k, context, drafts, under)
    body, numbers, line = "", "", []
    for row, (batch, each) in enumerate(found.items()):
        y = MAP_TOP + CELL_HEIGHT * row
        body += text(MAP_LEFT - 8, y + 16, str(batch), text_anchor="end")
        for i, alpha in enumerate(MAP_ALPHAS):
            gain = each.gain(alpha, k)
            strength = min(abs(gain - 1) / STRONGEST, 1.0)
            fill = COLOURS[0] if gain >= 1 else ALARM
            body += rect(
                MAP_LEFT + CELL_WIDTH * i,
                y,
                CELL_WIDTH - 1,
                CELL_HEIGHT - 1,
                fill=fill,
                fill_opacity=0.12 + 0.6 * strength,
            )
            if i % 4 == 0:
                numbers += text(
                    MAP_LEFT + CELL_WIDTH * (i + 0.5), y + 16, number(gain), size=11, text_anchor="middle", **HALO
                )
        border = break_even(k, each.c, each.verify / each.plain)
        line.append(
            (MAP_LEFT + CELL_WIDTH * (20.5 if border is None else 20 * border + 0.5), y + CELL_HEIGHT / 2, border)
        )
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in line)
    bottom = MAP_TOP + CELL_HEIGHT * len(found)
    body += tag("polyline", points=points, fill="none", stroke=INK, stroke_width=2.5) + numbers
    for i in range(0, 21, 4):
        body += text(
            MAP_LEFT + CELL_WIDTH * (i + 0.5),
            bottom + 14,
            f"{MAP_ALPHAS[i]:.1f}",
            size=11,
            fill=SOFT,
            text_anchor="middle",
        )
    body += text(MAP_LEFT + CELL_WIDTH * 10.5, bottom + 32, "α, acceptance", fill=SOFT, text_anchor="middle")
    body += text(4, MAP_TOP - 6, "batch", fill=SOFT)
    told = ", ".join(
        f"batch {b}: above {e:.2f}" if e is not None else f"batch {b}: never" for b, (*_, e) in zip(found, line)
    )
    return Picture("Where does speculation pay? (on the line it breaks even)", body, bottom + 40, description=told)


def gain_map() -> Explorer:
    return Explorer(
        draw_gain_map,
        k=slider("k, tokens in a draft", 1, 8, 4),
        context=choices("context of each, tokens", simulated.CONTEXTS, 1024),
        drafts=buttons("drafts by", list(simulated.DRAFTERS)),
        under=buttons("serving stack", [TODAY, OLD], TODAY),
    )


# ---------------------------------------------------------------- today's drafters

K = 4
TARGET = find_model("llama-3-70b")
LAYER = 2 * TARGET.layer_params / TARGET.layers
"""Bytes of one layer in 16 bits."""
DRAFT_VOCABULARY = 32_000
"""Tokens that EAGLE-3's head for Llama-3 scores, of 128,256."""
QKV_SIZE = (TARGET.num_heads + 2 * TARGET.num_kv_heads) * TARGET.head_dim
EAGLE_INPUTS = 2 * TARGET.hidden * QKV_SIZE + 2 * 3 * TARGET.hidden**2 / K
"""Bytes that a guess of EAGLE-3 reads beyond a usual layer: queries, keys and values come from a token and a feature,
an input twice as wide; and once a draft, features of three layers are made one."""


@dataclass(frozen=True)
class Drafter:
    """One way to guess."""

    what: str
    read: float
    """Bytes that one guess reads, at least."""
    published: str

    @property
    def c(self) -> float:
        """A guess in decode steps, at best: its bytes over the target's."""
        return self.read / (TARGET.read_bytes("bfloat16"))


TODAYS_DRAFTERS = {
    "n-gram lookup": Drafter("a search in the text so far", 0.0, "free; accepted when the answer copies the prompt"),
    "draft model, 1B": Drafter(
        "a small model of the same family",
        find_model("llama-3.2-1b").read_bytes("bfloat16"),
        "needs its own KV cache, and a prefill of every prompt",
    ),
    "EAGLE-3 head": Drafter(
        "one layer on the target's own features",
        LAYER + EAGLE_INPUTS + 2 * DRAFT_VOCABULARY * TARGET.hidden,
        "the paper's best case 6.5x at batch 1; 1.38x throughput at batch 64 (SGLang, H100)",
    ),
    "MTP module": Drafter(
        "one layer trained with the model",
        LAYER + 2 * TARGET.vocab_size * TARGET.hidden,
        "second token accepted 85 to 90%, 1.8x (DeepSeek-V3)",
    ),
}


def drafters_table() -> Html:
    """Each drafter: its bytes, its price at best, and the acceptance it needs."""
    rows = []
    for name, each in TODAYS_DRAFTERS.items():
        needed = break_even(K, each.c)
        rows.append((name, each.what, size(each.read), f"{each.c:.3f}", f"{needed or 0:.2f}", each.published))
    header = ("drafter", "what it is", "reads per draft token", "c, at best", f"α to break even, k = {K}", "notes")
    return as_table(header, rows)


# ---------------------------------------------------------------- served in several ways

STRIP_LEFT, STRIP_RIGHT, STRIP_TOP = 150, 12, 44
STRIP_LANE, STRIP_ROW, STRIP_GAP = 64, 6, 0.6
"""Height of a run's lane, height of a token in it, space between two steps."""


def served_table(every: Sequence[WorkloadRuns]) -> Html:
    """For each workload and way: what passed, and what it gained."""
    columns: dict[str, Callable[[WorkloadRuns], str]] = {
        "requests": lambda one: one.workload,
        "drafts": lambda one: one.way,
        "accepted, of those tested (α)": lambda one: _or_dash(one.acceptance, "{:.0%}".format),
        "of all proposed": lambda one: _or_dash(one.accepted_share, "{:.0%}".format),
        "tokens per verification": lambda one: _or_dash(one.drafts.emitted_per_verify, number),
        "steps with a draft": lambda one: f"{one.drafting_share:.0%}",
        "time per token": lambda one: seconds(one.decode_s),
        "speed": lambda one: "" if one.way == WITHOUT else f"×{faster(one, base_of(one, every)):.2f}",
        "E2E": lambda one: seconds(one.e2e_s),
    }
    return as_table(tuple(columns), [tuple(cell(one) for cell in columns.values()) for one in every])


def _or_dash(value: float | None, written: Callable[[float], str]) -> str:
    return "–" if value is None else written(value)


def draw_strips(every: Sequence[WorkloadRuns]) -> Picture:
    """Every step of some runs as a column: what passed, what failed, and where the gates drafted nothing."""
    speculating = [one for one in every if one.way != WITHOUT]
    fills = {"the model's own": OWN, "accepted draft tokens": PASSED, "rejected": ALARM}
    body, most = swatches(STRIP_LEFT, 18, fills), max(_num_turns(one) for one in speculating)
    step = (WIDTH - STRIP_LEFT - STRIP_RIGHT) / max(most, 1)
    wide = max(step - STRIP_GAP, STRIP_GAP)
    for i, one in enumerate(speculating):
        floor = STRIP_TOP + STRIP_LANE * (i + 1) - 8
        kind = one.workload.split(",")[0]
        body += text(4, floor - 22, kind, size=12, font_weight="bold")
        body += text(4, floor - 7, one.way, size=11, fill=SOFT)
        body += line(STRIP_LEFT, floor, WIDTH - STRIP_RIGHT, floor, stroke=FAINT)
        for j, (passed, failed) in enumerate(_columns(one)):
            x, top = STRIP_LEFT + j * step, floor
            for tokens, fill in ((1, OWN), (passed, PASSED), (failed, ALARM)):
                top -= STRIP_ROW * tokens
                if tokens:
                    body += rect(x, top, wide, STRIP_ROW * tokens, fill=fill)
    told = "; ".join(
        f"{one.workload}, {one.way}: {_num_turns(one)} steps, drafts in {one.drafting_share:.0%}, "
        f"accepted {_or_dash(one.acceptance, '{:.0%}'.format)}"
        for one in speculating
    )
    height = STRIP_TOP + STRIP_LANE * len(speculating) + 20
    body += text(STRIP_LEFT, height - 8, "steps, in order; the shorter a strip, the sooner done", size=11, fill=SOFT)
    return Picture("Where were drafts accepted, and where did the gates stop them?", body, height, description=told)


def _columns(one: WorkloadRuns) -> list[tuple[int, int]]:
    """For each turn of a request in decoding: guesses that passed, and that did not."""
    return [
        (share.num_accepted, share.num_drafts - share.num_accepted)
        for step in one.runs[-1].steps
        for share in step.shares
        if not share.is_prefill
    ]


def _num_turns(one: WorkloadRuns) -> int:
    return len(_columns(one))


# ---------------------------------------------------------------- two distributions


def overlap_lab(choice: NextToken) -> Explorer:
    """How good the drafter is, and by which rule its guesses are checked."""
    return Explorer(
        lambda skill, rule: draw_overlap(choice, skill, rule),
        skill=slider("how close the drafter is to the model", 0.0, 1.0, 0.5, 0.05),
        rule=buttons("rule", list(RULES)),
    )


def draw_overlap(choice: NextToken, skill: float, rule: str) -> Picture:
    """The model's distribution and the drafter's; points are what comes out, of thousands of guesses."""
    p = choice.coarse()
    q, rng = drafter(p, skill), torch.Generator().manual_seed(0)
    drafts = torch.multinomial(q, DRAWS, True, generator=rng)
    outcomes = RULES[rule](p, q, drafts, rng)
    out = outcomes.bincount(minlength=len(p)).double() / DRAWS
    off, (_, usual) = distance(out, p), usual_distance(p, DRAWS)
    passed = float(torch.minimum(p, q).sum())
    verdict = "as close as plain sampling" if off <= usual else "farther off than plain sampling"
    title = f"{off:.3f} from the model's own (plain sampling: within {usual:.3f}): {verdict}"
    places = range(len(p))
    return draw_chart(
        title,
        [
            Curve("p: the model", places, p.tolist()),
            Curve("q: the drafter", places, q.tolist(), "dashes"),
            Curve("what comes out", places, out.tolist(), "points"),
        ],
        Axis(
            f"next token; a draft token is accepted in {passed:.0%} of cases",
            names=(*map(shown, choice.names), "all others"),
        ),
        Axis("probability", low=0),
        description=f"After {choice.text!r} {passed:.0%} of drafts are accepted, the sum of min(p, q). {title}.",
    )
