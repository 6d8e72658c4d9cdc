"""Panels of lesson 04: the prompt editor and its template, beads and policies with sliders, a hosted cache."""

import json
import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

import ipywidgets as widgets

from course.lab.display import Html, stack, trouble
from course.lab.explorer import Explorer, choices, slider, switch
from course.lab.lab import Lab
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.prefix_cache import block_size_of, chain_of, count_tokens, model_hit_rate, trace_of_prompts
from course.lab.prompt_linter import LintFinding, findings_table, in_order, lint
from course.lab.run import Run
from course.lab.svg import Picture
from course.lab.texts import MANUAL, MANUAL_QUESTIONS
from course.lab.workloads import LabWorkload
from course.lessons.lesson_04.pictures import draw_chains, draw_finds, draw_tree, explore_policies
from course.lessons.lesson_04.run import one_by_one, stamp

# ---------------------------------------------------------------- a prompt as a template

AS_FOUND = """\
It is {time}.
Session: {session}
User: {user}
Tools: {tools}
You are the assistant of a small harbour office. Use the tools, and answer from the handbook, in one sentence.
{documents}
Question: {question}"""
"""How many services really send it: whatever is at hand first."""

TEMPLATE_STEPS = ("as shipped", "time to the end", "session id to the end", "user name to the end", "tools sorted")
"""One fix after the other, from the top."""

TEMPLATE_TOOLS = (
    {"name": "tide_table", "description": "the tides of a day", "arguments": {"day": "date", "gauge": "text"}},
    {"name": "book_mooring", "description": "reserve a place", "arguments": {"boat": "text", "nights": "number"}},
    {"name": "crane_slot", "description": "ask for the crane", "arguments": {"boat": "text", "tonnes": "number"}},
    {"name": "weather", "description": "wind and waves", "arguments": {"day": "date", "place": "text"}},
)
TEMPLATE_USERS = ("tern", "gannet", "plover")
SAMPLE_SIZE = 6


def template_fields(number: int, sort_tools: bool = False, pages: int = 3) -> dict[str, str]:
    """The value of each field in request `number`. Always the same for the same number."""
    rng = random.Random(f"request {number}")
    tools: object = _shuffled(list(TEMPLATE_TOOLS), rng)
    documents = MANUAL[:pages] if number % 3 != 1 else MANUAL[-pages:]
    return {
        "time": f"09:{14 + number // 8:02}:{(2 + 7 * number) % 60:02} on 14 March 2026",
        "date": "14 March 2026",
        "session": f"{rng.getrandbits(64):016x}",
        "user": TEMPLATE_USERS[number % len(TEMPLATE_USERS)],
        "tools": json.dumps(in_order(tools) if sort_tools else tools),
        "documents": "\n".join(documents),
        "question": MANUAL_QUESTIONS[number % len(MANUAL_QUESTIONS)],
    }


def _shuffled(data: object, rng: random.Random) -> object:
    """In random order, as from a program that keeps its tools in a set and its keys unsorted."""
    if isinstance(data, dict):
        return {key: _shuffled(data[key], rng) for key in rng.sample(sorted(data), len(data))}
    return [_shuffled(each, rng) for each in rng.sample(data, len(data))] if isinstance(data, list) else data


def render_template(template: str, number: int, sort_tools: bool = False, pages: int = 3) -> str:
    """The prompt of request `number`.

    Raises:
        ValueError: the template names a field that there is not.
    """
    known = template_fields(number, sort_tools, pages)

    def value(found: re.Match[str]) -> str:
        if found.group(1) not in known:
            raise ValueError(f"there is no field {{{found.group(1)}}}; there are {', '.join(known)}")
        return known[found.group(1)]

    return re.sub(r"\{(\w+)\}", value, template)


def sample_prompts(text: str, sort_tools: bool, count: int = SAMPLE_SIZE, pages: int = 3) -> list[str]:
    """A sample of what the service sends."""
    return [render_template(text, number, sort_tools, pages) for number in range(count)]


