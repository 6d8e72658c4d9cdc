"""Two well-known incidents, reproduced with the numbers that are reported of them."""

from collections.abc import Mapping
from dataclasses import replace

from course.lab.incidents.causes import CAUSES, Case, Cause, Draw
from course.lab.incidents.causes.base import lengths, loaded, service
from course.lab.incidents.causes.prefill import with_long_prompts
from course.lab.incidents.generate import Hidden, generate_of, look_up
from course.lab.incidents.outcome import Trials
from minillm.simulate.workload.kinds import Independent
from minillm.simulate.workload.lengths import Fixed

FAST = (("llama-3.1-70b", "h100-sxm", 4),)
SLOWER = (("llama-3.1-70b", "a100-80gb", 4),)
SLOTS, OLD_PROMPT, NEW_PROMPT = 96, 800, 2400
"""`max_num_seqs` was chosen when prompts had 800 tokens; they have three times as many now."""
CONTRACT = 15_000
"""Tokens of the prompt that all other requests wait for."""
SHARE_OF_CONTRACTS = 0.08


def three_months(draw: Draw) -> Case:
    kind = Independent(prompt=lengths(OLD_PROMPT, 0.3), output=lengths(120, 0.45, 3))
    before = loaded(service(draw, kind, machines=FAST, requests=340, max_num_seqs=SLOTS), 0.55)
    longer = kind.replace(prompt=lengths(NEW_PROMPT, 0.3))
    story = (
        "A team has worked on quantization for three months, because 'the model is too slow'. It is ready, and in a "
        "trial every token came faster. Before it ships: will it help, and what is slow?"
    )
    return Case(before, before.with_kind(longer), "Retrieval: three times the passages in each prompt", story=story)


def one_contract(draw: Draw) -> Case:
    kind = Independent(prompt=lengths(700, 0.4), output=lengths(30, 0.4, 3))
    s = service(draw, kind, machines=SLOWER, requests=340, max_num_batched_tokens=2048)
    before = loaded(s, 0.25)
    now = with_long_prompts(before, SHARE_OF_CONTRACTS, Fixed(tokens=CONTRACT))
    story = "All users complain, those with two-line questions most."
    return Case(before, now, "Legal team: whole contracts may be pasted in", target=0.85, story=story)


CLASSICS: Mapping[str, Cause] = {
    "three-months": replace(
        CAUSES["longer_prompts"], name="three-months", make=three_months, tempting="int8_weights",
        title="prompts three times as long: more prefill than the GPUs can do, however many slots there are",
    ),
    "straggler": replace(CAUSES["straggler"], name="one-contract", make=one_contract),
}  # fmt: skip


def draw_classic(name: str) -> tuple[Hidden, Trials]:
    """A classic; always the same.

    Raises:
        IncidentError: no such classic.
    """
    return generate_of(look_up("classic", name, CLASSICS), seed=0, difficulty=1)
