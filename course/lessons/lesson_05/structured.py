"""What structured output costs: grammar masks in the sampler, beside the step that they are a part of."""

from dataclasses import dataclass
from statistics import median

from course.lab.display import Html, as_table
from course.lab.finding import Finding, tell
from course.lab.lab import Lab
from course.lab.run import Run
from course.lab.style import seconds
from course.lab.workloads import Arrival, Workload
from minillm import SamplingParams, StructuredOutputsParams
from minillm.core.timeline import StepRecord

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "capital": {"type": "string", "maxLength": 20},
        "population_millions": {"type": "integer"},
        "languages": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
    },
    "required": ["name", "capital", "population_millions", "languages"],
}
COUNTRIES = ("France", "Japan", "Brazil", "Kenya", "Norway", "Peru", "India", "Italy")
TOKENS = 24


@dataclass(frozen=True)
class Guided(Arrival):
    """A request whose answer has to match the schema."""

    @property
    def params(self) -> SamplingParams:
        schema = StructuredOutputsParams(json=SCHEMA)
        return SamplingParams(temperature=0.0, max_tokens=self.max_tokens, structured_outputs=schema)


def workload(batch: int, guided: bool) -> Workload:
    """So many countries at once, described as JSON."""
    kind = Guided if guided else Arrival
    prompts = [f"Describe the country {COUNTRIES[i % len(COUNTRIES)]} as JSON." for i in range(batch)]
    return Workload(f"{batch} as JSON", "", tuple(kind(0.0, prompt, TOKENS) for prompt in prompts))


@dataclass(frozen=True)
class Cost:
    """Medians over decode steps, seconds."""

    batch: int
    plain: float
    guided: float
    mask: float
    text: str
    """The first guided answer."""


def measure(lab: Lab, batches: tuple[int, ...] = (1, 8)) -> list[Cost]:
    found = []
    for batch in batches:
        runs = [lab.run(workload(batch, guided), max_num_seqs=batch) for guided in (False, True)]
        plain, guided = ([s.end - s.start for s in _decodes(run)] for run in runs)
        masks = [step.stages["mask"] for step in _decodes(runs[1]) if "mask" in step.stages]
        found.append(Cost(batch, median(plain), median(guided), median(masks), runs[1].row_of(0).text))
    return found


def _decodes(run: Run) -> list[StepRecord]:
    return [step for step in run.steps if step.num_tokens and not step.num_prefill_tokens]


def costs_table(found: list[Cost]) -> Html:
    rows = [
        (str(c.batch), seconds(c.plain), seconds(c.guided), seconds(c.mask), f"{c.mask / c.guided:.1%}") for c in found
    ]
    return as_table(("batch", "decode step", "with a schema", "of it, masks", "share"), rows)


def told(found: list[Cost]) -> Finding:
    """What masks cost here, and would on a step of a few milliseconds."""
    one, many = found[0], found[-1]
    ends = {"one": one.mask, "many": many.mask, "batch": many.batch, "share": many.mask / many.guided}
    return tell("05", "structured", "here", text=one.text, **ends)
