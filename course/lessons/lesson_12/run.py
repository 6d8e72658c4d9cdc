"""What lesson 12 plays: two incidents that look alike, and the same two illnesses on the engine of this machine."""

from collections.abc import Mapping

from course.incidents import Incident
from course.incidents.interventions import BY_ID as CHANGES
from course.incidents.questions_clients import OFFERED_LAST_WEEK
from course.incidents.reveal import Reveal
from course.lab.lab import Lab
from course.lab.run import Run
from course.lab.scale import is_short

FIRST, SECOND = ("few_slots", 26), ("kv_pool", 244)
"""Causes and seeds of two that look alike; that they do is tested."""
TRIED = (
    "kv_budget",
    "int8_kv",
    "double_fleet",
    "warm_pool",
    "bound_queue",
    "more_slots",
    "fewer_slots",
    "int8_weights",
    "smaller_chunks",
    "output_limit",
)
"""Changes that are tried out on the second; in the short form, the first few."""
NUM_SHORT = 4


def first() -> Incident:
    """The one to play."""
    return _named("the first of lesson 12", *FIRST)


def second() -> Incident:
    """The one that is taken apart in cells."""
    return _named("the second of lesson 12", *SECOND)


def _named(name: str, cause: str, seed: int) -> Incident:
    """An incident whose name doesn't tell its cause."""
    incident = Incident.generate(seed, cause=cause)
    incident.name = name
    return incident


def change_texts(*ids: str) -> list[str]:
    """What these changes are, in words, in alphabetical order; and that none of them may help."""
    return [*sorted(CHANGES[name].text for name in ids), NONE_HELPS]


NONE_HELPS = "none of them"


def truth(incident: Incident) -> Reveal:
    """The reveal, with the counterfactuals of ten changes; of four in the short form."""
    return incident.reveal(TRIED[:NUM_SHORT] if is_short() else TRIED)


ALIKE = 1.5
"""Two numbers within this factor don't tell incidents apart."""
TOLD_BY: Mapping[str, str] = {
    "arrivals": "Arrivals against last week",
    "queue_over_time": "Is the queue growing?",
    "gpu": "GPU utilization",
    "kv_use": "How much of the KV pool is held?",
}


def reading(incident: Incident, question: str) -> float:
    """The one number that an on-call engineer reads off the answer.

    Returns:
        arrivals: requests a second over last week's; queue: waiting in the last third over the second; gpu and KV:
        percent.
    """
    if question == "arrivals":
        rates = incident.ask(question).data["mean"]
        return float(rates["offered"] / rates[OFFERED_LAST_WEEK])
    if question == "queue_over_time":
        waiting = incident.ask(question).data["waiting, mean"]
        _, second, last = waiting
        return float(last / max(second, 1e-9))
    data = incident.ask(question).data
    return float(data["busy, %"].mean() if question == "gpu" else data["max"].iloc[0])


TRAFFIC = "burst"
ROOM_FOR = 2
"""Requests, of as many as come at once: so many slots, or room in the pool for so many."""
LONGEST, BLOCK = 512, 16
"""Tokens that are reserved for each request, and tokens a block."""


def three_engines(lab: Lab) -> dict[str, Run]:
    """The same burst for a healthy engine, one with few slots, and one with every slot and a small pool.

    The first two have room for twice as many requests as come: a pool that just fits would read as full.
    """
    count = len(lab.workload(TRAFFIC).arrivals)
    reserved = {"kv_reservation": "max_len", "max_model_len": LONGEST, "block_size": BLOCK}
    pool, small = (requests * LONGEST // BLOCK for requests in (2 * count, ROOM_FOR))
    return {
        "healthy": lab.run(TRAFFIC, max_num_seqs=count, num_kv_blocks=pool, **reserved),
        "few slots": lab.run(TRAFFIC, max_num_seqs=ROOM_FOR, num_kv_blocks=pool, **reserved),
        "small pool": lab.run(TRAFFIC, max_num_seqs=count, num_kv_blocks=small, **reserved),
    }


def pool_held(run: Run) -> float:
    """The share of the KV pool in use in the fullest step."""
    return max((step.kv_blocks_used / step.kv_blocks_total for step in run.steps), default=0.0)
