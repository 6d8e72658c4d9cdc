"""The drills, in the order in which they are listed.

<id>.toml      title, minutes and rubric of a drill          ../texts/<id>.md   its prompt and model answers
latency.py, memory.py, decoding.py, fleets.py   its numbers: what the prompt gives, and what follows from that
"""

import tomllib
from collections.abc import Callable
from pathlib import Path

from course.lab.drills.drill import Draw, Drill, Rubric, UnknownDrillError
from course.lab.drills.library import decoding, fleets, latency, memory
from course.lab.drills.reading import Numbers


def _read(drill_id: str, numbers: Callable[[Draw], Numbers]) -> Drill:
    written = tomllib.loads((Path(__file__).parent / f"{drill_id}.toml").read_text(encoding="utf-8"))
    rubric = Rubric.model_validate(written.pop("rubric"))
    return Drill(id=drill_id, numbers=numbers, rubric=rubric, **written)


ALL: tuple[Drill, ...] = (
    _read("dump-13b", latency.dump_13b),
    _read("p99-8s", latency.p99_8s),
    _read("ttft-7s", latency.ttft_7s),
    _read("itl-250ms", latency.itl_250ms),
    _read("rag-broke-chat", latency.rag_broke_chat),
    _read("quantized-in-vain", latency.quantized_in_vain),
    _read("hit-rate-zero", memory.hit_rate_zero),
    _read("long-contexts", memory.long_contexts),
    _read("shrink-the-kv", memory.shrink_the_kv),
    _read("growing-agents", memory.growing_agents),
    _read("code-drafts", decoding.code_drafts),
    _read("chunk-size", decoding.chunk_size),
    _read("new-draft", decoding.new_draft),
    _read("one-token", decoding.one_token),
    _read("why-not-gpus", fleets.why_not_gpus),
    _read("size-a-fleet", fleets.size_a_fleet),
    _read("tenfold-spike", fleets.tenfold_spike),
    _read("batch-beside-chat", fleets.batch_beside_chat),
    _read("buy-hardware", fleets.buy_hardware),
    _read("halve-the-cost", fleets.halve_the_cost),
    _read("slo-autocomplete", fleets.slo_autocomplete),
    _read("dashboard", fleets.dashboard),
    _read("load-test-lied", latency.load_test_lied),
    _read("choppy-stream", latency.choppy_stream),
)
FLAGSHIP = "dump-13b"


def find_drill(name: str) -> Drill:
    """Raises UnknownDrillError, which names those there are."""
    for drill in ALL:
        if drill.id == name:
            return drill
    raise UnknownDrillError(f"there is no drill {name!r}; there are: {', '.join(drill.id for drill in ALL)}")