def by_stability(text: str, sort_tools: bool) -> str:
    """The same lines, those that change least often first; lines that change equally often keep their order."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(sorted(lines, key=lambda line: len(set(sample_prompts(line, sort_tools)))))


def template_step(name: str) -> tuple[str, bool]:
    """The template after one of STEPS, and whether tools are sorted then."""
    lines = AS_FOUND.splitlines()
    moved = min(TEMPLATE_STEPS.index(name), 3)
    return "\n".join([*lines[moved:-1], *lines[:moved], lines[-1]]), name == TEMPLATE_STEPS[-1]


def template_workload(lab: Lab, template: str, sort_tools: bool, name: str = "template") -> LabWorkload:
    """The sample as traffic, one request at a time; shorter in the lab's short form."""
    count, pages = (SAMPLE_SIZE, 3) if lab.scale == 1 else (3, 1)
    return one_by_one(name, "One service's requests.", sample_prompts(template, sort_tools, count, pages))


def step_workload(lab: Lab, name: str) -> LabWorkload:
    """The sample after one of STEPS."""
    return template_workload(lab, *template_step(name), name)


def template_ladder(lab: Lab) -> dict[str, float]:
    """After each of the template's fixes: what a roomy cache finds of the sample. Counted, not timed."""
    size = block_size_of(lab)
    return {
        name: model_hit_rate(trace_of_prompts(lab, sample_prompts(*template_step(name)), size))
        for name in TEMPLATE_STEPS
    }


# ---------------------------------------------------------------- the prompt editor

FRAME_S = 0.3
"""Between two pictures of a run in progress."""


class PromptEditor(Explorer):
    """A template with a linter beside it, a button that reorders it, and a button that runs it.

    Args:
        lab: whose engine plays it.
    """

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.block_size = block_size_of(lab)
        self.runs: list[Run] = []
        """Played so far; the last two are shown."""
        self.findings: list[LintFinding] = []
        self.expected = 0.0
        """Share of the sample's prompt tokens that an empty, roomy cache will find."""
        wide = widgets.Layout(width="100%")
        super().__init__(
            self._play,
            button="Run on the engine",
            text=widgets.Textarea(AS_FOUND, rows=8, layout=wide),
            sort_tools=switch("tools and keys in one fixed order"),
        )
        self.report = widgets.HTML(layout=wide)
        for control in self.controls.values():
            control.observe(lambda _: self._check(), names="value")
        self._check()
        reorder = widgets.Button(description="Reorder by stability", layout=widgets.Layout(width="auto"))
        reorder.on_click(lambda _: self.reorder())
        fields = widgets.HTML(f"<small>fields: {', '.join(template_fields(0))}</small>")
        text, sort_tools, run, growing, view = self.widget.children
        self.widget.children = (text, fields, sort_tools, widgets.HBox([reorder, run]), self.report, growing, view)

    def reorder(self) -> "PromptEditor":
        """What changes least often first."""
        return self.set(text=by_stability(**self.values))

    def _play(self, text: str, sort_tools: bool) -> Iterator[Picture]:
        """Play the sample; the picture follows it."""
        session = self.lab.start(template_workload(self.lab, text, sort_tools), self.lab.config())
        while not session.wait(FRAME_S):
            yield self._draw_last(*self.runs, session.run())
        self.runs.append(session.run())
        yield self._draw_last(*self.runs)

    def _draw_last(self, *runs: Run) -> Picture:
        names = ("before this", "this run")
        return draw_finds(dict(zip(names[-len(runs) :], runs[-2:])))

    def _check(self) -> None:
        """Lint what is written, and count what a cache would find of it."""
        try:
            sample = sample_prompts(**self.values)
        except ValueError as error:
            self.report.value = trouble(str(error))
            return
        self.findings = lint(sample, lambda line: count_tokens(self.lab, line))
        self.expected = model_hit_rate(trace_of_prompts(self.lab, sample, self.block_size))
        found = f"Of {SAMPLE_SIZE} such requests' tokens, a cache can find <b>{self.expected:.0%}</b>."
        self.report.value = f"{findings_table(self.findings).html}<p>{found}</p>"

    def static_html(self) -> str:
        written = f'<pre style="white-space:pre-wrap">{escape(self.values["text"])}</pre>'
        return written + self.report.value + self.view.value


def lint_prompts(lab: Lab, *prompts: str) -> Html:
    """Lint your own prompts: one, for lines that look suspicious; several from one service, for what really differs."""
    return findings_table(lint(prompts, lambda line: count_tokens(lab, line)))


