"""What the runs of lesson 09 showed, in words."""

from collections.abc import Mapping

from course.lab.finding import Finding, tell
from course.lab.predict import Outcome
from course.lab.style import PHASE_LABELS, seconds
from course.lessons.lesson_09 import gate, steps
from course.lessons.lesson_09.formats import PLAIN
from course.lessons.lesson_09.phases import Pair
from course.lessons.lesson_09.sim_70b import Cramped
from course.measure.quality import Floors


def decode_gain(found: Mapping[str, Pair]) -> Outcome:
    """How many times as fast decode became: the answer to a prediction."""
    decode = found["decode"]
    return Outcome(1 / decode.ratio, f"decode {seconds(decode.was)} to {seconds(decode.now)}, {decode.told}")


def alone(found: Mapping[str, Pair]) -> Finding:
    """One request, a long answer: which phases moved."""
    way = {True: "shorter", False: "longer"}
    moved = [f"{PHASE_LABELS[n]} ({way[p.is_faster]})" for n, p in found.items() if n in PHASE_LABELS and p.is_clear]
    outcome = "faster" if found["decode"].is_faster else "slower" if found["decode"].is_slower else "same"
    told = {"was": found["decode"].was, "now": found["decode"].now, "gain": 1 / found["decode"].ratio}
    return tell("09", "alone", outcome, moved=", ".join(moved) or "none", **told)


def others(batch: Mapping[str, Pair], prompt: Mapping[str, Pair]) -> Finding:
    """A full batch and a long prompt."""
    slower = batch["E2E"].is_slower or prompt["E2E"].is_slower
    outcome = "hurt" if slower else "gain" if batch["E2E"].is_faster or prompt["E2E"].is_faster else "same"
    return tell("09", "others", outcome, batch=batch["E2E"].told, prompt=prompt["E2E"].told)


def by_batch(found: steps.Sweep) -> Finding:
    """From which batch on int8 stops paying here."""
    border = steps.break_even(found, "int8")
    ends = {"first": steps.speedup(found, "int8", 0), "last": steps.speedup(found, "int8", -1)}
    int4 = steps.speedup(found, "int4", 0) if "int4" in found else float("nan")
    return tell("09", "batch", "never" if border is None else "border", border=border or 0, int4=int4, **ends)


def quality(scores: gate.Scores) -> Finding:
    """Which formats keep the usual floors."""
    broken = [name for name in scores if gate.verdict(scores, name, Floors()).broken]
    kept = [name for name in scores if name not in (PLAIN, *broken)]
    return tell("09", "quality", "some" if broken else "all", kept=", ".join(kept), broken=", ".join(broken))


def cramped(found: Mapping[str, Cramped]) -> Finding:
    """Two GPUs that hardly hold 16-bit weights."""
    plain, int8, kv = (found[name] for name in ("bf16", "int8", "KV int8"))
    rooms = {"room": plain.room, "room8": int8.room, "room_kv": kv.room}
    waits = {"wait": plain.wait, "wait8": int8.wait, "wait_kv": kv.wait}
    return tell(
        "09", "cramped", "here", decode=plain.decode, decode8=int8.decode, decode_kv=kv.decode, **rooms, **waits
    )
