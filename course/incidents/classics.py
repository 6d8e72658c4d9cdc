"""Named incidents: two well-known ones, with the numbers that are reported of them, and cases that are harder."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from course.incidents.causes import CAUSES, Case, Cause, Draw
from course.incidents.causes.base import in_flight, lengths, loaded, service
from course.incidents.causes.decode import blocks_for, kv_pool, launch_bound, low_acceptance
from course.incidents.causes.outside import far_clients
from course.incidents.causes.prefill import blind_router, with_long_prompts
from course.incidents.causes.queue import few_slots
from course.incidents.generate import Hidden, generate_of, look_up
from course.incidents.outcome import ServiceTrials
from course.incidents.service import play
from course.simulator.cluster.network import Network
from course.simulator.workload.kinds import Independent
from course.simulator.workload.lengths import Fixed

FAST = (("llama-3.1-70b", "h100-sxm", 4),)
SLOWER = (("llama-3.1-70b", "a100-80gb", 4),)
SLOTS, OLD_PROMPT, NEW_PROMPT = 96, 800, 2400
"""`max_num_seqs` was chosen when prompts had 800 tokens; they have three times as many now."""
CONTRACT = 15_000
"""Tokens of the prompt that all other requests wait for."""
SHARE_OF_CONTRACTS = 0.032
"""Few enough that an SLO for 95% of the requests can do without them."""


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
    before = loaded(s, 0.45)
    now = with_long_prompts(before, SHARE_OF_CONTRACTS, Fixed(tokens=CONTRACT))
    story = "All users complain, those with two-line questions most."
    return Case(before, now, "Legal team: whole contracts may be pasted in", story=story)


# ---------------------------------------------------------------- two causes at once, each enough to break the SLO


def two_limits(draw: Draw) -> Case:
    case = few_slots(draw)
    before = case.before.with_engine(scheduler_reserve_full_isl=True)
    share = in_flight(play(before, 1)) / before.fleet.replicas * draw.uniform(0.35, 0.45)
    ill = {"num_kv_blocks": blocks_for(before, share), "max_num_seqs": case.now.engine.max_num_seqs}
    return Case(before, before.with_engine(**ill), "Settings copied from the smaller machines")


def proxy_and_eager(draw: Draw) -> Case:
    case = launch_bound(draw)
    held = Network(hold_chunks=24, hold_s=draw.uniform(1.0, 1.5))
    return replace(case, now=case.now.with_fleet(network=held), change=f"{case.change}; compression at the edge")


def template_and_router(draw: Draw) -> Case:
    case = blind_router(draw)
    kind = case.before.flows[0].kind.replace(stamp_tokens=24, stamp_first=False)
    before, now = case.before.with_kind(kind), case.now.with_kind(kind.replace(stamp_first=True))
    return replace(case, before=before, now=now, change=f"{case.change}; the current time in the prompt template")


# ---------------------------------------------------------------- that look like something else


def neighbour(draw: Draw) -> Case:
    before = kv_pool(draw).before
    blocks = blocks_for(before, in_flight(play(before, 1)) * draw.uniform(0.6, 0.65))
    now = replace(before.with_engine(num_kv_blocks=blocks), memory_taken=True)
    return Case(before, now, "A second model moved in on the same GPUs")


def launch_abroad(draw: Draw) -> Case:
    case = far_clients(draw)
    return replace(case, now=case.now.with_load(1.5), change="Launched in a second continent: half as many users again")


def blamed_on_bits(draw: Draw) -> Case:
    case = low_acceptance(draw)
    return replace(case, now=case.now.with_engine(quantization="int8"), change=f"int8 weights; {case.change}")


def _classics() -> Iterator[tuple[str, Cause]]:
    for name, words in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items():
        like, make = CAUSES[words.pop("like")], globals()[words.pop("make")]
        told = {key: tuple(value) if isinstance(value, list) else value for key, value in words.items()}
        names = (like.name, *told.pop("names", ()))
        yield name, replace(like, name=name, make=make, names=names, **told)


CLASSICS: Mapping[str, Cause] = dict(_classics())
"""Two post-mortems, three with two causes, and three that look like something else."""


def draw_classic(name: str) -> tuple[Hidden, ServiceTrials]:
    """A classic; always the same.

    Raises:
        IncidentError: no such classic.
    """
    return generate_of(look_up("classic", name, CLASSICS), seed=0, difficulty=1)