# ---------------------------------------------------------------- beads and policies with sliders

SENTENCES = [sentence.strip() + "." for page in MANUAL[:3] for sentence in page.strip(".").split(". ")]
"""The sentences of both prompts in the bead picture."""


def with_time(place: int, number: int) -> str:
    """The sentences, with the time of request `number` behind the first `place` of them."""
    return " ".join([*SENTENCES[:place], stamp(number), *SENTENCES[place:]])


def bead_explorer(lab: Lab) -> Explorer:
    """Two prompts that differ in a time only: drag it through the text."""

    def draw(place: int, block: int) -> Html:
        texts = [with_time(place, number) for number in (0, 1)]
        chains = [chain_of(lab, each, block) for each in texts]
        return stack(draw_chains(*chains, block), draw_tree(lab, *texts, block))

    return Explorer(
        draw,
        place=slider("sentences before the time", 0, len(SENTENCES), 4),
        block=choices("tokens per block", [8, 16, 32, 64], 16),
    )


def policy_explorer() -> Explorer:
    """Returning users, a cache, and four eviction policies."""
    return Explorer(
        explore_policies,
        users=slider("users", 2, 12, 6),
        turns=slider("turns each", 2, 8, 5),
        gap_s=choices("mean gap between turns, s", [30.0, 60.0, 180.0, 600.0, 1800.0], 180.0),
        limit_s=choices("time limit, s", [60.0, 300.0, 900.0, 3600.0], 300.0),
    )


# ---------------------------------------------------------------- a hosted cache


@dataclass(frozen=True)
class CachePrice:
    """A published price list's multipliers of the price of an input token, and how long an entry lives."""

    write: float
    read: float
    ttl_s: float

    def hit_rate(self, per_hour: float) -> float:
        """Share of requests that find the prefix, when they arrive at random (Poisson) and each use renews it."""
        return 1 - math.exp(-per_hour * self.ttl_s / 3600)

    def cost(self, per_hour: float) -> float:
        """Mean price of the prefix per request, as a multiple of not caching it."""
        hit = self.hit_rate(per_hour)
        return hit * self.read + (1 - hit) * self.write

    @property
    def break_even(self) -> float:
        """Requests per hour from which on caching pays."""
        missing = (1 - self.read) / (self.write - self.read)
        return -math.log(missing) / self.ttl_s * 3600 if missing < 1 else 0.0


PRICE_LISTS = {
    "write 1.25x, read 0.1x, 5 minutes": CachePrice(1.25, 0.1, 300),
    "write 1.25x, read 0.1x, 30 minutes": CachePrice(1.25, 0.1, 1800),
    "write 2x, read 0.1x, 1 hour": CachePrice(2.0, 0.1, 3600),
}
"""Anthropic's two (platform.claude.com, Prompt caching); between them OpenAI's from GPT-5.6 on (developers.openai.com,
Prompt caching), where 30 minutes is the least, and renewal by use isn't promised. Read in November 2026.
"""
PER_HOUR = (0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def draw_hosted(per_hour: float, prefix: int, dollars: float) -> Picture:
    """What the prefix costs per request, against how often it's used.

    Args:
        dollars: per million uncached input tokens.
    """
    plain = prefix * dollars / 1e6
    curves = [
        Curve(name, PER_HOUR, [1000 * plain * rate.cost(n) for n in PER_HOUR]) for name, rate in PRICE_LISTS.items()
    ]
    curves.append(Curve("not cached", PER_HOUR, [1000 * plain] * len(PER_HOUR), style="dashes"))
    return draw_chart(
        "When does a hosted prompt cache pay?",
        curves,
        Axis("requests with this prefix, per hour", log=True),
        Axis("prefix, dollars per 1,000 requests", low=0),
        [Mark(f"{per_hour:g} per hour", x=per_hour)],
    )


def hosted_explorer() -> Explorer:
    """How often, how long, at what price."""
    return Explorer(
        draw_hosted,
        per_hour=choices("requests per hour", list(PER_HOUR), 12),
        prefix=slider("prefix, tokens", 1024, 32768, 4096, 1024),
        dollars=choices("$ per million input tokens", [0.5, 1.0, 3.0, 5.0, 15.0], 3.0),
    )
